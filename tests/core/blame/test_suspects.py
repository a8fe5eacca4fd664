"""Suspects: a worker is named when its own time exceeds its role's by more than the error."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ingero.core.blame.suspects import Findings, WorkerSteps, judge

Floats = NDArray[np.float64]
SIGMA = 1.4826  # of a normal distribution, per median absolute deviation


def workers(
    own_s: Floats, cohort: Sequence[int] | None = None, period_s: float | Floats = 4.0
) -> WorkerSteps:
    count, steps = own_s.shape
    return WorkerSteps(
        own_s,
        np.broadcast_to(np.asarray(period_s, float), (steps,)),
        np.array([0] * count if cohort is None else cohort, np.intp),
        tuple(range(100, 100 + steps)),
    )


def steady(levels: Sequence[float], steps: int = 102, pace_s: float = 2.0) -> Floats:
    """Return own times that do not change; a level is the logarithm of a worker's factor."""
    return pace_s * np.exp(np.array(levels, float))[:, None] * np.ones(steps)


def names(findings: Findings) -> list[int]:
    return [suspect.worker for suspect in findings.suspects]


def step_error(steps: int, noise: float = 0.01) -> float:
    """Return the standard error of the median of a few steps."""
    return noise / np.sqrt(steps) * (1 + 3 / steps)


def test_a_steady_excess_is_a_share_and_seconds_of_own_time() -> None:
    own = steady([0] * 8, 22)
    own[3] *= 1.1
    findings = judge(workers(own))
    (suspect,) = findings.suspects
    assert (suspect.worker, suspect.peers, suspect.named_share) == (3, 7, 1.0)
    assert (suspect.excess, suspect.excess_s) == (pytest.approx(0.1), pytest.approx(0.2))
    assert suspect.error == pytest.approx(np.hypot(step_error(20), 0.003))
    assert (suspect.confidence, suspect.stall_period, suspect.stalls) == (0.99, None, ())
    assert findings.excess == pytest.approx([0, 0, 0, 0.1, 0, 0, 0, 0])
    assert (findings.split, findings.rivals) == ((), ())


@pytest.mark.parametrize(("level", "is_named"), [(0.0149, False), (0.0151, True)])
def test_an_excess_below_the_least_effect_names_nobody(level: float, is_named: bool) -> None:
    assert names(judge(workers(steady([0, 0, level, 0, 0, 0, 0, 0])))) == [2] * is_named


@pytest.mark.parametrize(
    ("healthy", "level", "is_named"),
    [
        # Deviations have a median of 0.012: four sigmas are 0.0712.
        (np.linspace(-0.02, 0.02, 11), 0.0705, False),
        (np.linspace(-0.02, 0.02, 11), 0.0718, True),
        # Six workers are enough for four sigmas; deviations of 0.008 make 0.0474.
        ([-0.008, -0.008, 0, 0.008, 0.008], 0.0465, False),
        ([-0.008, -0.008, 0, 0.008, 0.008], 0.0485, True),
        # The spread of five workers is poorly known: it takes five sigmas, 0.0445.
        ([-0.006, 0, 0, 0.006], 0.0435, False),
        ([-0.006, 0, 0, 0.006], 0.0455, True),
    ],
)
def test_the_excess_must_stand_out_from_the_spread_of_the_others(
    healthy: Sequence[float], level: float, is_named: bool
) -> None:
    slow = len(healthy)
    assert names(judge(workers(steady([*healthy, level])))) == [slow] * is_named


@pytest.mark.parametrize(("level", "is_named"), [(0.0455, False), (0.0470, True)])
def test_few_steps_name_only_large_excesses(level: float, is_named: bool) -> None:
    """Four standard errors of three steps are 0.0462."""
    assert names(judge(workers(steady([0, 0, level, 0, 0, 0, 0, 0], 3)))) == [2] * is_named


SINGLE_WAVE = 1 + 2 * sum((100 - 3 * distance) / 100 for distance in range(1, 34))


def wave(pattern: Sequence[float], steps: int) -> Floats:
    """Return logarithms that repeat a pattern in all steps behind the warm-up."""
    return np.concatenate(([0.0, 0.0], np.resize(pattern, steps)))


