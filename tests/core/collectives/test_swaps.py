"""Ranks that always send and receive together are alike; stages of a pipeline are not."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.job_shapes import pipeline
from tests.support.other_shapes import context_ring
from tests.support.random_jobs import draw_job
from tests.support.simulated_job import simulate

from ingero.core.blame.roles import find_roles
from ingero.core.collectives.columns import Collectives
from ingero.core.collectives.own_time import idle_before_enqueue
from ingero.core.collectives.pairs.exchanges import join_exchanges
from ingero.core.collectives.pairs.swaps import is_swap


def _pairs(columns: Collectives, *members: int) -> np.ndarray:
    return np.flatnonzero((columns.peer >= 0) & np.isin(columns.who, members))


@pytest.fixture(scope="module")
def ring() -> Collectives:
    return simulate(context_ring(2, 2, 2), 30).columns


def test_a_ring_of_two_is_an_exchange_however_the_recording_begins(ring: Collectives) -> None:
    rows = _pairs(ring, 0, 1)
    assert is_swap(ring, rows)
    first = rows[ring.who[rows] == 0][np.argsort(ring.start_ns[rows[ring.who[rows] == 0]])[0]]
    assert is_swap(ring, rows[rows != first]), "a launch may be cut in two"
    assert not is_swap(ring, _pairs(ring, 0)), "both members must be known"
    few = np.concatenate([rows[ring.who[rows] == who][:31] for who in (0, 1)])
    assert not is_swap(ring, few), "fifteen launches are too few"


def test_ranks_of_a_ring_are_alike_also_where_a_call_was_lost() -> None:
    ring = simulate(context_ring(4, 2, 2), 60).columns
    rows = _pairs(ring, 0, 1, 2, 3)
    assert is_swap(ring, np.delete(rows, len(rows) // 2))
    assert set(find_roles(ring, range(8)).tolist()) == {0}


def test_ranks_of_a_ring_are_alike_also_where_keys_and_values_travel_apart() -> None:
    """Back in the backward pass, so that every rank sends to both of its neighbours."""
    drawn = draw_job("ring", 33)
    columns = simulate(drawn.shape, 20, noise=drawn.noise).columns
    assert set(find_roles(columns, range(drawn.shape.ranks)).tolist()) == {0}


def test_an_exchange_of_two_is_read_as_one_collective(ring: Collectives) -> None:
    joined = join_exchanges(ring)
    assert not (joined.peer >= 0).any()
    assert "AllToAll" in {joined.ops[op] for op in np.unique(joined.op)}


def test_sends_that_are_launched_apart_from_receives_are_no_exchange(ring: Collectives) -> None:
    rows = _pairs(ring, 0, 1)
    is_send = ring.has_op({"Send"})
    apart = np.where(is_send & (ring.peer >= 0), int(1e6), 0)
    assert not is_swap(replace(ring, start_ns=ring.start_ns + apart), rows)


def test_two_stages_are_no_exchange() -> None:
    columns = simulate(pipeline(stages=2, replicas=1), 30).columns
    assert not is_swap(columns, _pairs(columns, 0, 1))


def test_the_gpu_is_idle_until_the_first_call_that_its_host_enqueues(ring: Collectives) -> None:
    """A receive may start before a send that was enqueued first."""
    part = ring.take(np.flatnonzero(ring.who == 0)[:3])
    times = replace(
        part,
        start_ns=np.array([0, 150, 160]),
        end_ns=np.array([100, 300, 400]),
        gpu_duration_ns=np.array([50, 100, 230]),
    )
    assert idle_before_enqueue(times).tolist() == pytest.approx([np.nan, 50e-9, 0.0], nan_ok=True)
