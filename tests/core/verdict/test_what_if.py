"""What a job loses at most, from own times and single long steps."""

import math

import numpy as np
import pytest
from tests.support.verdict_tables import PEERS, world

from ingero.core.verdict.table import (
    STALL,
    STRAGGLER,
)
from ingero.core.verdict.what_if import _stalled_share, most_lost, own_shown


def test_hidden_compute_is_added_to_healthy_peers_only() -> None:
    rows = world(excess=0.0).rows
    rows.hidden[0], rows.state[1] = math.log(1.5), STRAGGLER
    own = own_shown(rows, 0, np.arange(1, 8), np.array([0, 1]))
    assert own[:, 0] == pytest.approx([1.0, *[1.5] * 6, 1.0])


def test_stalls_cost_their_excess_of_the_usual_own_time_as_often_as_they_come() -> None:
    """Of own times of 0.5 s, a stall of half of it in every tenth step costs 25 ms per step."""
    registry = world()
    rows = registry.rows
    rows.own_s[:8], rows.span_s[:8], rows.channel[0] = 0.5, 1.0, STALL
    most = most_lost(registry, 0, PEERS, excess=0.5, period=10)
    assert most == pytest.approx(0.025 / 1.0, rel=0.05)


def test_single_long_steps_bound_what_a_job_loses_by_stalls() -> None:
    """Every tenth step takes twice as long: 9.1 % are lost, and no bound is below that."""
    spans_s = np.where(np.arange(40) % 10 == 0, 0.1, 0.05)
    share = _stalled_share(spans_s)
    assert 1 - 0.05 / spans_s.mean() < share < 0.2
    assert _stalled_share(np.full(40, 0.05)) == 0.0
    assert _stalled_share(spans_s[:2]) == 0.0
