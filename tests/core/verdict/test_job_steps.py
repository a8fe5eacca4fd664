"""Steps of a job: samples of them, calm ones, and how much longer they are now."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.step_tables import CALM, Floats, cohort_table, registry, sample, with_steps

from ingero.core.verdict.job_steps import (
    CalmSteps,
    _clipped,
    close_steps,
    find_calm,
    follow_steps,
    mark_restless,
    recent_steps,
    rose_at,
)
from ingero.core.verdict.loss import change_of_step
from ingero.core.verdict.members import Member
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import (
    ADVANCE,
    CHRONIC,
    FAST,
    HEALTHY,
    STALL,
    STEP_SAMPLES,
    STRAGGLER,
)
from ingero.core.verdict.what_if import (
    find_hidden,
    job_usd,
    loss_share,
    most_lost,
    part_of_loss,
    recent_frames,
)


def test_a_step_is_the_mean_over_the_members_that_know_its_length() -> None:
    cohorts = cohort_table()
    present, starts = np.array([1, 2]), np.array([0, 3])
    span = np.array([2.0, np.nan, 4.0, 0.0, np.nan])
    follow_steps(cohorts, present, starts, span, np.array([0.5, 0.7]))
    assert cohorts.step_sum_s[[1, 2]].tolist() == [3.0, 0.0]
    assert cohorts.step_count[[1, 2]].tolist() == [1, 0]
    follow_steps(cohorts, present, starts, np.array([5.0, 5.0, 5.0, 1.0, 1.0]), np.ones(2))
    close_steps(cohorts, present)
    assert cohorts.step_log[1, 0] == pytest.approx(math.log(4.0))
    assert cohorts.step_level[1, 0] == pytest.approx(0.75)
    assert cohorts.step_log[2, 0] == pytest.approx(0.0)
    assert cohorts.step_samples[[1, 2]].tolist() == [1, 1]
    assert cohorts.step_count[[1, 2]].tolist() == [0, 0]
    close_steps(cohorts, present)  # nothing new
    assert cohorts.step_samples[[1, 2]].tolist() == [1, 1]


def test_the_last_samples_are_returned_oldest_first() -> None:
    cohorts = cohort_table()
    for number in range(STEP_SAMPLES + 10):
        sample(cohorts, float(number), 2.0 * number)
    log_s, level, _ = recent_steps(cohorts, 1, STEP_SAMPLES + 7, 60)
    assert log_s == pytest.approx([STEP_SAMPLES + n for n in (7, 8, 9)])
    assert level == pytest.approx([2 * (STEP_SAMPLES + n) for n in (7, 8, 9)])
    assert recent_steps(cohorts, 1, 0, 2)[0] == pytest.approx([STEP_SAMPLES + 8, STEP_SAMPLES + 9])
    assert len(recent_steps(cohorts, 1, 0, 1000)[0]) == STEP_SAMPLES
    assert len(recent_steps(cohorts, 1, STEP_SAMPLES + 10, 60)[0]) == 0
    assert len(recent_steps(cohorts, 1, STEP_SAMPLES + 50, 60)[0]) == 0
    assert len(recent_steps(cohorts, 2, 0, 60)[0]) == 0


def calm_of(values: Floats, levels: Floats | None = None) -> CalmSteps:
    cohorts = cohort_table()
    for at, value in enumerate(values):
        sample(cohorts, value, 0.0 if levels is None else levels[at])
    calm = find_calm(cohorts, 1, len(values))
    assert calm is not None
    return calm


def test_twenty_calm_samples_are_needed() -> None:
    cohorts = cohort_table()
    for _ in range(19):
        sample(cohorts, 1.0)
    assert find_calm(cohorts, 1, 19) is None
    sample(cohorts, 1.0)
    assert find_calm(cohorts, 1, 20) is not None
    assert find_calm(cohorts, 1, 19) is None  # only those before
    cohorts.is_restless[1] = True
    for _ in range(30):
        sample(cohorts, 9.0)
    calm = find_calm(cohorts, 1, 50)
    assert calm is not None and calm.log_s == pytest.approx(1.0)


def test_samples_of_a_job_are_marked_in_all_its_cohorts() -> None:
    cohorts = cohort_table(4)
    cohorts.job[:4] = [0, 1, 1, 2]
    for _ in range(25):
        for cohort in (1, 2, 3):
            sample(cohorts, 1.0, cohort=cohort)
    mark_restless(cohorts, 1, 6)
    assert find_calm(cohorts, 1, 25) is None and find_calm(cohorts, 2, 25) is None
    assert find_calm(cohorts, 3, 25) is not None
    assert cohorts.step_is_calm[1, :25].tolist() == [1.0] * 19 + [0.0] * 6


def test_calm_steps_are_described_by_median_mean_noise_and_error() -> None:
    """Blocks of five samples alternate between 0.00 and 0.02."""
    values = np.repeat(np.resize([0.0, 0.02], 20), 5)
    calm = calm_of(values)
    noise = np.std(np.resize([0.0, 0.02], 20), ddof=1)
    assert calm.log_s == pytest.approx(0.01, abs=1e-6)
    assert calm.noise == pytest.approx(noise, rel=1e-3)
    assert calm.inflation == pytest.approx(1.0)
    assert calm.error == pytest.approx(noise / np.sqrt(20), rel=1e-3)
    assert calm.mean_s == pytest.approx(np.exp(values).mean(), rel=1e-3)


def test_steps_that_wander_are_less_certain() -> None:
    calm = calm_of(np.repeat(np.resize([0.0] * 5 + [0.02] * 5, 20), 5))
    assert calm.inflation == pytest.approx(np.sqrt(1.8 / 0.2), rel=0.3)
    assert calm.error == pytest.approx(calm.noise * calm.inflation / np.sqrt(20))


def test_no_step_is_known_better_than_a_thousandth() -> None:
    assert calm_of(np.zeros(40)).noise == 0.001


def test_single_long_steps_hardly_move_the_mean() -> None:
    values = np.zeros(100)
    values[50] = 5.0
    assert calm_of(values).mean_s == pytest.approx(1.0, abs=0.01)


def test_own_times_that_explain_the_steps_correct_them() -> None:
    rng = np.random.default_rng(1)
    level = rng.normal(0, 0.05, 100)
    calm = calm_of(0.5 * level + rng.normal(0, 0.002, 100), level)
    assert calm.explained is not None
    assert calm.explained.slope == pytest.approx(0.5, abs=0.03)
    assert calm.explained.levels == pytest.approx(level, abs=1e-6)
    assert calm.explained.rest.noise < calm.noise / 3
    unrelated = calm_of(rng.normal(0, 0.05, 100), level)
    assert unrelated.explained is None
    opposed = calm_of(-0.5 * level, level)
    assert opposed.explained is None
    steep = calm_of(3.0 * level, level)
    assert steep.explained is not None and steep.explained.slope == 1.0


def test_a_change_is_a_share_of_the_longer_step() -> None:
    change = change_of_step(with_steps(np.full(20, math.log(1.25))), 0, CALM)
    assert change is not None
    assert (change.calm_s, change.slow_s) == (1.0, pytest.approx(1.25))
    assert change.share == pytest.approx(0.2)
    assert change.error == pytest.approx(0.8 * math.hypot(0.003, 0.01 / 2))


def test_steps_since_the_channel_rose_are_compared_and_at_most_a_minute() -> None:
    values = np.concatenate((np.zeros(30), np.full(40, 0.1), np.full(30, 0.3)))
    slowed = with_steps(values)
    slowed.rows.rose_at[0] = 70
    change = change_of_step(slowed, 0, CALM)
    assert change is not None and change.slow_s == pytest.approx(math.exp(0.3))
    slowed.rows.rose_at[0] = 0
    change = change_of_step(slowed, 0, CALM)  # the last sixty: 30 of each
    assert change is not None and change.slow_s == pytest.approx(math.exp(0.2))
    slowed.rows.rose_at[0] = 100
    assert change_of_step(slowed, 0, CALM) is None


def test_each_channel_has_its_own_beginning() -> None:
    found = registry()
    rows = found.rows
    rows.rose_at[0], rows.stall_rose_at[0], rows.advance_rose_at[0] = 1, 2, 3
    for channel, at in ((FAST, 1), (STALL, 2), (CHRONIC, 1), (ADVANCE, 3)):
        rows.channel[0] = channel
        assert rose_at(rows, found.cohorts, 0) == at


def test_stalls_change_the_mean_of_steps() -> None:
    """Every fifth step takes twice as long: a fifth more on average."""
    values = np.resize([math.log(2.0), 0, 0, 0, 0], 100)
    change = change_of_step(with_steps(values, STALL), 0, CALM)
    assert change is not None
    assert (change.calm_s, change.slow_s) == (1.0, pytest.approx(1.2))
    uneven = values.copy()
    uneven[:50] = math.log(2.0)
    doubtful = change_of_step(with_steps(uneven, STALL), 0, CALM)
    assert doubtful is not None and doubtful.error > 2 * change.error


own_times = st.lists(st.floats(0.1, 10), min_size=3, max_size=8)


def test_the_loss_is_what_the_slowest_adds_beyond_the_others() -> None:
    own = np.array([[1.0, 1.0], [1.1, 1.0], [1.0, 1.2], [1.6, 1.6]])
    blamed = np.array([False, False, False, True])
    assert loss_share(own, np.full(4, 2.0), blamed) == pytest.approx(((0.5 + 0.4) / 2) / 2.0)
    assert loss_share(own, np.full(4, np.nan), blamed) == pytest.approx(0.45 / 1.6)
    assert loss_share(own, np.full(4, 2.0), blamed, pace_s=1.4) == pytest.approx(0.2 / 2.0)
    assert loss_share(own, np.full(4, 2.0), np.ones(4, bool)) == 0.0
    unknown = np.concatenate((own, np.full((4, 3), np.nan)), axis=1)
    assert loss_share(unknown, np.full(4, 2.0), blamed) == pytest.approx(0.225)
    assert loss_share(np.full((4, 2), np.nan), np.full(4, 2.0), blamed) == 0.0


@given(own_times, st.integers(0, 7), st.floats(0.01, 100))
def test_the_loss_is_a_share_in_any_unit_and_grows_with_the_blamed(
    own: list[float], at: int, unit: float
) -> None:
    table = np.array(own)[:, None]
    blamed = np.arange(len(own)) == at % len(own)
    more = blamed | (np.arange(len(own)) == (at + 1) % len(own))
    share = loss_share(table, np.full(len(own), np.nan), blamed)
    assert 0.0 <= share <= 1.0
    assert loss_share(unit * table, np.full(len(own), np.nan), blamed) == pytest.approx(share)
    assert loss_share(table, np.full(len(own), np.nan), more) >= share - 1e-12


def test_what_is_lost_at_most_follows_from_own_times() -> None:
    found = registry()
    found.rows.own_s[0] = 1.5
    found.rows.state[0] = STRAGGLER
    peers = found.peers_of(0, 30.0)
    assert peers.tolist() == [1, 2, 3]
    assert most_lost(found, 0, peers, excess=0.5, period=None) == pytest.approx(0.25)
    found.rows.own_s[1] = 1.25  # suspected as well: both share the loss by their surplus
    found.rows.state[1] = STRAGGLER
    assert most_lost(found, 0, peers, excess=0.5, period=None) == pytest.approx(
        0.375 / 2 * 0.375 / (0.375 + 0.125), rel=0.4
    )


def test_stalls_lose_their_excess_as_often_as_they_come() -> None:
    found = registry()
    found.rows.channel[0] = STALL
    peers = found.peers_of(0, 30.0)
    assert most_lost(found, 0, peers, excess=1.0, period=10) == pytest.approx(0.1 / 2.0)
    found.rows.recent_stalls[0], found.rows.recent_steps[0] = 20.0, 100.0
    assert most_lost(found, 0, peers, excess=1.0, period=None) == pytest.approx(0.2 / 2.0)
    found.rows.span_s[:4] = np.nan
    assert most_lost(found, 0, peers, excess=1.0, period=10) == pytest.approx(0.1 / 1.1)


def test_an_advance_is_the_most_that_is_lost() -> None:
    found = registry()
    found.rows.advance_recent[0] = 0.07
    peers = found.peers_of(0, 30.0)
    assert most_lost(found, 0, peers, excess=9.0, period=None) == pytest.approx(0.07)


def test_a_joint_loss_is_split_by_excess_between_members_slow_at_the_same_steps() -> None:
    found = registry(6)
    rows, peers = found.rows, found.peers_of(0, 30.0)
    rows.own_s[0], rows.own_s[1] = 1.3, 1.1
    rows.state[0] = STRAGGLER
    assert part_of_loss(rows, 0, peers) == 1.0
    rows.state[1] = STRAGGLER
    assert part_of_loss(rows, 0, peers) == pytest.approx(0.75)
    rows.channel[1] = ADVANCE
    assert part_of_loss(rows, 0, peers) == pytest.approx(0.75)
    rows.channel[1] = STALL
    assert part_of_loss(rows, 0, peers) == 1.0
    rows.channel[0], rows.channel[1:3], rows.state[2] = STALL, FAST, STRAGGLER
    assert part_of_loss(rows, 0, peers) == 1.0
    rows.state[2] = HEALTHY
    rows.channel[:2] = CHRONIC
    assert part_of_loss(rows, 0, peers) == pytest.approx(0.75)
    rows.channel[0] = FAST  # one that always was slow sets the pace
    assert part_of_loss(rows, 0, peers) == 1.0


@pytest.mark.parametrize(
    ("since", "frames", "count"), [(60, 64, 4), (62, 64, 4), (50, 64, 14), (0, 64, 32), (0, 2, 2)]
)
def test_the_steps_of_an_episode_are_at_least_four(since: int, frames: int, count: int) -> None:
    rows = registry().rows
    rows.frames[0], rows.raised_frame[0] = frames, since
    window = recent_frames(rows, 0)
    assert len(window) == count
    assert window[-1] == (frames - 1) % 32


@pytest.mark.parametrize(("theirs", "hidden"), [(0.94, 0.0), (0.9, -math.log(0.9))])
def test_peers_that_compute_while_they_wait_hide_their_own_time(
    theirs: float, hidden: float
) -> None:
    """Own times vary by 7 % anyway; a member that became faster hides nobody's compute."""
    found = registry()
    found.rows.own_s[:4] = theirs
    found.rows.own_s[0] = 1.2
    assert find_hidden(found, 0, VerdictPolicy()) == pytest.approx(hidden)
    found.rows.own_s[0] = 0.99
    assert find_hidden(found, 0, VerdictPolicy()) == 0.0
    found.rows.own_s[0], found.cohorts.is_alone[found.rows.cohort[0]] = 1.2, True
    assert find_hidden(found, 0, VerdictPolicy()) == 0.0  # it is not compared with them


def test_the_price_of_a_job_is_that_of_its_present_members() -> None:
    found = registry(usd_per_gpu_hour=2.0, gpus=3)
    assert job_usd(found.rows, 0, VerdictPolicy()) == pytest.approx(24.0)
    found.rows.last_seen_s[0] = 1000.0
    assert job_usd(found.rows, 0, VerdictPolicy()) == pytest.approx(6.0)
    assert math.isnan(job_usd(registry().rows, 0, VerdictPolicy()))
    other = Member(cluster="c", node="x", rank=9, job="other", usd_per_gpu_hour=50.0)
    found.rows.last_seen_s[found.put(other, 0.0)] = 1000.0
    assert job_usd(found.rows, 0, VerdictPolicy()) == pytest.approx(6.0)
    assert found.rows.state[0] == HEALTHY


def test_values_count_as_at_most_four_spreads_away_from_their_middle() -> None:
    values = np.array([9.0, 9.5, 10.0, 10.5, 11.0, 90.0, -70.0])
    spread = 1.4826 * 1.0  # the median of 0, 0.5, 0.5, 1, 1, 80 and 80
    assert _clipped(values) == pytest.approx([-1.0, -0.5, 0.0, 0.5, 1.0, 4 * spread, -4 * spread])
