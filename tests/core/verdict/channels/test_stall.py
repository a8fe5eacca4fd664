"""The channel of stalls: which steps are stalls, who stalls more than its peers, and how often."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.support.member_tables import member_table
from tests.support.verdict_tables import stalling, world

from ingero.core.verdict.channels import stall
from ingero.core.verdict.channels.stall import is_now_and_then, update_stalls
from ingero.core.verdict.channels.stall_rates import CAP, stall_limit, weigh
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import (
    ONSETS,
    CohortRows,
    MemberRows,
)


def steps(
    rows: MemberRows,
    cohorts: CohortRows,
    excess: Sequence[Sequence[float]],
    first: int = 100,
    span_s: float = np.nan,
    own_s: float = 0.0,
) -> None:
    """Feed steps of all members; `own_s` is what members without an excess need."""
    members = np.arange(rows.size)
    for number, row in enumerate(excess, first):
        stall.update_stalls(
            rows, cohorts, members, np.array(row), np.full(len(row), number, np.int64),
            np.full(len(row), span_s), own_s * np.exp(np.array(row)),
        )  # fmt: skip


@pytest.mark.parametrize(("excess", "count"), [(0.079, 0), (0.081, 1)])
def test_a_stall_adds_at_least_eight_percent(excess: float, count: int) -> None:
    rows, cohorts = member_table()
    steps(rows, cohorts, [[excess, 0, 0, 0]])
    assert rows.onset_count[0] == count


@pytest.mark.parametrize(("excess", "count"), [(0.9, 0), (1.1, 1)])
def test_a_twin_stalls_beside_its_own_past(excess: float, count: int) -> None:
    """Its own times vary by a fifth; what it differs by from the other one varies by less."""
    rows, cohorts = member_table()
    cohorts.is_twinned[1], rows.lone_scale[:4], rows.scale[:4], rows.bias[:4] = True, 0.2, 0.01, 0.5
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
        rows, cohorts = member_table()
        rows.scale[:4], cohorts.frames_per_sample[1] = 0.05, 4
        cohorts.step_base[1], cohorts.step_noise[1] = 0.0, noise
        steps(rows, cohorts, [[excess, excess - 0.01, 0, 0]], span_s=span_s)
        assert rows.onset_count[:4].tolist() == [count if excess > 0.3 else 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("span_s", "excess", "other", "count"),
    [
        (1.8, 1.0, 0.9, 1),  # 0.30 x (e - 1) = 0.52 of the 0.8 that the step was too long by
        (1.8, 0.8, 0.7, 0),  # 0.37
        (1.8, 1.0, 1.1, 0),  # the other one took more
        (1.25, 1.0, 0.9, 0),  # the last steps differed by as much
        (1.43, 1.0, 0.9, 0),  # by 0.15, and three times that is 0.44
        (1.46, 1.0, 0.9, 1),
        (np.nan, 1.0, 0.9, 0),
    ],
)
def test_who_took_most_of_a_long_step_stalled_however_much_own_times_vary(
    span_s: float, excess: float, other: float, count: int
) -> None:
    """Own times of FSDP vary by a half and more, so five scales are more than any stall adds."""
    rows, cohorts = member_table()
    rows.scale[:4] = 0.5
    cohorts.step_base[1], cohorts.step_noise[1] = 0.0, 0.02
    cohorts.span_s[1, :8] = [0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 1.0, 1.0]
    steps(rows, cohorts, [[excess, other, 0, 0]], span_s=span_s, own_s=0.3)
    assert rows.onset_count[0] == count
    cohorts.step_noise[1] = 0.5  # means of steps vary for other reasons
    steps(rows, cohorts, [[0.01, 0, 0, 0], [excess, other, 0, 0]], span_s=span_s, own_s=0.3)
    assert rows.onset_count[0] == 2 * count


def test_a_stall_stands_out_from_the_noise_of_a_single_step() -> None:
    """Five scales of 0.02 in samples of four steps are 0.2 in one step."""
    rows, cohorts = member_table()
    rows.scale[:4] = 0.02
    cohorts.frames_per_sample[1] = 4
    steps(rows, cohorts, [[0.199, 0, 0, 0], [0.0] * 4, [0.201, 0, 0, 0]])
    assert rows.onset_count[0] == 1


def test_a_stall_of_several_steps_counts_once_until_it_is_over() -> None:
    rows, cohorts = member_table()
    high, middle, low = [0.2, 0, 0, 0], [0.041, 0, 0, 0], [0.039, 0, 0, 0]
    steps(rows, cohorts, [high, middle, high, middle])
    assert (rows.onset_count[0], bool(rows.is_stalled[0])) == (1, True)
    steps(rows, cohorts, [low, high])
    assert rows.onset_count[0] == 2
    assert rows.onsets[0][:2].tolist() == [100, 101]
    assert rows.stall_size[0] == pytest.approx(0.2)


def test_the_size_of_a_stall_is_a_mean_of_the_last_ones() -> None:
    rows, cohorts = member_table()
    steps(rows, cohorts, [[0.2, 0, 0, 0], [0.0] * 4, [0.4, 0, 0, 0]])
    assert rows.stall_size[0] == pytest.approx(0.3)


def test_stalls_raise_the_channel_and_calm_steps_lower_it() -> None:
    """As much as a fault is likelier than a stall as rare as those that nobody ever had."""
    rows, cohorts = member_table()
    cohorts.expected[1] = 8.0
    steps(rows, cohorts, [[0.0] * 4] * 400, own_s=1.0)
    steps(rows, cohorts, [[0.2, 0, 0, 0]], own_s=1.0)
    shortest = np.expm1(0.08) / np.expm1(0.2)
    (stall,), (other,) = weigh(np.array([shortest / (8 * 401)]))
    assert rows.stall_cusum[0] == pytest.approx(stall)
    assert rows.stall_cusum[1] == 0.0
    steps(rows, cohorts, [[0.0] * 4] * 3, own_s=1.0)
    assert rows.stall_cusum[0] == pytest.approx(stall + 3 * other)
    steps(rows, cohorts, [[0.2, 0, 0, 0], [0.0] * 4] * 20, own_s=1.0)
    assert rows.stall_cusum[0] == pytest.approx(CAP, abs=0.5)
    assert rows.stall_cusum[0] <= CAP


def test_own_time_that_peers_hide_while_they_wait_is_no_stall() -> None:
    """A member that takes a tenth longer, beside peers that take half as long, stalled by that."""
    for own_s, size_s in ((1.0, 0.1), (0.5, 0.55)):
        rows, cohorts = member_table()
        rows.baseline_log_own[:4] = np.log(own_s)
        steps(rows, cohorts, [[np.log(2.2), 0, 0, 0]], own_s=0.5)
        assert rows.onset_count[0] == 1
        assert cohorts.stall_s[1, 0] == pytest.approx(0.5 * 2.2 - own_s)
        assert cohorts.stall_s[1, 0] == pytest.approx(size_s, abs=0.06)


@pytest.mark.parametrize(
    ("excess", "span_s", "least_s"),
    [
        (0.5, np.nan, np.expm1(0.08)),  # 8 % of the own time of peers
        (1.2, 3.0, 0.5 * 0.15),  # of a step that was too long by 2 s, half of the least seen
    ],
)
def test_the_shortest_stall_that_would_have_been_seen_is_known(
    excess: float, span_s: float, least_s: float
) -> None:
    rows, cohorts = member_table()
    rows.scale[:4] = 0.01 if np.isnan(span_s) else 0.5
    cohorts.step_base[1], cohorts.step_noise[1], cohorts.span_s[1, :8] = 0.0, 0.02, 1.0
    steps(rows, cohorts, [[excess, 0, 0, 0]], span_s=span_s, own_s=1.0)
    assert rows.least_stall_s[0] == pytest.approx(least_s)


def test_recent_stalls_are_weighted_by_age() -> None:
    rows, cohorts = member_table()
    steps(rows, cohorts, [[0.2, 0, 0, 0], [0.0] * 4, [0.0] * 4])
    assert rows.recent_stalls[0] == pytest.approx(0.995**2)
    assert rows.recent_steps[0] == pytest.approx(1 + 0.995 + 0.995**2)
    assert rows.stall_steps[0] == 3


@pytest.mark.parametrize(
    ("onsets", "period"),
    [
        ([100, 110, 120, 130], 10),
        ([100, 110, 120], 10),
        ([100, 110, 121], 10),
        ([100, 110, 122], None),
        ([100, 110], None),
        ([100, 101, 102], None),
        ([100, 110, 130, 140, 150], 10),  # one was missed
        ([100, 112, 120, 131], 11),
        ([100, 107, 125, 129, 150], None),
        ([100, 101, 102, 103], None),
        ([100, 102, 104, 106], 2),
        (list(range(0, 10 * ONSETS + 20, 10)), 10),
    ],
)
def test_the_period_is_that_of_regular_stalls(onsets: list[int], period: int | None) -> None:
    rows, _ = member_table()
    for number, step in enumerate(onsets):
        rows.onsets[0, number % ONSETS] = step
    rows.onset_count[0] = len(onsets)
    assert stall.stall_period(rows, 0) == period


def test_the_channel_remembers_where_it_left_zero() -> None:
    rows, cohorts = member_table()
    cohorts.step_samples[1] = 80
    steps(rows, cohorts, [[0.0] * 4] * 500)
    steps(rows, cohorts, [[0.2, 0, 0, 0]])
    cohorts.step_samples[1] = 90
    steps(rows, cohorts, [[0.0] * 4])
    assert rows.stall_rose_at[:2].tolist() == [80, 90]


@pytest.mark.parametrize(
    ("excess", "was_stalled", "is_stalled", "begins"),
    [
        (0.08, False, False, False), (0.0801, False, True, True),
        (0.0401, True, True, False), (0.04, True, False, False),
    ],
)  # fmt: skip
def test_a_stall_begins_above_its_limit_and_ends_at_half_of_it(
    excess: float, was_stalled: bool, is_stalled: bool, begins: bool
) -> None:
    registry = world()
    rows = registry.rows
    rows.scale[:8], rows.is_stalled[0] = 0.001, was_stalled
    rows.bias[:8] = 0.0
    update_stalls(
        rows, registry.cohorts, np.array([0]), np.array([excess]), np.array([5]),
        np.full(1, np.nan), np.ones(1),
    )  # fmt: skip
    assert (bool(rows.onset_count[0]), bool(rows.is_stalled[0])) == (begins, is_stalled)


def test_noisy_members_need_a_larger_stall() -> None:
    """Five scales of a single step: 2 % of a sample of four steps are 4 % of each."""
    registry = world()
    rows = registry.rows
    rows.scale[:8], registry.cohorts.frames_per_sample[1] = 0.02, 4
    rows.bias[:8] = 0.0
    update_stalls(
        rows, registry.cohorts, np.arange(2), np.array([0.19, 0.21]), np.array([5, 5]),
        np.full(2, np.nan), np.ones(2),
    )  # fmt: skip
    assert rows.is_stalled[:2].tolist() == [False, True]


def test_a_member_stalls_now_and_then_when_only_few_of_its_steps_are_slow() -> None:
    def found(registry: MemberRegistry) -> bool:
        return is_now_and_then(registry.rows, registry.cohorts, 0)

    assert found(stalling(5))
    assert not found(stalling(40, by=0.5)), "it is always slow"
    few = stalling(5)
    few.rows.recent_stalls[0] = 2.0
    assert not found(few)
    unknown = stalling(5)
    unknown.rows.own_s[0] = np.nan
    assert not found(unknown)


def test_own_stalls_of_one_of_two_are_no_reason_to_expect_them() -> None:
    rows, cohorts = member_table(2)
    cohorts.expected[1] = 2.0
    rows.stall_steps[:2] = 200
    steps(rows, cohorts, [[0.5, 0.0], *[[0.0, 0.0]] * 9] * 6, own_s=1.0)
    assert rows.stall_cusum[0] > stall_limit(cohorts, VerdictPolicy())[1]
