"""The channels of one member: lasting slowness, stalls, and what the job waits for it alone."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from ingero.core.verdict import advance_channel as advance
from ingero.core.verdict import fast_channel as fast
from ingero.core.verdict import stall_channel as stall
from ingero.core.verdict.own_times import make_batch
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import (
    ADVANCE,
    FAST,
    ONSETS,
    RECENT_HISTORY,
    STRAGGLER,
    SUSPECT,
    CohortRows,
    MemberRows,
)

Floats = NDArray[np.float64]


def table(members: int = 4) -> tuple[MemberRows, CohortRows]:
    """Return members of one cohort with a scale of 0.01, k of 0.5 and a limit of 10."""
    rows, cohorts = MemberRows(), CohortRows()
    cohorts.append()
    cohorts.append()
    cohorts.frames_per_sample[:] = 1
    for _ in range(members):
        rows.append()
    rows.cohort[:members] = 1
    rows.scale[:members], rows.k[:members], rows.limit[:members] = 0.01, 0.5, 10.0
    rows.baseline_samples[:members] = 60
    return rows, cohorts


def feed(rows: MemberRows, cohorts: CohortRows, residuals: Sequence[float], at: int = 0) -> None:
    for residual in residuals:
        fast.update_fast(rows, cohorts, np.array([at]), np.array([residual]))
        rows.samples[at] += 1
        cohorts.step_samples[1] += 1
        cohorts.frames[1] += 2


def test_the_channel_adds_up_scales_beyond_its_allowance() -> None:
    rows, cohorts = table()
    rows.bias[0] = 0.02
    feed(rows, cohorts, [0.03, 0.045])
    assert rows.cusum[0] == pytest.approx((1 - 0.5) + (2.5 - 0.5))
    feed(rows, cohorts, [0.02])
    assert rows.cusum[0] == pytest.approx(2.0)


def test_one_sample_counts_for_at_most_four_scales_and_the_channel_has_bounds() -> None:
    rows, cohorts = table()
    feed(rows, cohorts, [5.0])
    assert rows.cusum[0] == pytest.approx(3.5)
    feed(rows, cohorts, [5.0] * 10)
    assert rows.cusum[0] == pytest.approx(16.0)  # 1.6 limits
    feed(rows, cohorts, [-5.0])
    assert rows.cusum[0] == pytest.approx(11.5)
    feed(rows, cohorts, [-5.0] * 10)
    assert rows.cusum[0] == 0.0


def test_where_the_channel_left_zero_is_remembered() -> None:
    rows, cohorts = table()
    feed(rows, cohorts, [0.0, 0.0, 0.03, 0.03])
    assert (rows.rose_at[0], rows.rose_frame[0]) == (1, 2)


def test_rises_are_one_bit_per_sample() -> None:
    rows, cohorts = table()
    feed(rows, cohorts, [0.0, 0.03, 0.005, 0.006])
    assert int(rows.rises[0]) == 0b0101  # a sample of exactly k is no rise


def test_the_effect_is_a_median_and_a_plain_one_needs_all_but_one() -> None:
    rows, cohorts = table()
    everyone = np.array([0, 1])
    feed(rows, cohorts, [0.01, 0.05, 0.02, 0.03])
    assert fast.recent_effect(rows, everyone).tolist() == [-np.inf, -np.inf]
    assert fast.plain_effect(rows, everyone).tolist() == [-np.inf, -np.inf]
    feed(rows, cohorts, [0.04])
    assert fast.recent_effect(rows, everyone)[0] == pytest.approx(0.03)
    assert fast.plain_effect(rows, everyone)[0] == pytest.approx(0.02)
    feed(rows, cohorts, [0.06])  # replaces the oldest of five
    assert fast.recent_effect(rows, everyone)[0] == pytest.approx(0.04)


def test_the_margin_of_error_is_two_standard_errors_of_five_samples() -> None:
    rows, _ = table()
    rows.correlation[:3] = [0.0, 0.6, 0.99]
    margin = fast.margin_of_error(rows, np.array([0, 1, 2]))
    plain = 2 * 0.01 / np.sqrt(5)
    assert margin == pytest.approx([plain, 2 * plain, np.sqrt(19) * plain])


def test_far_samples_are_counted_when_their_run_ends() -> None:
    rows, cohorts = table()
    feed(rows, cohorts, [0.04, 0.05, 0.04])
    assert (rows.far_run[0], rows.far[0]) == (3, 0)
    feed(rows, cohorts, [0.039])
    assert (rows.far_run[0], rows.far[0], rows.far_again[0]) == (0, 3, 2)
    rows.state[0] = STRAGGLER
    feed(rows, cohorts, [0.05, 0.0])
    assert (rows.far_run[0], rows.far[0], rows.far_again[0]) == (0, 3, 2)
    rows.state[0] = SUSPECT
    feed(rows, cohorts, [0.05, 0.0])
    assert (rows.far[0], rows.far_again[0]) == (4, 2)


def test_a_slowdown_must_last_longer_than_hiccups_of_the_peers() -> None:
    """Peers had 9 far samples in 999, two of which followed another one."""
    rows, _ = table()
    rows.samples[:4], rows.far[:4], rows.far_again[:4] = 333, 3.0, 1.0
    rows.samples[0], rows.far[0], rows.far_again[0] = 10**6, 500.0, 400.0  # its own do not count
    between = np.full(4, 1e4)
    begin, go_on = 10 / 1000, 3.5 / 14
    expected = np.ceil(1 + np.log(begin * 1e4) / -np.log(go_on))
    assert fast.lasting_samples(rows, between)[0] == expected == 5
    assert fast.lasting_samples(rows, np.full(4, 1.0))[0] == 1
    assert fast.lasting_samples(rows, np.full(4, 1e300))[0] == 28
    rows.is_uneven[0] = True
    assert fast.lasting_samples(rows, between)[0] == 16


@pytest.mark.parametrize(
    ("rises", "lasts"),
    [
        ([1] * 5, True),
        ([1] * 4, False),
        ([1, 1, 1, 1, 1, 0], False),  # the window is as long as what is needed
        ([1, 1, 0, 1, 1, 1], False),
    ],
)
def test_the_channel_must_rise_in_nearly_every_sample(rises: list[int], lasts: bool) -> None:
    rows, _ = table()
    rows.samples[:4], rows.far[:4], rows.far_again[:4] = 333, 3.0, 1.0
    rows.rises[0] = int("".join(map(str, rises)), 2)
    assert bool(fast.is_persistent(rows, np.full(4, 1e4))[0]) == lasts


def test_of_a_long_slowdown_one_sample_in_seven_may_be_low() -> None:
    rows, _ = table()
    rows.is_uneven[0] = True  # 16 of the last 18
    for missing, lasts in ((2, True), (3, False)):
        rows.rises[0] = 2**32 - 1 - (2**missing - 1) * 16
        assert bool(fast.is_persistent(rows, np.full(4, 1e4))[0]) == lasts


def test_a_hiccup_after_samples_that_are_slow_by_chance_does_not_last() -> None:
    """Both raise the channel each time; only a slow node is about as slow each time."""
    slow = [0.040, 0.052, 0.047, 0.039, 0.050, 0.029, 0.044, 0.048]
    by_chance = [0.018, 0.022, 0.030, 0.018, 0.022, 0.050, 0.053, 0.049]
    for excess, lasts in ((slow, True), (by_chance, False), ([0.02] * 10 + by_chance, True)):
        rows, cohorts = table()
        rows.far[1:4] = 0.0
        rows.samples[:4] = 400
        for value in excess:
            rows.latest[0, rows.samples[0] % RECENT_HISTORY] = value
            feed(rows, cohorts, [value])
        rows.state[0] = SUSPECT
        assert fast.lasting_samples(rows, np.full(4, 1.8e7))[0] == 6
        assert bool(fast.is_persistent(rows, np.full(4, 1.8e7))[0]) == lasts


def steps(
    rows: MemberRows,
    cohorts: CohortRows,
    excess: Sequence[Sequence[float]],
    first: int = 100,
    span_s: float = np.nan,
) -> None:
    """Feed steps of all members."""
    members = np.arange(rows.size)
    for number, row in enumerate(excess, first):
        stall.update_stalls(
            rows, cohorts, members, np.array(row), np.full(len(row), number, np.int64),
            np.full(len(row), span_s),
        )  # fmt: skip


@pytest.mark.parametrize(("excess", "count"), [(0.079, 0), (0.081, 1)])
def test_a_stall_adds_at_least_eight_percent(excess: float, count: int) -> None:
    rows, cohorts = table()
    steps(rows, cohorts, [[excess, 0, 0, 0]])
    assert rows.onset_count[0] == count


@pytest.mark.parametrize(
    ("span_s", "noise", "count"),
    [
        (2.0, 0.01, 1), (1.16, 0.01, 1), (1.14, 0.01, 0), (np.nan, 0.01, 0),
        (1.31, 0.05, 1), (1.29, 0.05, 0),  # steps vary by 5 %, and one of four by 10 %
        (2.0, np.nan, 0),  # how much steps vary is not known yet
    ],
)  # fmt: skip
def test_less_shows_who_stalls_where_the_step_of_the_job_is_too_long(
    span_s: float, noise: float, count: int
) -> None:
    """Own times of single steps vary by 10 %; 35 % are three and a half scales, 25 % are not."""
    for excess in (0.35, 0.25):
        rows, cohorts = table()
        rows.scale[:4], cohorts.frames_per_sample[1] = 0.05, 4
        cohorts.step_base[1], cohorts.step_noise[1] = 0.0, noise
        steps(rows, cohorts, [[excess, excess - 0.01, 0, 0]], span_s=span_s)
        assert rows.onset_count[:4].tolist() == [count if excess > 0.3 else 0, 0, 0, 0]


def test_a_stall_stands_out_from_the_noise_of_a_single_step() -> None:
    """Five scales of 0.02 in samples of four steps are 0.2 in one step."""
    rows, cohorts = table()
    rows.scale[:4] = 0.02
    cohorts.frames_per_sample[1] = 4
    steps(rows, cohorts, [[0.199, 0, 0, 0], [0.0] * 4, [0.201, 0, 0, 0]])
    assert rows.onset_count[0] == 1


def test_a_stall_of_several_steps_counts_once_until_it_is_over() -> None:
    rows, cohorts = table()
    high, middle, low = [0.2, 0, 0, 0], [0.041, 0, 0, 0], [0.039, 0, 0, 0]
    steps(rows, cohorts, [high, middle, high, middle])
    assert (rows.onset_count[0], bool(rows.is_stalled[0])) == (1, True)
    steps(rows, cohorts, [low, high])
    assert rows.onset_count[0] == 2
    assert rows.onsets[0][:2].tolist() == [100, 101]
    assert rows.stall_size[0] == pytest.approx(0.2)


def test_the_size_of_a_stall_is_a_mean_of_the_last_ones() -> None:
    rows, cohorts = table()
    steps(rows, cohorts, [[0.2, 0, 0, 0], [0.0] * 4, [0.4, 0, 0, 0]])
    assert rows.stall_size[0] == pytest.approx(0.3)


def test_stalls_raise_the_channel_and_calm_steps_lower_it() -> None:
    """A stall is ten times as likely with a fault, and 0.4 % of steps may stall without one."""
    rows, cohorts = table()
    steps(rows, cohorts, [[0.0] * 4] * 1000)
    steps(rows, cohorts, [[0.2, 0, 0, 0]])
    assert rows.stall_cusum[0] == pytest.approx(np.log(10))
    assert rows.stall_cusum[1] == 0.0
    steps(rows, cohorts, [[0.0] * 4] * 3)
    assert rows.stall_cusum[0] == pytest.approx(np.log(10) + 3 * np.log(0.96 / 0.996))
    steps(rows, cohorts, [[0.2, 0, 0, 0], [0.0] * 4] * 20)
    assert rows.stall_cusum[0] == pytest.approx(1.6 * 9.0, abs=0.5)
    assert rows.stall_cusum[0] <= 1.6 * 9.0


@pytest.mark.parametrize(
    ("stalls", "typical"),
    [
        ([1, 0, 0, 0], 0.25),
        ([8, 8, 8, 8], 8.25),
        ([8, 40, 0, 0], 40 / 6 + 0.25),  # half the mean of the others, not their median
    ],
)
def test_where_peers_stall_as_often_calm_steps_weigh_more(
    stalls: list[int], typical: float
) -> None:
    """Of twice what a peer has had follows the rate that nobody is blamed for, up to 9 %."""
    rows, cohorts = table()
    rows.onset_count[:4] = stalls
    rows.stall_steps[:4] = 499
    rows.stall_cusum[:4] = 9.0
    steps(rows, cohorts, [[0.0] * 4])
    rate = np.clip(2 * typical / 500, 0.004, 0.09)
    faulty = max(min(10 * rate, 0.08), 3 * rate)  # ten times as often, or 8 %, or three times
    assert rows.stall_cusum[0] == pytest.approx(9.0 + np.log((1 - faulty) / (1 - rate)))


def test_recent_stalls_are_weighted_by_age() -> None:
    rows, cohorts = table()
    steps(rows, cohorts, [[0.2, 0, 0, 0], [0.0] * 4, [0.0] * 4])
    assert rows.recent_stalls[0] == pytest.approx(0.995**2)
    assert rows.recent_steps[0] == pytest.approx(1 + 0.995 + 0.995**2)
    assert rows.stall_steps[0] == 3


@pytest.mark.parametrize(
    ("mine", "theirs", "is_more"),
    [(4.9, 0.0, False), (5.0, 0.0, True), (8.0, 8.0, False), (20.0, 4.0, False), (21.0, 4.0, True)],
)
def test_a_member_must_stall_more_often_than_its_peers_by_more_than_chance(
    mine: float, theirs: float, is_more: bool
) -> None:
    rows, _ = table(5)
    rows.recent_steps[:5] = 200.0
    rows.recent_stalls[:5] = theirs
    rows.recent_stalls[0] = mine
    found = stall.stalls_more_than_peers(rows)
    assert bool(found[0]) == is_more
    assert not found[1:].any()


@pytest.mark.parametrize(
    ("onsets", "period"),
    [
        ([100, 110, 120, 130], 10),
        ([100, 110, 120], None),
        ([100, 110, 130, 140, 150], 10),  # one was missed
        ([100, 112, 120, 131], 11),
        ([100, 107, 125, 129, 150], None),
        ([100, 101, 102, 103], None),
        ([100, 102, 104, 106], 2),
        (list(range(0, 10 * ONSETS + 20, 10)), 10),
    ],
)
def test_the_period_is_that_of_regular_stalls(onsets: list[int], period: int | None) -> None:
    rows, _ = table()
    for number, step in enumerate(onsets):
        rows.onsets[0, number % ONSETS] = step
    rows.onset_count[0] = len(onsets)
    assert stall.stall_period(rows, 0) == period


def wait(
    rows: MemberRows, cohorts: CohortRows, shares: Sequence[Floats], first: float = 20.0
) -> None:
    """Feed samples of advances, as shares of steps of 2 s."""
    members = np.arange(rows.size)
    for share in shares:
        batch = make_batch(
            members, np.ones(rows.size), np.zeros(rows.size, np.int64),
            span_s=np.full(rows.size, 2.0), advance_s=2.0 * np.asarray(share, float),
            start_late_s=np.full(rows.size, 0.3), enqueue_late_s=np.full(rows.size, 0.1),
        )  # fmt: skip
        advance.keep_advances(rows, cohorts, batch)
        advance.close_advances(rows, cohorts, members, VerdictPolicy(), np.full(rows.size, first))


def calm_waits(count: int, members: int = 4, seed: int = 1) -> list[Floats]:
    return list(np.random.default_rng(seed).exponential(0.004, (count, members)))


def test_a_baseline_of_advances_is_learned_after_the_first_samples() -> None:
    rows, cohorts = table()
    wait(rows, cohorts, calm_waits(19))
    assert rows.advance_learned[0] == 0
    wait(rows, cohorts, calm_waits(1, seed=2))
    assert rows.advance_learned[:4].tolist() == [20] * 4
    assert rows.advance_bias[:4] == pytest.approx(0.004, abs=0.003)
    assert (rows.advance_scale[:4] > 0.001).all()
    assert (rows.advance_limit[:4] > 1).all()
    wait(rows, cohorts, calm_waits(25, seed=3))
    assert (rows.advance_learned[:4] >= 40).all()


def test_the_job_waits_for_one_member_and_its_channel_rises() -> None:
    rows, cohorts = table()
    wait(rows, cohorts, calm_waits(60))
    learned = rows.advance_samples[2]
    wait(rows, cohorts, [np.array([0, 0, 0.2, 0])] * 8)
    assert rows.advance_cusum[2] > rows.advance_limit[2]
    assert rows.advance_samples[2] == learned  # a slowdown is not learned
    effect = advance.advance_effect(rows, np.arange(4))
    assert effect[2] == pytest.approx(0.2 - rows.advance_bias[2])
    assert (effect[[0, 1, 3]] < 0.01).all()
    assert int(rows.advance_rises[2]) & 0xFF == 0xFF


def test_an_effect_is_unknown_before_five_samples() -> None:
    rows, cohorts = table()
    wait(rows, cohorts, calm_waits(20))
    wait(rows, cohorts, calm_waits(4, seed=5))
    assert advance.advance_effect(rows, np.array([0]))[0] == -np.inf
    wait(rows, cohorts, calm_waits(1, seed=6))
    assert np.isfinite(advance.advance_effect(rows, np.array([0]))[0])


def test_how_late_host_and_gpu_were_is_kept_for_each_step() -> None:
    rows, cohorts = table()
    wait(rows, cohorts, calm_waits(3))
    assert rows.late_frames[:4].tolist() == [3] * 4
    assert rows.start_late_s[0, :3].tolist() == [0.3] * 3
    assert rows.enqueue_late_s[0, :3].tolist() == [0.1] * 3
    assert np.isnan(rows.start_late_s[0, 3])


def test_steps_of_unknown_length_are_left_out() -> None:
    rows, cohorts = table()
    batch = make_batch(
        np.arange(3), np.ones(3), span_s=np.array([np.nan, 0.0, 2.0]),
        advance_s=np.array([1.0, 1.0, np.nan]),
    )  # fmt: skip
    advance.keep_advances(rows, cohorts, batch)
    assert rows.advance_count[:3].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("rises", "waited", "effect", "is_found"),
    [
        (0b1111111, 0.1, 0.1, True),
        (0b1111101, 0.1, 0.1, True),
        (0b1111001, 0.1, 0.1, False),  # six of the last seven
        (0b1111111, 0.0149, 0.1, False),  # the gate
        (0b1111111, 0.0151, 0.1, True),
        (0b1111111, 0.1, 0.058, False),  # 0.3 of 0.1 · 2 s must be explained by 1 s of own time
        (0b1111111, 0.1, 0.059, True),
        (0b1111111, 0.1, -0.1, False),
    ],
)
def test_the_job_must_have_waited_for_long_and_own_time_must_have_grown(
    rises: int, waited: float, effect: float, is_found: bool
) -> None:
    rows, _ = table()
    rows.channel[:4] = ADVANCE
    rows.channel[1] = FAST
    rows.advance_rises[:4] = rises
    rows.advance_recent[:4] = waited
    rows.baseline_log_own[:4] = 0.0
    rows.span_s[:4] = 2.0
    found = advance.has_advance(rows, np.full(4, effect), VerdictPolicy())
    assert found.tolist() == [is_found, False, is_found, is_found]


def test_each_channel_remembers_where_it_left_zero() -> None:
    rows, cohorts = table()
    wait(rows, cohorts, calm_waits(60))
    cohorts.step_samples[1] = 70
    wait(rows, cohorts, [np.zeros(4)] * 10)
    assert rows.advance_rose_at[2] == 70
    cohorts.step_samples[1] = 80
    wait(rows, cohorts, [np.array([0, 0, 0.2, 0])] * 3)
    assert rows.advance_rose_at[2] == 70
    assert rows.advance_rose_at[0] == 80
    steps(rows, cohorts, [[0.0] * 4] * 500)
    steps(rows, cohorts, [[0.2, 0, 0, 0]])
    cohorts.step_samples[1] = 90
    steps(rows, cohorts, [[0.0] * 4])
    assert rows.stall_rose_at[:2].tolist() == [80, 90]
