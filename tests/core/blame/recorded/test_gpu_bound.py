"""The only rank whose GPU has a queue, in a job that hosts hold up."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.lateness_tables import Floats, groups, no_pairs

from ingero.core.blame.recorded.gpu_bound import find_gpu_bound
from ingero.core.blame.recorded.lateness import Lateness

MS = 1e-3


def bound(
    late_ms: float = 3.0, queue_ms: float = 3.0, steps: int = 120, ranks: int = 5,
    others_ms: float = 1.0,
) -> tuple[Lateness, Floats]:  # fmt: skip
    """Return a job of 100 ms steps: rank 2 is late with a queue, one of the others in turn."""
    start, enqueue = np.zeros((ranks, steps, 1)), np.zeros((ranks, steps, 1))
    start[2], enqueue[2] = late_ms * MS, (late_ms - queue_ms) * MS
    others = [rank for rank in range(ranks) if rank != 2]
    turn = np.resize(others, steps)
    advance = np.zeros_like(start)
    advance[turn, np.arange(steps), 0] = others_ms * MS
    advance[2] = late_ms * MS
    late = Lateness(
        start,
        enqueue,
        advance,
        np.ones_like(start),
        no_pairs(start),
        groups(start),
        start.sum(axis=2),
        0.0,
    )
    return late, np.full(steps, 100 * MS)


def test_the_only_rank_with_a_queue_is_found() -> None:
    found = find_gpu_bound(*bound())
    assert found is not None
    assert (found.worker, found.begin, found.end) == (2, 0, 120)
    suspect = found.suspect
    assert (suspect.excess, suspect.excess_s) == (pytest.approx(0.03), pytest.approx(3 * MS))
    assert suspect.error == pytest.approx(0.0005)
    assert (suspect.confidence, suspect.named_share, suspect.peers) == (0.7, 1.0, 4)
    assert (suspect.stall_period, suspect.stalls) == (None, ())


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ({"late_ms": 1.49}, False),  # 1.5 % of the step
        ({"late_ms": 1.51}, True),
        ({"queue_ms": 0.29}, False),  # six times the least spread of 0.05 ms
        ({"queue_ms": 0.31}, True),
        ({"steps": 99}, False),
        ({"steps": 100}, True),
        ({"ranks": 3}, False),
        ({"ranks": 4}, True),
        ({"others_ms": 6.1}, False),  # four take turns: each adds a quarter of that a step
        ({"others_ms": 5.9}, True),
    ],
)
def test_a_rank_with_a_queue_must_stand_out(change: dict[str, float], is_found: bool) -> None:
    assert (find_gpu_bound(*bound(**change)) is not None) == is_found  # type: ignore[arg-type]


def test_a_queue_must_stand_out_from_the_queues_of_the_others() -> None:
    late, period = bound(queue_ms=3.0, ranks=7)
    for spread, is_found in ((0.3, True), (0.35, False)):  # six sigmas: 2.7 ms and 3.1 ms
        start = late.start_s.copy()
        start[[0, 1, 3]] += spread * MS
        start[[4, 5, 6]] -= spread * MS
        assert (find_gpu_bound(replace(late, start_s=start), period) is not None) == is_found


def test_a_gpu_bound_rank_is_judged_since_the_job_became_slower() -> None:
    late, _ = bound(steps=300)
    period = np.where(np.arange(300) < 120, 90 * MS, 100 * MS)
    found = find_gpu_bound(late, period)
    assert found is not None and (found.begin, found.end) == (120, 300)
