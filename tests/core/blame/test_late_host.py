"""A host that launches the extra work of a slow GPU is late; one that sleeps is the reason."""

import numpy as np
import pytest
from tests.support.job_shapes import ddp
from tests.support.simulated_job import Fault, simulate

from ingero.contract.verdict import CauseClass
from ingero.core.blame.recorded import blamed
from ingero.core.blame.recorded.charges import classify_lateness
from ingero.core.blame.recorded.late_host import _at_begin
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
