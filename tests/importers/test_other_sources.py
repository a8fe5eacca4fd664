"""Recordings of real jobs as dumps and the Inspector would have kept them: healthy ones stay so."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.support.other_sources import as_flight_recorder, as_inspector
from tests.support.recording_score import Recording, read_recordings
from tests.support.shared_data import shared

from ingero.core.blame.records import blame_records
from ingero.core.collectives.columns import Collectives

SOURCES: dict[str, tuple[Callable[[Collectives], Collectives], bool]] = {
    "dumps": (as_flight_recorder, False),
    "longer dumps": (lambda columns: as_flight_recorder(columns, 20_000), False),
    "inspector": (lambda columns: as_inspector(columns, verbose=True), True),
    "inspector, plain": (lambda columns: as_inspector(columns, verbose=False), False),
}


def recording(job: str, fault: bool) -> Recording:
    folder = shared(f"data/nccl-jobs/{job}/truth.json").parent
    return next(each for each in read_recordings(folder) if bool(each.faults) == fault)


@pytest.mark.parametrize("job", ["ddp", "accum", "fsdp", "pp"])
def test_a_healthy_job_stays_healthy_from_every_source(job: str) -> None:
    columns = recording(job, False).columns
    for source, (kept, exact_ends) in SOURCES.items():
        answer = blame_records(kept(columns), exact_ends, source)
        assert (source, answer.culprits, answer.cause) == (source, (), None)


@pytest.mark.parametrize("source", SOURCES)
def test_a_slow_gpu_is_named_from_every_source(source: str) -> None:
    kept, exact_ends = SOURCES[source]
    answer = blame_records(kept(recording("ddp", True).columns), exact_ends, source)
    named = [(each.rank, str(each.cause)) for each in answer.culprits]
    assert named == [(6, "unknown" if source == "inspector, plain" else "compute")]


@pytest.mark.parametrize("few", [(0, 1, 3, 5), (1, 3, 4, 7)])
def test_ranks_that_left_records_of_the_end_alone_change_no_class(few: tuple[int, ...]) -> None:
    """The fault of rank 6 was over before: whom it met then left no records."""
    healthy = blame_records(_ends_of(recording("pp", False).columns, few), True, "test")
    assert (healthy.culprits, healthy.cause) == ((), None)
    folder = shared("data/nccl-jobs/ddp/truth.json").parent
    (stalls,) = (each for each in read_recordings(folder) if len(each.faults) == 2)
    answer = blame_records(_ends_of(stalls.columns, few), True, "test")
    named = {each.rank: str(each.cause) for each in answer.culprits}
    assert named == {2: "host", 6: "unknown"}


def _ends_of(columns: Collectives, few: tuple[int, ...]) -> Collectives:
    """Return the records without the first 70 % of those of some ranks."""
    ranks = np.array([each.global_rank for each in columns.recorders])
    first, last = int(columns.end_ns.min()), int(columns.end_ns.max())
    is_late = columns.end_ns > last - 0.3 * (last - first)
    return columns.take(is_late | ~np.isin(ranks[columns.who], few))
