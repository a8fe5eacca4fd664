"""What fixing ranks of a recorded job saves: no more than they cost, and nothing twice."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.quiet_job import fixer, quiet_job

from ingero.core.blame.record_fixes import Fixer, pace_of
from ingero.core.blame.record_steps import measure_steps
from ingero.core.blame.suspects import Suspect, WorkerSteps

MS = 1e-3


def suspect(worker: int) -> Suspect:
    return Suspect(worker, 0.1, 0.01, 1 * MS, 0.9, 1.0, None, (), 7)


@pytest.mark.parametrize("exact_ends", [True, False])
def test_a_fix_saves_until_the_next_rank_holds_the_job(exact_ends: bool) -> None:
    """Ranks 2 and 5 add 3 ms and 2 ms to each step; both at once cost what one costs."""
    found = fixer(quiet_job(rank2=0.3, rank5=0.2), exact_ends)
    assert found.can_replay == exact_ends
    two, five = suspect(2), suspect(5)
    assert found.saved([]) == 0.0
    assert found.saved([two]) == pytest.approx(1 * MS, rel=0.05)
    assert found.saved([five]) == pytest.approx(0.0, abs=0.02 * MS)
    assert found.saved([two, five]) == pytest.approx(3 * MS, rel=0.05)
    assert found.saved([suspect(0)]) == pytest.approx(0.0, abs=0.01 * MS)


@pytest.mark.parametrize(("share", "is_needed"), [(0.022, False), (0.026, True)])
def test_a_suspect_whose_fix_saves_less_than_a_twelfth_is_not_needed(
    share: float, is_needed: bool
) -> None:
    """8 % of 3 ms are 0.24 ms, which is 0.024 of the compute of a step."""
    found = fixer(quiet_job(rank2=0.3, rank5=share))
    both = [suspect(2), suspect(5)]
    assert found.needed(both) == both[: 1 + is_needed]
    assert found.needed(both[:1]) == both[:1]
    assert found.needed([]) == []


def test_suspects_that_save_nothing_leave_the_first_one() -> None:
    found = fixer(quiet_job())
    assert found.needed([suspect(2), suspect(5)]) in ([suspect(2), suspect(5)], [suspect(2)])


@pytest.mark.parametrize(("lost", "can_replay"), [(1, True), (4, False)])
def test_waits_are_replayed_only_if_nearly_all_collectives_are_complete(
    lost: int, can_replay: bool
) -> None:
    """Of 320 rows, two percent may be in collectives that lack a member."""
    rows = quiet_job(steps=20)
    assert len(rows) in range(300, 600)
    wide = np.flatnonzero((rows.who == 3) & (rows.nranks == 4))[5 : 5 + lost]
    found = fixer(rows.take(np.delete(np.arange(len(rows)), wide)))
    assert found.can_replay == can_replay


def test_a_rank_whose_records_begin_late_does_not_prevent_a_replay() -> None:
    rows = quiet_job(steps=24, rank2=0.3)
    late = (rows.who == 5) & (rows.end_ns < np.median(rows.end_ns))
    found = fixer(rows.take(~late))
    assert found.can_replay
    assert found.saved([suspect(2)]) == pytest.approx(3 * MS, rel=0.1)


def workers(own_s: list[list[float]], cohort: list[int]) -> WorkerSteps:
    own = np.array(own_s)
    return WorkerSteps(own, np.ones(own.shape[1]), np.array(cohort), tuple(range(own.shape[1])))


def test_the_pace_is_the_median_of_the_others_of_a_role() -> None:
    given = workers([[1, 5], [2, np.nan], [3, 7], [9, 9]], [0, 0, 0, 1])
    assert pace_of(given, 0, {0}).tolist() == [2.5, 7.0]
    assert pace_of(given, 0, set()).tolist() == [2.0, 6.0]
    assert pace_of(given, 0, {0, 1, 2}).shape == (2,)
    assert np.isnan(pace_of(given, 3, {3})).all()


def test_without_times_of_entry_the_largest_own_time_paces_a_step() -> None:
    rows = quiet_job(steps=6)
    steps = measure_steps(rows, False)
    own = np.ones_like(steps.workers.own_s)
    own[2], own[5] = 4.0, 3.0
    own[2, 0] = np.nan
    given = replace(steps, workers=replace(steps.workers, own_s=own))
    found = Fixer(rows, given, False)
    count = own.shape[1]
    assert found.saved([suspect(2)]) == pytest.approx((count - 1) / count)
    assert found.saved([suspect(2), suspect(5)]) == pytest.approx((2 + 3 * (count - 1)) / count)
    assert found.saved([suspect(0)]) == 0.0
