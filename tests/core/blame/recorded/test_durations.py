"""What durations alone show: no time of the GPU, and perhaps no enqueue."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.other_sources import as_flight_recorder, as_inspector
from tests.support.recorded_jobs import Job, record
from tests.support.shared_job import measured, shared_job

from ingero.contract.verdict import CauseClass
from ingero.core.blame.recorded.uneven import LastArrivers, measure_last
from ingero.core.blame.records import blame_records
from ingero.core.collectives.columns import Collectives, from_records

MS = 1e-3
Floats = NDArray[np.float64]


def scattered(places: int, mean_s: float = 4 * MS) -> Floats:
    """Return delays of six ranks that follow nothing: at each place, another rank comes last."""
    return np.random.default_rng(3).exponential(mean_s, (6, 120, places))


def last_of(columns: Collectives) -> LastArrivers:
    steps, arrivals = measured(columns)
    return measure_last(columns, steps, arrivals, 0.1, exact_ends=False)


def far_apart(columns: Collectives) -> Collectives:
    """Return the records with clocks that lie seconds apart and drift."""
    since = columns.end_ns - columns.end_ns.min()
    offset = columns.who.astype(np.int64) * 3_000_000_000 + (since * columns.who * 2e-5).astype(int)
    return replace(columns, start_ns=columns.start_ns + offset, end_ns=columns.end_ns + offset)


@pytest.mark.parametrize("exact_ends", [True, False])
def test_ranks_that_come_last_in_turn_have_no_uneven_work(exact_ends: bool) -> None:
    answer = blame_records(shared_job(scattered(8)), exact_ends, "test")
    assert (answer.culprits, answer.cause) == ((), None)
    assert any(line.startswith("whoever comes last adds") for line in answer.evidence)


def test_hosts_that_come_last_in_turn_have_no_uneven_work() -> None:
    """One call a step: its halves show nothing, but hosts are as late as their GPUs."""
    late = scattered(1, 12 * MS)
    by_host = far_apart(shared_job(late, 2 * MS))
    assert last_of(by_host).by_hosts == pytest.approx(1.0, abs=0.15)
    assert not last_of(by_host).is_uneven
    by_work = far_apart(shared_job(late, 2 * MS + late))
    assert last_of(by_work).by_hosts < 0.1
    assert last_of(by_work).is_uneven
    assert blame_records(by_host, False, "test").cause is None
    assert blame_records(by_work, False, "test").cause is CauseClass.DATA_IMBALANCE


def test_work_of_a_step_makes_a_rank_late_in_both_halves() -> None:
    work = np.repeat(scattered(1, MS), 4, axis=2)
    assert last_of(shared_job(work, 2 * MS + work)).agreement == pytest.approx(1.0, abs=0.05)
    assert abs(last_of(shared_job(scattered(4, MS))).agreement) < 0.3


def test_a_class_needs_enqueues() -> None:
    """The plain form of the Inspector has durations alone: who is slow shows, but not why."""
    given = from_records(record(Job(dp=6, tp=1, steps=80, slow_gpu={2: 0.2})))
    classes = {
        verbose: blame_records(as_inspector(given, verbose=verbose), verbose, "test").culprits
        for verbose in (True, False)
    }
    assert [(each.rank, each.cause) for each in classes[True]] == [(2, CauseClass.COMPUTE)]
    assert [(each.rank, each.cause) for each in classes[False]] == [(2, CauseClass.UNKNOWN)]


def test_dumps_name_the_rank_from_their_last_entries() -> None:
    given = from_records(record(Job(dp=6, tp=1, steps=400, slow_gpu={2: 0.2})))
    part = as_flight_recorder(given, 200)
    assert np.bincount(part.who).tolist() == [200] * 6
    assert [each.rank for each in blame_records(part, False, "test").culprits] == [2]


def test_a_rank_that_costs_less_than_a_loss_is_not_named_by_durations() -> None:
    """Its own time is 4 % longer than that of peers, who spend most of the step in transfers."""
    slow = {2: 0.04}
    given = record(Job(dp=6, tp=1, compute_s=0.002, steps=200, slow_gpu=slow, chronic=0.0,
                       slow_comm={("dp", 0): 50.0}))  # fmt: skip
    answer = blame_records(from_records(given), False, "test")
    assert [each.rank for each in answer.culprits] == []


def test_stages_without_sends_and_receives_cannot_be_compared() -> None:
    given = from_records(record(Job(pp=2, tp=1, dp=4, steps=80)))
    assert blame_records(given, True, "test").not_sure is None
    answer = blame_records(as_inspector(given, verbose=True), True, "test")
    assert (answer.culprits, answer.cause) == ((), None)
    assert answer.not_sure is not None
    assert answer.not_sure.startswith("some ranks meet in no collective of a step")
