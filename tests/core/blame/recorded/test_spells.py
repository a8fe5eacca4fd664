"""Spells: the stretch of steps in which a rank is slow."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.blame_tables import spell, suspect

from ingero.core.blame.recorded import spells
from ingero.core.blame.recorded.spells import Spell, _excess, _heavy_part, find_spells
from ingero.core.blame.suspects import WorkerSteps

Floats = NDArray[np.float64]


def workers(own_s: Floats, cohort: list[int] | None = None) -> WorkerSteps:
    count, steps = own_s.shape
    roles = np.array(cohort or [0] * count, np.intp)
    return WorkerSteps(own_s, np.full(steps, 0.05), roles, tuple(range(steps)))


def job(steps: int, slow: dict[int, tuple[int, int, float]], count: int = 6) -> Floats:
    """Return own times of 2 s; a slow worker has a factor between two steps."""
    own = np.full((count, steps), 2.0)
    for worker, (begin, end, factor) in slow.items():
        own[worker, begin:end] *= factor
    return own


def stretches(own_s: Floats, cohort: list[int] | None = None) -> list[tuple[int, int, int]]:
    _, found = find_spells(workers(own_s, cohort))
    return [(each.worker, each.begin, each.end) for each in found]


@pytest.mark.parametrize(("begin", "end"), [(300, 700), (0, 400), (250, 1000)])
def test_a_fault_is_found_with_its_begin_and_end(begin: int, end: int) -> None:
    own = job(1000, {3: (begin, end, 1.2)})
    assert stretches(own) == [(3, begin, end)]
    _, (found,) = find_spells(workers(own))
    assert found.suspect.excess == pytest.approx(0.2)
    assert found.suspect.excess_s == pytest.approx(0.4)
    assert np.flatnonzero(found.columns(1000)).tolist() == list(range(begin, end))


def test_a_lasting_fault_is_judged_over_the_whole_recording() -> None:
    assert stretches(job(300, {3: (0, 300, 1.2)})) == [(3, 0, 300)]
    assert stretches(job(300, {3: (20, 300, 1.2)})) == [(3, 0, 300)]  # 280 of 300: nearly all
    assert stretches(job(300, {3: (31, 300, 1.2)})) == [(3, 31, 300)]  # 269 are not


def test_two_faults_have_spells_of_their_own() -> None:
    own = job(1000, {1: (100, 500, 1.2), 4: (600, 1000, 1.3)})
    assert stretches(own) == [(1, 100, 500), (4, 600, 1000)]


def test_the_heavier_of_two_stretches_counts() -> None:
    own = job(1400, {1: (100, 400, 1.2)})
    own[1, 800:1200] *= 1.3
    assert stretches(own) in ([(1, 800, 1200)], [(1, 100, 1200)])


@pytest.mark.parametrize(
    ("steps", "length", "is_found"),
    [
        (1000, 39, False),
        (1000, 40, True),
        (100, 49, False),
        (100, 50, True),
        (20, 15, False),
        (20, 16, True),
    ],
)
def test_a_short_stretch_is_a_hiccup(steps: int, length: int, is_found: bool) -> None:
    """Two seconds last, or half of a short recording, but never fewer than 16 steps."""
    own = job(steps, {3: (steps - length, steps, 1.2)})
    assert ((3, steps - length, steps) in stretches(own)) == is_found


@pytest.mark.parametrize(("step_s", "lasting"), [(0.5, 20), (0.05, 200), (0.01, 200), (4.0, 16)])
def test_a_lasting_stretch_has_two_hundred_steps_or_ten_seconds(
    step_s: float, lasting: int
) -> None:
    """And sixteen steps at least; shorter ones are found only by the stalls in them."""
    for length in (lasting - 1, lasting):
        own = replace(
            workers(job(1000, {3: (500, 500 + length, 1.2)})), period_s=np.full(1000, step_s)
        )
        found = _heavy_part(own, 3, _excess(own))
        assert (found is not None) == (length == lasting)


def test_a_fault_that_just_began_is_a_stretch_and_no_stall() -> None:
    own = job(1000, {3: (940, 1000, 1.2)})
    assert stretches(own) == [(3, 940, 1000)]
    brief = replace(workers(own), period_s=np.full(1000, 0.03))  # over in less than two seconds
    assert find_spells(brief)[1] == ()


@pytest.mark.parametrize(
    ("stalls", "is_slow"),
    [
        pytest.param((1, 2, 3, 10, 11, 12, 13, 14, 15, 19), True, id="seven of ten"),
        pytest.param((1, 2, 3, 4, 10, 11, 12, 13, 14, 19), False, id="six of ten"),
        pytest.param((1, 2, 3, 10, 11, 12, 13, 14, 15, 20), False, id="one behind its end"),
        pytest.param((), False, id="it does not stall"),
    ],
)
def test_who_stalls_in_one_stretch_only_is_slow_there(
    monkeypatch: pytest.MonkeyPatch, stalls: tuple[int, ...], is_slow: bool
) -> None:
    part = spell(10, 20)
    monkeypatch.setattr(spells, "_heavy_part", lambda *_: part)
    own = workers(job(40, {}))
    found = spells._stalls_in_a_row(own, own.own_s, suspect(stalls=stalls))
    assert found == (part if is_slow else None)
    monkeypatch.setattr(spells, "_heavy_part", lambda *_: spell(10, 20, stalls=(11, 12)))
    assert spells._stalls_in_a_row(own, own.own_s, suspect(stalls=stalls)) is None


@pytest.mark.parametrize(
    ("late", "is_found"),
    [
        pytest.param((20, 21, 22, 23, 40, 41), False, id="two pauses"),
        pytest.param((20, 21, 22, 23, 40, 41, 47), True, id="three"),
        pytest.param((20, 30, 40, 50), True, id="regular"),
    ],
)
def test_a_host_that_is_late_until_it_has_caught_up_stalled_once(
    late: tuple[int, ...], is_found: bool
) -> None:
    own = job(60, {})
    own[3, list(late)] *= 2
    assert bool(stretches(own)) == is_found


def test_a_hiccup_long_before_regular_stalls_is_not_their_beginning() -> None:
    own = job(1000, {})
    own[3, [100, *range(700, 1000, 10)]] *= 2
    ((_, begin, end),) = stretches(own)
    assert (begin, end) == (700, 1000)


def test_steps_that_are_not_half_as_slow_as_the_rest_are_not_of_the_stretch() -> None:
    """A spell of 0.182 (the logarithm of 1.2) begins where the excess is half of that."""
    for factor, begin in ((np.exp(0.093), 100), (np.exp(0.089), 400)):
        own = job(1000, {3: (400, 800, 1.2)})
        own[3, 100:400] = 2 * factor
        assert stretches(own) == [(3, begin, 800)]


def test_a_single_long_step_is_no_stretch() -> None:
    own = job(2000, {3: (500, 501, 50.0)})
    assert stretches(own) == []
    own = job(2000, {3: (500, 1000, 1.2)})
    own[3, 1500] = 200.0
    assert stretches(own) == [(3, 500, 1000)]


def test_a_worker_is_compared_with_the_others_of_its_role() -> None:
    own = job(1000, {1: (300, 700, 1.2)}, count=3)
    alone = np.full((1, 1000), 9.0)
    alone[0, 300:700] = 20.0  # nobody has the same role
    assert stretches(np.vstack([own, alone]), [0, 0, 0, 1]) == [(1, 300, 700)]


def test_half_a_role_that_becomes_slow_together_has_no_spells() -> None:
    own = job(1000, dict.fromkeys((0, 1, 2), (100, 1000, 1.2)))
    findings, found = find_spells(workers(own))
    assert findings.split == (0, 1, 2)
    assert found == ()


def test_stalls_are_numbered_in_the_steps_of_the_recording() -> None:
    own = job(1000, {})
    own[2, 400:900:10] *= 1.5
    _, (found,) = find_spells(workers(own))
    assert set(found.suspect.stalls) <= set(range(400, 900, 10))
    assert len(found.suspect.stalls) >= 40
    assert found.suspect.stall_period == 10


def test_a_spell_ends_with_the_records_of_its_worker() -> None:
    own = job(300, {3: (0, 300, 1.2)})
    own[3, :40] = np.nan
    own[3, 290:] = np.nan
    assert stretches(own) == [(3, 40, 290)]
    own[:] = np.nan
    own[0] = 2.0
    assert stretches(own) == []


@settings(max_examples=25)
@given(
    st.integers(0, 500), st.integers(210, 400), st.floats(1.05, 3.0), st.integers(0, 5),
    st.floats(0.01, 100.0),
)  # fmt: skip
def test_a_fault_anywhere_is_found_in_any_unit(
    begin: int, length: int, factor: float, worker: int, unit: float
) -> None:
    own = unit * job(1000, {worker: (begin, begin + length, factor)})
    assert stretches(own) == [(worker, begin, begin + length)]


def test_columns_are_the_steps_of_the_spell() -> None:
    _, (found,) = find_spells(workers(job(300, {3: (0, 300, 1.2)})))
    part: Spell = replace(found, begin=2, end=4)
    assert part.columns(6).tolist() == [False, False, True, True, False, False]


def test_a_spell_is_over_where_the_recording_goes_on_for_as_long() -> None:
    _, (one,) = find_spells(workers(job(1000, {2: (300, 600, 1.1)})))
    assert (one.is_over(one.end + len(one)), one.is_over(one.end + len(one) - 1)) == (True, False)


def test_a_rank_that_always_has_more_to_do_hides_no_other() -> None:
    """Two of four would be too many to name, but one of them is as it ever was."""
    own = job(400, {0: (0, 400, 1.1), 2: (200, 400, 1.2)}, count=4)
    assert stretches(own) == [(2, 200, 400)]
    own = job(400, {0: (0, 400, 1.1), 2: (250, 400, 1.2)}, count=4)
    assert stretches(own) == [(0, 0, 400), (2, 250, 400)]
    both = job(400, {0: (200, 400, 1.1), 2: (200, 400, 1.2)}, count=4)
    assert stretches(both) == [], "both became slow"


def test_a_stretch_as_noisy_as_the_rest_is_no_change() -> None:
    drawn = np.random.default_rng(5)
    own = job(80, {0: (0, 80, 1.1)}, count=4) * np.exp(0.15 * drawn.standard_normal((4, 80)))
    assert [each for each in stretches(own) if each[0] > 0] == []
