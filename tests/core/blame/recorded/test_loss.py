"""What a slow rank costs: the step while it is slow against calm steps of the same recording."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ingero.core.blame.recorded.loss import Loss, calm_steps, find_rise, measure_loss
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.suspects import Suspect

Floats = NDArray[np.float64]
SUSPECT = Suspect(2, 0.1, 0.01, 0.2, 0.9, 1.0, None, (), 7)


def spell(begin: int, end: int, worker: int = 2, stalls: tuple[int, ...] = ()) -> Spell:
    return Spell(replace(SUSPECT, worker=worker, stalls=stalls), begin, end)


def periods(*parts: tuple[int, float]) -> Floats:
    """Return step lengths as parts of (steps, seconds)."""
    return np.concatenate([np.full(steps, seconds) for steps, seconds in parts])


def measured(period_s: Floats, *spells: Spell, own_s: Floats | None = None) -> Loss:
    own = np.ones_like(period_s) if own_s is None else own_s
    return measure_loss(period_s, own, spells[0], spells, 0.5)


def test_the_loss_is_the_difference_to_calm_steps() -> None:
    loss = measured(periods((150, 1.0), (100, 1.25)), spell(150, 250))
    assert (loss.slow_s, loss.calm_s, loss.lost_s) == (1.25, 1.0, 0.25)
    assert (loss.share, loss.error) == (pytest.approx(0.2), pytest.approx(0.003))
    assert not loss.costs_nothing


def test_steps_that_became_shorter_are_no_gain() -> None:
    loss = measured(periods((150, 1.0), (100, 0.9)), spell(150, 250))
    assert (loss.lost_s, loss.share) == (0.0, 0.0)
    assert loss.costs_nothing


@pytest.mark.parametrize(
    ("calm", "step_s", "is_known"),
    [(100, 1.0, True), (99, 0.4, False), (16, 2.5, True), (16, 2.49, False), (15, 9.0, False)],
)
def test_calm_steps_must_be_many_or_long(calm: int, step_s: float, is_known: bool) -> None:
    """A hundred are enough, and sixteen if they last 40 s; three at the start do not count."""
    period_s = periods((3 + calm + 2, step_s), (100, 2 * step_s))
    loss = measured(period_s, spell(3 + calm + 2, len(period_s)))
    if is_known:
        assert (loss.calm_s, loss.lost_s) == (step_s, step_s)
    else:
        assert (loss.calm_s, loss.error_s, loss.error) == (None, None, None)
        assert (loss.slow_s, loss.lost_s) == (2 * step_s, 0.5)
        assert not loss.costs_nothing


def test_an_upper_bound_is_never_more_than_the_step() -> None:
    loss = measured(periods((50, 0.3)), spell(0, 50))
    assert (loss.slow_s, loss.lost_s, loss.share) == (0.3, 0.3, 1.0)


def test_steps_next_to_a_spell_and_at_the_beginning_are_not_calm() -> None:
    period_s = np.ones(20)
    period_s[6] = np.nan
    calm = calm_steps(period_s, [spell(10, 14), spell(19, 20)])
    assert np.flatnonzero(calm).tolist() == [3, 4, 5, 7, 16]


def test_a_spell_is_measured_where_it_is_alone_if_that_is_long_enough() -> None:
    """Behind step 250 another one is slow as well; the steps before show this one alone."""
    for alone, slow_s in ((16, 1.2), (15, 1.5)):
        period_s = periods((150, 1.0), (alone, 1.2), (200, 1.5))
        begin, end = 150, 150 + alone + 200
        loss = measured(period_s, spell(begin, end), spell(begin + alone, end, worker=5))
        assert (loss.slow_s, loss.calm_s) == (slow_s, 1.0)


def test_spells_that_only_touch_do_not_overlap() -> None:
    period_s = periods((150, 1.0), (100, 1.2), (100, 1.5))
    loss = measured(period_s, spell(150, 250), spell(250, 350, worker=5))
    assert loss.slow_s == 1.2
    loss = measured(period_s, spell(250, 350), spell(150, 250, worker=5))
    assert loss.slow_s == 1.5


def test_the_error_comes_from_blocks_of_a_hundred_steps() -> None:
    """Calm steps wander between 1.0 and 1.2 in blocks; the slow ones are steady."""
    far = periods((500, 1.7))  # an earlier pace of the job says nothing about this one
    period_s = np.concatenate((far, periods(*[(100, 1.0), (100, 1.2)] * 2, (2, 1.2))))
    period_s = np.concatenate((period_s, np.full(400, 2.0)))
    loss = measured(period_s, spell(902, 1302))
    expected = 2 * np.std([1.0, 1.2] * 2, ddof=1) / np.sqrt(4)
    assert loss.error_s == pytest.approx(expected, rel=0.01)
    assert loss.error == pytest.approx(expected / 2.0, rel=0.01)


def test_few_steps_are_split_into_four_blocks() -> None:
    period_s = np.concatenate((np.ones(203), periods(*[(25, 2.0), (25, 2.4)] * 2)))
    loss = measured(period_s, spell(203, 303))
    assert loss.error_s == pytest.approx(2 * np.std([2.0, 2.4] * 2, ddof=1) / 2, rel=1e-3)
    assert loss.slow_s == pytest.approx(2.2)


@pytest.mark.parametrize(("slow_s", "is_nothing"), [(1.015, True), (1.016, False)])
def test_a_change_below_one_and_a_half_percent_of_the_step_costs_nothing(
    slow_s: float, is_nothing: bool
) -> None:
    loss = measured(periods((150, 1.0), (100, slow_s)), spell(150, 250))
    assert loss.costs_nothing == is_nothing


def test_a_change_within_the_error_costs_nothing() -> None:
    noisy = Loss(1.0, 0.9, 0.1, 0.1)
    assert noisy.costs_nothing
    assert not replace(noisy, error_s=0.0999).costs_nothing
    assert not replace(noisy, calm_s=None).costs_nothing
    assert Loss(0.0, 0.0, 0.0, 0.0).share == 0.0


def test_single_long_steps_do_not_move_the_loss_of_a_lasting_fault() -> None:
    period_s = periods((150, 1.0), (100, 1.25))
    period_s[[20, 60, 170, 200]] = 30.0
    loss = measured(period_s, spell(150, 250))
    assert (loss.slow_s, loss.calm_s) == (1.25, 1.0)


def test_stalls_cost_what_they_add_on_average() -> None:
    """Every tenth step takes 1 s longer: 0.1 s a step."""
    period_s = np.ones(403)
    stalls = tuple(range(203, 403, 10))
    period_s[list(stalls)] = 2.0
    loss = measured(period_s, spell(203, 403, stalls=stalls))
    assert (loss.slow_s, loss.calm_s) == (pytest.approx(1.1), pytest.approx(1.0))
    assert loss.lost_s == pytest.approx(0.1)


def test_rarer_stalls_than_the_cut_still_count() -> None:
    """One of a hundred steps stalls: a cut at 98 % would lose it; three quarters of it count."""
    period_s = np.ones(1003)
    stalls = tuple(range(203, 1003, 100))
    period_s[list(stalls)] = 2.0
    loss = measured(period_s, spell(203, 1003, stalls=stalls))
    assert loss.lost_s == pytest.approx(0.01, rel=0.3)


def test_accidents_longer_than_all_stalls_are_cut() -> None:
    period_s = np.ones(403)
    stalls = tuple(range(203, 403, 10))
    period_s[list(stalls)] = 2.0
    period_s[[50, 250]] = 100.0
    loss = measured(period_s, spell(203, 403, stalls=stalls))
    assert loss.lost_s == pytest.approx(0.1, abs=0.02)


def test_where_records_of_the_rank_begin_late_steps_before_the_fault_are_calm() -> None:
    """The rank left no records in the calm steps: it may have been slow in the last of them."""
    period_s = periods((203, 1.0), (150, 1.5), (100, 1.5))
    own_s = np.where(np.arange(453) < 353, np.nan, 1.0)
    loss = measured(period_s, spell(353, 453), own_s=own_s)
    assert (loss.calm_s, loss.lost_s) == (1.0, 0.5)


def test_without_records_of_the_rank_equal_steps_show_nothing() -> None:
    period_s = periods((353, 1.5), (100, 1.5))
    own_s = np.where(np.arange(453) < 353, np.nan, 1.0)
    loss = measured(period_s, spell(353, 453), own_s=own_s)
    assert (loss.calm_s, loss.lost_s) == (None, 0.5)
    known = measured(period_s, spell(353, 453))
    assert (known.calm_s, known.lost_s) == (1.5, 0.0)
    assert known.costs_nothing


def test_without_a_calm_step_nothing_is_known_of_the_time_before() -> None:
    loss = measured(np.ones(100), spell(0, 100), own_s=np.full(100, np.nan))
    assert loss.calm_s is None


@pytest.mark.parametrize(("before", "after"), [(150, 150), (100, 300), (250, 100)])
def test_a_rise_is_found_where_it_is(before: int, after: int) -> None:
    assert find_rise(periods((before, 1.0), (after, 1.1))) == before


def test_a_rise_needs_a_hundred_steps_on_both_sides() -> None:
    assert find_rise(periods((99, 1.0), (100, 1.5))) is None
    assert find_rise(periods((100, 1.0), (100, 1.5))) == 100


@pytest.mark.parametrize(("after_s", "is_rise"), [(1.0149, False), (1.0151, True), (0.8, False)])
def test_a_rise_is_larger_than_what_counts_as_a_loss(after_s: float, is_rise: bool) -> None:
    found = find_rise(periods((150, 1.0), (150, after_s)))
    assert found == (150 if is_rise else None)


def test_a_rise_within_the_wander_of_the_job_is_none() -> None:
    """Blocks of a hundred steps wander by 0.1; a rise of 0.05 is within three errors."""
    calm = periods(*[(100, 1.0), (100, 1.1), (100, 1.2), (100, 1.1)] * 2)
    assert find_rise(np.concatenate((calm, calm + 0.05))) is None
    assert find_rise(np.concatenate((calm, calm + 0.5))) == 800


def test_steps_that_were_not_recorded_are_skipped_but_counted() -> None:
    period_s = periods((250, 1.0), (150, 1.2))
    period_s[50:150] = np.nan
    assert find_rise(period_s) == 250
    assert find_rise(np.full(400, np.nan)) is None


def test_single_accidents_are_no_rise() -> None:
    period_s = np.ones(400)
    period_s[[399, 398, 397]] = 500.0
    assert find_rise(period_s) is None


def test_a_noisy_job_needs_more_calm_steps_than_a_steady_one() -> None:
    """Steps of 0.1 s that scatter by 5 % show the pace after 20 s, half as much after 5 s."""
    turn = np.resize([-1.0, 0.0, 1.0], 400) / 1.4826  # a median deviation of one sigma
    for scatter, calm, is_known in (
        (0.05, 190, False),
        (0.05, 220, True),
        (0.08, 220, True),
        (0.025, 110, True),
    ):
        period = np.r_[0.1 * (1 + scatter * turn[:calm]), np.full(120, 0.12)]
        loss = measured(period, spell(calm, calm + 120))
        assert (loss.calm_s is not None) == is_known


def test_a_short_phase_may_differ_as_much_as_pieces_of_the_longer_one() -> None:
    """The calm pace changes every 100 steps by 4 %; the slow phase has 100 steps, too."""
    wander = np.repeat([0.98, 1.02, 0.98, 1.02], 100)
    loss = measured(np.r_[wander, np.full(100, 1.2)], spell(400, 500))
    alone = 2 * np.std(wander[::100], ddof=1) / np.sqrt(4)
    assert loss.error_s == pytest.approx(2 * np.hypot(0.0231, alone / 2), rel=0.05)


def test_steps_differ_by_the_rank_alone_if_another_one_is_always_slow() -> None:
    """It has more to do than its peers from the first step to the last."""
    period_s = periods((150, 1.1), (100, 1.375))
    always, mine = spell(0, 250, worker=0), spell(150, 250)
    loss = measured(period_s, mine, always)
    assert (loss.slow_s, loss.calm_s, loss.is_joint) == (1.375, 1.1, False)
    assert measured(period_s, always, mine).calm_s is None


def test_two_that_are_slow_together_have_one_loss() -> None:
    period_s = periods((150, 1.0), (100, 1.25))
    loss = measured(period_s, spell(150, 250), spell(152, 250, worker=5))
    assert (loss.slow_s, loss.calm_s, loss.is_joint) == (1.25, 1.0, True)


def test_a_bound_below_what_is_a_loss_costs_nothing() -> None:
    assert Loss(1.0, None, 0.015, None, is_replayed=True).costs_nothing
    assert not Loss(1.0, None, 0.016, None, is_replayed=True).costs_nothing
    assert not Loss(1.0, None, 0.015, None).costs_nothing