@pytest.mark.parametrize(
    ("pattern", "alike"),
    [
        pytest.param([1, -1], 1.0, id="alternating steps do not make the median more certain"),
        pytest.param([1, 1, -1, -1], 1 + 2 * 0.01, id="independent"),
        pytest.param([1] * 5 + [-1] * 5, 1 + 2 * (0.61 + 0.22 - 0.17), id="slow waves"),
        pytest.param([1] * 50 + [-1] * 50, SINGLE_WAVE, id="a single wave"),
    ],
)
def test_the_error_considers_noise_and_how_long_steps_are_alike(
    pattern: Sequence[float], alike: float
) -> None:
    """`alike` is one and twice the correlations, until two in a row are below zero together."""
    steps, height = 100, 0.02
    own = steady([0] * 8)
    own[3] *= np.exp(height * wave(pattern, steps))
    noise = 1.2533 * SIGMA * height * np.sqrt(alike)
    expected = np.hypot(step_error(steps, noise), 0.003)
    assert judge(workers(own)).error[3] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("level", "is_named"), [(0.037, False), (0.040, True)])
def test_a_noisy_worker_must_exceed_four_errors_of_its_own(level: float, is_named: bool) -> None:
    """Its steps scatter by 0.05: 1.2533 · 1.4826 · 0.05 / √100 · 1.03 · 4 = 0.0383."""
    own = steady([0, 0, 0, level, 0, 0, 0, 0])
    own[3] *= np.exp(0.05 * wave([1, -1], 100))
    assert names(judge(workers(own))) == [3] * is_named


def test_workers_are_compared_within_their_role() -> None:
    own = np.vstack([steady([0, 0, 0.1, 0]), steady([1, 1, 1, 1.2])])
    findings = judge(workers(own, [0, 0, 0, 0, 1, 1, 1, 1]))
    assert names(findings) == [7, 2]  # the slowest first
    assert [suspect.peers for suspect in findings.suspects] == [3, 3]
    assert findings.excess == pytest.approx(np.expm1([0, 0, 0.1, 0, 0, 0, 0, 0.2]))


def test_of_two_workers_the_faster_one_shows_the_pace_with_less_confidence() -> None:
    for slow in (0, 1):
        own = steady([0, 0])
        own[slow] *= 1.2
        (suspect,) = judge(workers(own)).suspects
        assert (suspect.worker, suspect.peers, suspect.confidence) == (slow, 1, 0.7)
        assert suspect.excess == pytest.approx(0.2)


def test_with_two_peers_the_confidence_is_whole() -> None:
    (suspect,) = judge(workers(steady([0, 0.2, 0]))).suspects
    assert (suspect.peers, suspect.confidence) == (2, 0.99)


@pytest.mark.parametrize(
    ("level", "confidence"), [(0.0155, 0.81), (0.02, 0.9), (0.03, 0.98), (0.05, 0.99)]
)
def test_confidence_rises_with_the_excess_in_errors(level: float, confidence: float) -> None:
    """The error is 0.0032: half of the confidence is tanh((4.9 - 2) / 4) for the first one."""
    (suspect,) = judge(workers(steady([0] * 9 + [level]))).suspects
    assert suspect.confidence == confidence


def test_confidence_falls_where_single_steps_do_not_show_the_excess() -> None:
    """In 40 of 100 steps it is as fast as the others, and another worker is the slowest."""
    own = steady([0] * 8)
    own[3, 2:] *= np.exp(np.resize([0.3, 0.3, 0.3, 0, 0], 100))
    own[5, 2:] *= np.exp(np.resize([0, 0, 0, 0.01, 0.01], 100))
    (suspect,) = judge(workers(own)).suspects
    assert (suspect.worker, suspect.named_share) == (3, pytest.approx(0.6))
    assert suspect.confidence == pytest.approx(0.6 + 0.4 * 0.6, abs=0.01)


@pytest.mark.parametrize(
    ("slow", "members", "is_split"),
    [(2, 4, True), (2, 5, False), (2, 6, False), (3, 6, True), (3, 7, True), (1, 3, False)],
)
def test_a_large_part_of_a_role_that_is_slow_together_is_not_blamed_one_by_one(
    slow: int, members: int, is_split: bool
) -> None:
    findings = judge(workers(steady([0] * (members - slow) + [0.2] * slow)))
    those = list(range(members - slow, members))
    assert (sorted(names(findings)), list(findings.split)) == (
        ([], those) if is_split else (those, [])
    )


def test_only_workers_with_a_similar_excess_are_a_slow_part() -> None:
    """Beside a worker three times as slow, a slower one is not half of a slow group."""
    for level, is_split in ((0.34 * 0.3, True), (0.32 * 0.3, False)):
        findings = judge(workers(steady([0, 0, 0.3, level])))
        assert (findings.split == (2, 3)) == is_split
        assert names(findings) == ([] if is_split else [2, 3])


