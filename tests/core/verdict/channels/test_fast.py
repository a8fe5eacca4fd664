"""The channel of lasting slowness: when it rises, how large the effect is, and when it lasts."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.support.member_tables import member_table

from ingero.core.verdict.channels import fast
from ingero.core.verdict.table import (
    RECENT_HISTORY,
    STRAGGLER,
    SUSPECT,
    CohortRows,
    MemberRows,
)


def feed(rows: MemberRows, cohorts: CohortRows, residuals: Sequence[float], at: int = 0) -> None:
    for residual in residuals:
        fast.update_fast(rows, cohorts, np.array([at]), np.array([residual]))
        rows.samples[at] += 1
        cohorts.step_samples[1] += 1
        cohorts.frames[1] += 2


def test_the_channel_adds_up_scales_beyond_its_allowance() -> None:
    rows, cohorts = member_table()
    rows.bias[0] = 0.02
    feed(rows, cohorts, [0.03, 0.045])
    assert rows.cusum[0] == pytest.approx((1 - 0.5) + (2.5 - 0.5))
    feed(rows, cohorts, [0.02])
    assert rows.cusum[0] == pytest.approx(2.0)


def test_one_sample_counts_for_at_most_four_scales_and_the_channel_has_bounds() -> None:
    rows, cohorts = member_table()
    feed(rows, cohorts, [5.0])
    assert rows.cusum[0] == pytest.approx(3.5)
    feed(rows, cohorts, [5.0] * 10)
    assert rows.cusum[0] == pytest.approx(16.0)  # 1.6 limits
    feed(rows, cohorts, [-5.0])
    assert rows.cusum[0] == pytest.approx(11.5)
    feed(rows, cohorts, [-5.0] * 10)
    assert rows.cusum[0] == 0.0


def test_where_the_channel_left_zero_is_remembered() -> None:
    rows, cohorts = member_table()
    feed(rows, cohorts, [0.0, 0.0, 0.03, 0.03])
    assert (rows.rose_at[0], rows.rose_frame[0]) == (1, 2)


def test_rises_are_one_bit_per_sample() -> None:
    rows, cohorts = member_table()
    feed(rows, cohorts, [0.0, 0.03, 0.005, 0.006])
    assert int(rows.rises[0]) == 0b0101  # a sample of exactly k is no rise


def test_the_effect_is_a_median_and_a_plain_one_needs_all_but_one() -> None:
    rows, cohorts = member_table()
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
    rows, _ = member_table()
    rows.correlation[:3] = [0.0, 0.6, 0.99]
    margin = fast.margin_of_error(rows, np.array([0, 1, 2]))
    plain = 2 * 0.01 / np.sqrt(5)
    assert margin == pytest.approx([plain, 2 * plain, np.sqrt(19) * plain])


def test_far_samples_are_counted_when_their_run_ends() -> None:
    rows, cohorts = member_table()
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
    rows, _ = member_table()
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
    rows, _ = member_table()
    rows.samples[:4], rows.far[:4], rows.far_again[:4] = 333, 3.0, 1.0
    rows.rises[0] = int("".join(map(str, rises)), 2)
    assert bool(fast.is_persistent(rows, np.full(4, 1e4))[0]) == lasts


def test_of_a_long_slowdown_one_sample_in_seven_may_be_low() -> None:
    rows, _ = member_table()
    rows.is_uneven[0] = True  # 16 of the last 18
    for missing, lasts in ((2, True), (3, False)):
        rows.rises[0] = 2**32 - 1 - (2**missing - 1) * 16
        assert bool(fast.is_persistent(rows, np.full(4, 1e4))[0]) == lasts


def test_a_hiccup_after_samples_that_are_slow_by_chance_does_not_last() -> None:
    """Both raise the channel each time; only a slow node is about as slow each time."""
    slow = [0.040, 0.052, 0.047, 0.039, 0.050, 0.029, 0.044, 0.048]
    by_chance = [0.018, 0.022, 0.030, 0.018, 0.022, 0.050, 0.053, 0.049]
    for excess, lasts in ((slow, True), (by_chance, False), ([0.02] * 10 + by_chance, True)):
        rows, cohorts = member_table()
        rows.far[1:4] = 0.0
        rows.samples[:4] = 400
        for value in excess:
            rows.latest[0, rows.samples[0] % RECENT_HISTORY] = value
            feed(rows, cohorts, [value])
        rows.state[0] = SUSPECT
        assert fast.lasting_samples(rows, np.full(4, 1.8e7))[0] == 6
        assert bool(fast.is_persistent(rows, np.full(4, 1.8e7))[0]) == lasts
