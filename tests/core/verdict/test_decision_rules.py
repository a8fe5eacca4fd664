"""Who may be suspected, when calm ends an episode, and who is blamed again: on tables alone."""

from typing import Any

import numpy as np
import pytest
from tests.support.verdict_tables import POLICY, stalling, world

from ingero.core.verdict.decision import (
    _find_stalls,
    _is_calm_for_long,
    _keeps_peers_waiting,
    _own_growth,
    _raise,
    _surely,
    decide,
)
from ingero.core.verdict.episodes import Episodes
from ingero.core.verdict.members import Member
from ingero.core.verdict.table import (
    ADVANCE,
    CHRONIC,
    FAST,
    HEALTHY,
    RECOVERING,
    STALL,
    STRAGGLER,
    SUSPECT,
)


@pytest.mark.parametrize(("baseline", "state"), [(0, HEALTHY), (1, SUSPECT)])
def test_nobody_is_suspected_before_a_baseline(baseline: int, state: int) -> None:
    registry = world()
    rows = registry.rows
    rows.baseline_samples[:8], rows.state[0], rows.k[:8] = baseline, HEALTHY, 1.0
    live, reporting = np.ones(8, bool), np.array([0.0, 8.0])
    Episodes(registry, POLICY).advance(live, reporting, 100.0)
    assert rows.state[0] == state


def calm(
    samples: int, since: int, *, effect: float = 0.0, cusum: float = 0.0, hold: int = 0
) -> Any:
    """Return whether a straggler is calm for long, and since which sample it is."""
    registry = world()
    rows = registry.rows
    rows.samples[0], rows.calm_samples[0] = samples, since
    rows.cusum[0], rows.hold_samples[0] = cusum, hold
    found = _is_calm_for_long(registry, np.full(8, effect), POLICY)
    assert not found[1:].any()
    return bool(found[0]), int(rows.calm_samples[0])


def test_calm_lasts_from_its_first_sample_through_noise_until_the_channel_rises() -> None:
    assert calm(10, 0) == (True, 10)
    assert calm(10, 0, hold=5) == (False, 10)
    assert calm(14, 10, hold=5) == (False, 10)
    assert calm(15, 10, hold=5) == (True, 10)
    # the effect is back for a moment: it is not calm now, but the calm goes on
    assert calm(15, 1, hold=5, effect=0.05, cusum=2.9) == (False, 1)
    # 0.3 limits: the channel rises again
    assert calm(15, 10, hold=5, effect=0.05, cusum=3.0) == (False, 0)
    assert calm(15, 10, hold=5, effect=0.0, cusum=3.0) == (True, 10)
    assert calm(15, 0, effect=0.05, cusum=0.0) == (False, 0)
    # half of the gate is where calm begins
    assert calm(15, 10, effect=0.0075) == (False, 10)
    assert calm(15, 10, effect=0.0074) == (True, 10)


@pytest.mark.parametrize(
    ("ended_ago_s", "sample_s", "hold", "since_s"),
    [
        (10.0, 1.0, 2 * (40 + 10) + 10, 77.0),  # twice the pause, and ten samples more
        (10.0, 10.0, 2 * (40 + 1) + 10, 77.0),
        (600.0, 100.0, 2 * (40 + 6) + 10, 77.0),
        (600.0, 1.0, 150, 77.0),  # the most
        (600.1, 1.0, 0, 1000.0),  # a new episode
    ],
)
def test_who_is_slow_again_within_ten_minutes_goes_on_and_is_held_longer(
    ended_ago_s: float, sample_s: float, hold: int, since_s: float
) -> None:
    registry = world()
    rows = registry.rows
    rows.ended_s[0], registry.cohorts.sample_s[1] = 1000.0 - ended_ago_s, sample_s
    rows.frames[0], rows.hold_samples[0] = 64, 7 if hold == 0 else 0
    over = np.zeros((8, 4), bool)
    over[0, [STALL, CHRONIC]] = True
    raised = np.zeros(8, bool)
    raised[0] = True
    _raise(registry, raised, over, 1000.0, POLICY)
    assert (rows.hold_samples[0], rows.since_s[0]) == (hold, since_s)
    assert (rows.state[0], rows.channel[0], rows.raised_frame[0]) == (SUSPECT, STALL, 64)
    assert rows.state[1] == HEALTHY