def test_a_spread_that_comes_from_a_slow_group_hides_nobody() -> None:
    """Five of twelve are slow: the spread of the faster half counts."""
    levels = [-0.002, -0.001, 0, 0, 0.001, 0.002, 0.001, 0.2, 0.2, 0.2, 0.2, 0.2]
    assert judge(workers(steady(levels))).split == (7, 8, 9, 10, 11)


def stalling(every: int, steps: int = 102, height: float = 0.3) -> Floats:
    own = steady([0] * 8, steps)
    own[4, 2 + every - 1 :: every] *= np.exp(height)
    return own


def test_stalls_name_worker_period_and_steps() -> None:
    (suspect,) = judge(workers(stalling(10))).suspects
    assert (suspect.worker, suspect.stall_period) == (4, 10)
    assert suspect.stalls == tuple(range(11, 102, 10))
    assert suspect.excess == pytest.approx(np.expm1(0.3))
    assert suspect.excess_s == pytest.approx(2 * np.expm1(0.3))
    assert suspect.named_share == 1.0


def with_stalls(counts: dict[int, int], height: float = 0.3, workers_count: int = 8) -> Floats:
    """Return own times in which each worker stalls so often, each step at most once."""
    own, at = steady([0] * workers_count, 202), 2
    for worker, count in counts.items():
        for _ in range(count):
            own[worker, at] *= np.exp(height)
            at += 3
    return own


@pytest.mark.parametrize(
    ("mine", "others", "is_named"),
    [(2, 0, False), (3, 0, True), (5, 1, False), (6, 1, True), (8, 2, False), (9, 2, True)],
)
def test_a_worker_must_stall_far_more_often_than_the_others(
    mine: int, others: int, is_named: bool
) -> None:
    own = with_stalls({w: mine if w == 6 else others for w in range(8)})
    assert names(judge(workers(own))) == [6] * is_named


@pytest.mark.parametrize(("height", "is_named"), [(0.079, False), (0.081, True)])
def test_a_small_hiccup_is_no_stall(height: float, is_named: bool) -> None:
    assert names(judge(workers(with_stalls({6: 5}, height)))) == [6] * is_named


@pytest.mark.parametrize(("height", "is_named"), [(0.145, False), (0.151, True)])
def test_a_stall_stands_out_from_the_noise_of_its_worker(height: float, is_named: bool) -> None:
    """Steps scatter by 0.02, so five sigmas are 0.148."""
    own = steady([0] * 8, 202)
    own[6] *= np.exp(0.02 * wave([1, -1], 200))
    own[6, [12, 52, 92, 132, 172]] = 2 * np.exp(height)
    assert names(judge(workers(own))) == [6] * is_named


@pytest.mark.parametrize(("together", "is_named"), [(3, True), (4, False)])
def test_steps_in_which_many_workers_stall_are_nobodys(together: int, is_named: bool) -> None:
    """Of ten workers, four are too many; the others stall nowhere else."""
    own = steady([0] * 10, 102)
    own[:together, 10:80:10] *= 1.3
    own[0, 15:85:10] *= 1.3 if together == 3 else 1.0
    assert (0 in names(judge(workers(own)))) == is_named


def test_a_worker_that_is_slow_throughout_has_no_stalls() -> None:
    own = stalling(10)
    own[4] *= 1.2
    (suspect,) = judge(workers(own)).suspects
    assert (suspect.worker, suspect.stalls, suspect.stall_period) == (4, (), None)
    assert suspect.excess == pytest.approx(0.2)


def test_the_loss_to_whoever_is_slowest_and_how_evenly_that_rotates() -> None:
    """In each step one of four workers takes 10 % of 2 s longer; a step lasts 4 s."""
    for turn, rotation in (([0, 1, 2, 3], 1.0), ([0, 1], 0.5), ([0, 1, 2, 3, 0, 1, 2, 0], 0.953)):
        own = steady([0] * 4, 42)
        own[np.resize(turn, 42), np.arange(42)] *= 1.1
        findings = judge(workers(own, period_s=4.0))
        assert findings.suspects == ()
        assert findings.rotating_loss == pytest.approx(0.2 / 4.0)
        assert findings.rotation == pytest.approx(rotation, abs=0.002)


