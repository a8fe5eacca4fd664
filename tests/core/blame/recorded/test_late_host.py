"""A host that launches the extra work of a slow GPU is late; one that sleeps is the reason."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.blame_tables import spell
from tests.support.job_shapes import ddp
from tests.support.simulated_job import Fault, simulate

from ingero.contract.verdict import CauseClass
from ingero.core.blame.recorded import blamed
from ingero.core.blame.recorded.charges import classify_lateness
from ingero.core.blame.recorded.late_host import _at_begin, launches_more
from ingero.core.blame.recorded.lateness import PlaceTables
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.records import blame_records
from ingero.core.blame.suspects import Suspect

ONSET = 120


def _cause(fault: Fault, launch: float) -> tuple[int | None, str]:
    job = simulate(ddp(micro_batches=4, launch=launch), 260, [fault])
    (culprit,) = blame_records(job.columns, True, "test").culprits
    return culprit.rank, str(culprit.cause)


@pytest.mark.parametrize("launch", [0.3, 0.6])
def test_a_gpu_whose_extra_work_makes_its_host_late_is_slow(
    launch: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(3, gpu=0.06, launches=2.0, first=ONSET)
    assert _cause(fault, launch) == (3, "compute")
    monkeypatch.setattr(blamed, "launches_more", lambda *_: False)
    assert _cause(fault, launch) == (3, "host"), "its host is as late as its GPU"


@pytest.mark.parametrize("launch", [0.3, 0.6])
def test_a_host_that_sleeps_is_the_reason_though_it_gets_far_ahead(launch: float) -> None:
    assert _cause(Fault(3, host_s=0.002, first=ONSET), launch) == (3, "host")


def test_lateness_is_followed_back_to_the_beginning_of_the_step() -> None:
    since = np.array([[2.0, 3.0, 4.0]] * 2)
    late = np.array([[1.0, 1.5, 2.0], [4.0, 4.0, 4.0]])
    assert _at_begin(since, late).tolist() == pytest.approx([0.0, 4.0])


def test_a_place_that_is_hardly_ever_known_explains_nothing() -> None:
    """One pair of a hundred steps was taken for another one."""
    start, enqueue = (np.zeros((2, 100, 2)) for _ in range(2))
    start[0, :, 1], start[0, :, 0], enqueue[0, :, 0] = 5.0, np.nan, np.nan
    start[0, 0, 0] = enqueue[0, 0, 0] = 5.0
    idle, comm = np.zeros((2, 100, 2)), np.array([[0, 1], [0, 1]])
    idle[:, :, 0] = 5.0
    places = PlaceTables(start, enqueue, start, idle, np.zeros((2, 2), bool), comm)
    spell = Spell(Suspect(0, 0.1, 0.01, 5.0, 0.9, 1.0, None, (), 1), 0, 100)
    found = classify_lateness(places, spell, [1])
    assert found is not None and found[0] is CauseClass.COMPUTE
    start[0, :2, 0] = enqueue[0, :2, 0] = 5.0
    often = classify_lateness(places, spell, [1])
    assert often is not None and often[0] is CauseClass.HOST, "flags come in every fiftieth step"


MS, STEP_NS, BEGIN_NS = 1e-3, 100_000_000, 1_760_000_000_000_000_000
GPU_LATE_MS, AHEAD_MS = 4.0, 8.1  # a queue of twice the delay of the GPU is far ahead


class Host:
    """A late host with three collectives in each step, 10, 20 and 30 ms after the step before.

    By default it is 0.1 ms late for each of these milliseconds: it launches more and began in time.
    """

    def __init__(self, steps: int = 17, queue_ms: float = AHEAD_MS) -> None:
        step, place = (each.ravel() for each in np.indices((steps, 3)))
        self.spell = spell(1, steps)
        self.since_ms = np.resize([10.0, 20.0, 30.0], len(step))
        self.queue_ms = np.where(place == 0, queue_ms, 0.0)
        self.late_ms = np.full((1, steps, 3), [1.0, 2.0, 3.0])
        self.row_step, self.row_place, self.who = step.copy(), place.copy(), np.zeros(len(step))
        self._step = step

    def launches_more(self) -> bool:
        start = BEGIN_NS + self._step * STEP_NS + (self.since_ms * 1e6).astype(np.int64)
        entry = start + (self.queue_ms * 1e6).astype(np.int64)
        end = np.full(len(start), BEGIN_NS) + (self._step + 1) * STEP_NS
        rows: Any = SimpleNamespace(who=self.who, start_ns=start, entry_ns=entry, end_ns=end)
        measured: Any = SimpleNamespace(
            row_step=self.row_step, row_place=self.row_place, ranks=(0,)
        )
        late = self.late_ms * MS
        start_s = np.where(np.isnan(late), np.nan, GPU_LATE_MS * MS)
        places: Any = SimpleNamespace(enqueue_s=late, start_s=start_s)
        return launches_more(rows, measured, places, self.spell)


def test_a_host_far_ahead_whose_lateness_grows_from_nothing_launches_more() -> None:
    assert Host().launches_more()
    assert not Host(queue_ms=7.9).launches_more(), "it is not far ahead"


@pytest.mark.parametrize(
    ("late_ms", "scatter_ms", "began_early"),
    [
        pytest.param(1.9, 0.0, True, id="less than half of the delay"),
        pytest.param(2.1, 0.0, False, id="more than half"),
        pytest.param(1.5, 0.3, True, id="within three errors of the median"),
        pytest.param(1.5, 0.4, False, id="not within three errors"),
    ],
)
def test_a_host_that_began_late_is_the_reason(
    late_ms: float, scatter_ms: float, began_early: bool
) -> None:
    host = Host()
    scatter = np.resize([scatter_ms, -scatter_ms], host.late_ms.shape[1])
    host.late_ms[:] = late_ms + scatter[None, :, None]
    assert host.launches_more() == began_early


def test_a_host_that_does_not_wait_for_its_gpu_between_steps_says_nothing() -> None:
    host = Host()
    host.since_ms -= 11.0
    host.late_ms[:] = 0.0
    assert not host.launches_more()
    host.since_ms += 2.0
    assert host.launches_more()


def test_sixteen_whole_steps_and_two_places_are_needed() -> None:
    """The step before the first one only tells when that one began."""
    assert not Host(steps=16).launches_more()
    for column, unknown in (("row_step", -1), ("row_place", -1), ("who", 1)):
        host = Host()
        getattr(host, column)[-1] = unknown
        assert not host.launches_more(), f"without the last call, by {column}"
    host = Host()
    host.late_ms[0, 5, 1] = np.nan
    assert not host.launches_more(), "how late it was there is not known"
    host = Host()
    host.late_ms[:, :, 2] = np.nan
    assert host.launches_more()
    host.late_ms[:, :, 1] = np.nan
    assert not host.launches_more(), "a line needs two points"


def test_the_lateness_of_a_step_is_that_of_its_own_calls() -> None:
    """Of 17 steps one has neither its last call nor its lateness: sixteen are left."""
    host = Host(steps=18)
    host.row_step[3 * 5 + 2], host.late_ms[0, 5, 2] = -1, np.nan
    assert host.launches_more()
    host.late_ms[0, 5, 2], host.late_ms[0, 6, 2] = 3.0, np.nan
    assert not host.launches_more(), "in two different steps"


def test_a_recording_without_calls_of_the_rank_says_nothing() -> None:
    host = Host()
    host.who[:] = 1
    assert not host.launches_more()


@pytest.mark.parametrize(
    ("is_relative", "host", "is_host"), [(True, 4.1, True), (True, 3.9, False), (False, 3.9, True)]
)
def test_a_host_that_always_is_late_must_be_later_by_what_its_gpu_is(
    is_relative: bool, host: float, is_host: bool
) -> None:
    """Of a GPU that is later by 2 than usual, a host that is later by 1.8 is the cause."""
    start, enqueue = (np.zeros((2, 100, 1)) for _ in range(2))
    start[0, :, 0] = np.repeat([3.0, 5.0], 50)
    enqueue[0, :, 0] = np.repeat([2.2, host], 50)
    places = PlaceTables(
        start, enqueue, start, start, np.zeros((2, 1), bool), np.zeros((2, 1), int)
    )
    suspect = Suspect(0, 0.1, 0.01, 5.0, 0.9, 1.0, None, (), 1, is_relative)
    assert blamed._has_host_changed(places, Spell(suspect, 50, 100), 0) == is_host