def test_a_rank_is_compared_with_the_lateness_of_its_own_cohort() -> None:
    registry = world(ranks=6)
    for rank in range(20, 26):
        registry.put(Member(cluster="c", node=f"m{rank}", rank=rank, job="j", role="x"), 0.0)
    rows = registry.rows
    rows.state[0], rows.lateness_s[:12] = SUSPECT, 0.0
    rows.lateness_s[0], rows.lateness_s[6:12] = 0.1, 9.0
    assert _keeps_peers_waiting(rows)[0]
    rows.lateness_s[0], rows.lateness_s[6:12] = -0.1, -9.0
    rows.advance_cusum[0] = rows.advance_limit[0] = 10.0
    assert not _keeps_peers_waiting(rows)[0]
    rows.advance_cusum[0] = 10.1
    assert _keeps_peers_waiting(rows)[0], "at exchanges"
    rows.lateness_s[0], rows.advance_cusum[0] = np.nan, 0.0
    assert _keeps_peers_waiting(rows)[0], "unknown"


def test_relapsed_and_confirmed_members_are_blamed() -> None:
    registry = world()
    rows = registry.rows
    rows.baseline_samples[:8], rows.k[:8], rows.rises[:8] = 60, 1.0, 0xFFFFFFFF
    rows.state[:2], rows.cusum[:2] = (RECOVERING, SUSPECT), 15.0
    rows.recent_excess[:2], rows.channel[2], rows.quiet_samples[0] = 0.1, ADVANCE, 20
    effect = np.where(np.arange(8) < 2, 0.1, 0.0)
    changed, gone = decide(registry, np.ones(8, bool), effect, 100.0, POLICY)
    assert sorted(changed) == [0, 1]
    assert rows.state[:3].tolist() == [STRAGGLER, STRAGGLER, HEALTHY]
    assert not gone.any()
    assert rows.hold_samples[:2].tolist() == [2 * 20 + 10, 0]


@pytest.mark.parametrize(("slow_steps", "channel"), [(5, STALL), (40, FAST)])
def test_suspects_are_judged_by_stalls_where_these_are_all_that_is_slow(
    slow_steps: int, channel: int
) -> None:
    registry = stalling(slow_steps, by=0.5)
    rows = registry.rows
    rows.state[0], rows.channel[0] = SUSPECT, FAST
    stalls = np.zeros(rows.size, bool)
    stalls[0] = True
    _find_stalls(registry, stalls)
    assert rows.channel[0] == channel


def test_a_stage_of_a_pipeline_must_be_slow_beyond_its_error() -> None:
    """Members that have peers are compared with these, and need not."""
    registry = world()
    size = registry.rows.size
    registry.rows.scale[:size] = 0.02
    effect = np.full(size, 0.08)
    assert _surely(registry, effect).tolist() == effect.tolist()
    registry.cohorts.is_small[: registry.cohorts.size] = True
    assert (_surely(registry, effect) < 0.08).all()


@pytest.mark.parametrize(("before", "is_known"), [(4, False), (5, True)])
def test_own_time_of_before_is_known_by_five_samples(before: int, is_known: bool) -> None:
    registry = world()
    rows, slow = registry.rows, 10
    registry.cohorts.step_samples[1], rows.rose_at[0] = 100, 100 - slow
    registry.cohorts.step_level[1] = 0.0
    rows.latest[0], rows.samples[0] = 0.2, slow + before
    assert np.isfinite(_own_growth(registry, 0)) == is_known