def test_named_workers_take_no_part_in_the_rotation() -> None:
    own = steady([0] * 6, 42)
    own[5] *= 1.5
    own[np.resize([0, 1, 2, 3, 4], 42), np.arange(42)] *= 1.05
    findings = judge(workers(own))
    assert names(findings) == [5]
    assert findings.rotating_loss == pytest.approx(0.1 / 4)
    assert findings.rotation == pytest.approx(1.0)
    two = judge(workers(steady([0, 0.3])))
    assert (two.rotating_loss, two.rotation) == (0.0, 0.0)


def test_without_step_lengths_no_loss_is_known() -> None:
    findings = judge(workers(steady([0] * 4), period_s=np.full(102, np.nan)))
    assert findings.rotating_loss == 0.0


@pytest.mark.parametrize(("level", "rivals"), [(0.0105, ()), (0.0125, (5,))])
def test_rivals_are_within_two_errors_of_the_weakest_suspect(
    level: float, rivals: tuple[int, ...]
) -> None:
    """The error of 100 steps is 0.0032: 0.0175 may be as little as 0.0112."""
    findings = judge(workers(steady([0, 0, 0.0175, 0.3, 0, level, 0, 0])))
    assert (names(findings), findings.rivals) == ([3, 2], rivals)


def test_a_rival_must_itself_exceed_two_errors() -> None:
    findings = judge(workers(steady([0, 0, 0.0155, 0, 0, 0.005, 0.0075, 0, 0, 0], 22)))
    assert (names(findings), findings.rivals) == ([2], ())


def test_stalls_have_no_rivals() -> None:
    assert judge(workers(stalling(10))).rivals == ()


@pytest.mark.parametrize(("steps", "used"), [(9, 9), (10, 8), (12, 10)])
def test_the_first_two_of_at_least_ten_steps_are_warm_up(steps: int, used: int) -> None:
    own = steady([0] * 8, steps)
    assert judge(workers(own)).error == pytest.approx(np.hypot(step_error(used), 0.003))
    own[3, :2] *= 5
    assert names(judge(workers(own))) == []


def test_steps_of_the_warm_up_are_counted_in_the_numbers_of_stalls() -> None:
    own = steady([0] * 8, 40)
    own[1, 9::10] *= 1.5
    (suspect,) = judge(workers(own)).suspects
    assert suspect.stalls == (9, 19, 29, 39)


def test_workers_without_records_are_neither_named_nor_in_the_way() -> None:
    own = steady([0] * 8)
    own[3] *= 1.1
    own[0] = np.nan
    own[1, 50:] = np.nan
    own[3, 80:] = np.nan
    findings = judge(workers(own))
    assert names(findings) == [3]
    assert np.isnan(findings.excess[0])
    assert findings.excess[1:] == pytest.approx([0, 0, 0.1, 0, 0, 0, 0])
    assert findings.error[1] == pytest.approx(np.hypot(step_error(48), 0.003))


def test_a_reference_is_known_where_one_member_of_a_role_left_records() -> None:
    own = steady([0, 0.1, 0, 0])
    own[[0, 2, 3], 60:] = np.nan
    assert names(judge(workers(own))) == [1]


levels = st.lists(st.floats(-0.3, 0.3), min_size=3, max_size=9)


@given(levels, st.integers(0, 2**32 - 1))
def test_the_order_of_workers_and_the_unit_of_time_do_not_matter(
    given_levels: list[float], seed: int
) -> None:
    """A permutation of the workers permutes the findings; times ten is the same excess."""
    rng = np.random.default_rng(seed)
    own = steady(given_levels, 30) * np.exp(rng.normal(0, 0.01, (len(given_levels), 30)))
    order = rng.permutation(len(own))
    first = judge(workers(own))
    second = judge(workers(10 * own[order], period_s=40.0))
    assert [order[name] for name in names(second)] == names(first)
    assert second.excess == pytest.approx(first.excess[order], abs=1e-9)
    assert second.error == pytest.approx(first.error[order], abs=1e-9)
    assert {int(order[w]) for w in second.split} == set(first.split)
    assert {int(order[w]) for w in second.rivals} == set(first.rivals)
    assert [s.excess_s for s in second.suspects] == pytest.approx(
        [10 * s.excess_s for s in first.suspects]
    )
    assert second.rotating_loss == pytest.approx(first.rotating_loss)
    assert all(0 <= suspect.confidence <= 0.99 for suspect in first.suspects)


@given(levels)
def test_a_named_worker_is_slower_than_most_of_its_role(given_levels: list[float]) -> None:
    findings = judge(workers(steady(given_levels, 30)))
    for name in [*names(findings), *findings.split]:
        assert given_levels[name] > np.median(given_levels) - 1e-9
