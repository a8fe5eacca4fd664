"""Who holds a rank, what is kept of episodes, and when calm ends one: on tables alone."""

import math
from typing import Any

import numpy as np
import pytest
from tests.core.verdict.test_verdict_words import POLICY, world

from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.verdict import residuals
from ingero.core.verdict.advance_channel import has_advance
from ingero.core.verdict.decision import _is_calm_for_long, _raise
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.episodes import Episodes
from ingero.core.verdict.events import fleet_events
from ingero.core.verdict.events.groups import Groups
from ingero.core.verdict.events.job_events import JobEvents
from ingero.core.verdict.events.structural import find_structural
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.stall_channel import update_stalls
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
from ingero.core.verdict.verdicts import describe_member

OPEN = Verdict(
    episode="e", state=VerdictState.STRAGGLER, node="n1", rank=1, job="j", since=77.0, excess=0.1
)


def member(node: str, rank: int = 3, **labels: Any) -> Member:
    return Member(cluster="c", node=node, rank=rank, job="j", **labels)


@pytest.mark.parametrize(
    ("silent_s", "is_claimed"),
    [(0.0, False), (10.0, False), (30.0, False), (30.1, True), (150.0, True)],
)
def test_a_rank_is_claimed_by_a_member_that_was_silent_for_longer_than_it_is_live(
    silent_s: float, is_claimed: bool
) -> None:
    """Whoever held it was last seen so long ago that nobody waits for it any more."""
    engine = VerdictEngine()
    first, second = (engine.register(member(node), 50.0) for node in ("n1", "n2"))
    assert first is not None and second is not None
    engine.registry.claim_rank(first, 0.0)
    rows = engine.registry.rows
    rows.last_seen_s[first], rows.last_seen_s[second] = 190.0, 200.0 - silent_s
    engine.register(member("n2"), 200.0)
    assert rows.last_seen_s[first] == (200.0 - 300.0 - 1.0 if is_claimed else 190.0)


def test_a_member_with_long_steps_is_silent_for_longer() -> None:
    engine = VerdictEngine()
    first, second = (engine.register(member(node), 50.0) for node in ("n1", "n2"))
    assert first is not None and second is not None
    engine.registry.claim_rank(first, 0.0)
    rows, cohorts = engine.registry.rows, engine.registry.cohorts
    rows.last_seen_s[:2], cohorts.patience_s[rows.cohort[first]] = 100.0, 200.0
    engine.register(member("n2"), 300.0)
    assert rows.last_seen_s[first] == 100.0
    engine.register(member("n2"), 300.1)
    assert rows.last_seen_s[first] == pytest.approx(300.1 - 2 * 200.0 - 1.0)


def test_members_that_report_again_are_looked_at_once_a_second() -> None:
    """Unless one of them would be silent for too long before that."""
    engine = VerdictEngine()
    members = np.array([engine.register(member(f"n{n}", n), 50.0) for n in range(2)])
    rows, cohorts = engine.registry.rows, engine.registry.cohorts
    rows.last_seen_s[members] = 100.0, 95.0
    assert engine.refresh(members, 100.0) == 101.0
    assert cohorts.last_report_s[rows.cohort[members]].tolist() == [100.0, 100.0]
    assert engine.refresh(members, 124.5) == 95.0 + POLICY.stale_s
    assert engine.refresh(members, 125.1) == -math.inf, "it must be registered again"
    assert cohorts.last_report_s[rows.cohort[members]].tolist() == [124.5, 124.5]


def test_members_that_find_no_room_are_counted() -> None:
    engine = VerdictEngine(VerdictPolicy(max_members=2))
    assert [engine.register(member(f"n{n}", n), 100.0) for n in range(4)] == [0, 1, None, None]
    assert engine.counters.refused_members == 2
    assert engine.register(member("n1", 1), 101.0) == 1, "a known one needs no room"


def test_members_with_a_baseline_and_members_that_learn_one_are_counted() -> None:
    engine = VerdictEngine()
    engine.registry = world()
    engine.registry.rows.baseline_samples[:3] = 1
    assert engine.learning() == (3, 5)


@pytest.mark.parametrize(
    ("samples", "sample_s", "ready_s"), [(10, 1.0, 20.0), (29, 1.0, 1.0), (40, 1.0, 0.0),
                                         (10, 2.0, 30.0), (10, 0.5, 20.0)]
)  # fmt: skip
def test_it_is_known_in_how_many_seconds_everybody_is_judged(
    samples: int, sample_s: float, ready_s: float
) -> None:
    """After 30 samples of a second, or after 25 of two."""
    engine = VerdictEngine()
    engine.registry = world()
    engine.registry.cohorts.sample_s[1] = sample_s
    assert engine.ready_s() is None, "nobody takes part"
    engine.registry.rows.samples[:8] = 100
    engine.registry.rows.samples[0] = samples
    assert engine.ready_s() == ready_s
    engine.registry.rows.baseline_samples[:8] = 60
    assert engine.ready_s() is None


@pytest.mark.parametrize(
    ("bias", "listed"), [(0.02, True), (0.01, False), (0.011, True), (0.0, False)]
)
def test_members_that_always_were_slower_than_their_noise_are_listed(
    bias: float, listed: bool
) -> None:
    engine = VerdictEngine()
    engine.registry = world()
    rows = engine.registry.rows
    rows.baseline_samples[:8], rows.raw_bias[2], rows.raw_bias[3] = 60, bias, 0.05
    found = [(who.rank, share) for who, share in engine.chronic()]
    slowest = (4, pytest.approx(math.expm1(0.05)))
    assert found == ([slowest, (3, pytest.approx(math.expm1(bias)))] if listed else [slowest])
    engine.registry.cohorts.is_small[1] = True
    assert engine.chronic() == []


def episodes(**verdict: Any) -> tuple[Episodes, MemberRegistry]:
    registry = world()
    found = Episodes(registry, POLICY)
    found.open[0] = Verdict(**{**{f: getattr(OPEN, f) for f in OPEN.__struct_fields__}, **verdict})
    return found, registry


@pytest.mark.parametrize(
    ("state", "calm_samples", "is_new"),
    [
        (VerdictState.STRAGGLER, 0, True),
        (VerdictState.LATE, 0, True),
        (VerdictState.NOT_SURE, 0, True),
        (VerdictState.RECOVERING, 0, False),
        (VerdictState.SUSPECT, 0, False),
        (VerdictState.STRAGGLER, 5, False),
    ],
)
def test_figures_are_computed_again_while_a_member_is_blamed_and_slow(
    state: VerdictState, calm_samples: int, is_new: bool
) -> None:
    kept, registry = episodes(state=state, evidence="before")
    registry.rows.calm_samples[0] = calm_samples
    changed = kept._refresh(100.0)
    assert (kept.open[0].evidence != "before") == is_new
    assert [verdict.state for verdict in changed] == (
        [VerdictState.STRAGGLER] if is_new and state is not VerdictState.STRAGGLER else []
    )


@pytest.mark.parametrize(
    ("gone", "said"), [(False, "back among its peers"), (True, "no data any more")]
)
def test_the_end_of_an_episode_says_why(gone: bool, said: str) -> None:
    kept, registry = episodes()
    registry.rows.state[0] = HEALTHY
    (over,) = kept._follow_members([0], np.full(8, gone), 100.0)
    assert (over.state, over.evidence, over.next_step) == (VerdictState.RESOLVED, said, "")
    assert (over.episode, over.excess) == ("e", 0.1)
    assert kept.open == {}
    assert kept._follow_members([0], np.full(8, gone), 101.0) == []


def test_a_recovery_keeps_the_figures_of_the_slow_time() -> None:
    kept, registry = episodes(evidence="now")
    registry.rows.state[0] = RECOVERING
    (found,) = kept._follow_members([0], np.zeros(8, bool), 100.0)
    assert (found.state, found.evidence) == (VerdictState.RECOVERING, "now")
    kept._blamed[0] = OPEN
    (found,) = kept._follow_members([0], np.zeros(8, bool), 101.0)
    assert (found.state, found.evidence) == (VerdictState.RECOVERING, OPEN.evidence)


@pytest.mark.parametrize(("baseline", "state"), [(0, HEALTHY), (1, SUSPECT)])
def test_nobody_is_suspected_before_a_baseline(baseline: int, state: int) -> None:
    registry = world()
    rows = registry.rows
    rows.baseline_samples[:8], rows.state[0], rows.k[:8] = baseline, HEALTHY, 1.0
    live, reporting = np.ones(8, bool), np.array([0.0, 8.0])
    Episodes(registry, POLICY).advance(live, reporting, 100.0)
    assert rows.state[0] == state


@pytest.mark.parametrize(("state", "is_restless"), [(HEALTHY, False), (SUSPECT, True)])
def test_steps_are_restless_while_an_episode_of_their_job_is_open(
    state: int, is_restless: bool
) -> None:
    kept, registry = episodes()
    registry.cohorts.is_restless[:2] = not is_restless
    if state == HEALTHY:
        kept.open.clear()
    kept._mark_restless()
    assert registry.cohorts.is_restless[:2].tolist() == [False, is_restless]


def calm(
    samples: int, since: int, *, effect: float = 0.0, cusum: float = 0.0, hold: int = 0
) -> Any:
    """Return whether a straggler is calm for long, and since which sample it is."""
    registry = world()
    rows = registry.rows
    rows.samples[0], rows.calm_samples[0] = samples, since
    rows.cusum[0], rows.hold_samples[0] = cusum, hold
    found = _is_calm_for_long(rows, np.full(8, effect), POLICY)
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


@pytest.mark.parametrize(
    ("rises", "advance", "is_found"),
    [
        (0b1111111, 0.02, True),
        (0b1111110, 0.02, True),
        (0b0111111, 0.02, True),
        (0b1111100, 0.02, False),
        (0b11111100, 0.02, False),  # the sixth is the eighth last sample
        (0b1111111, 0.015, True),
        (0b1111111, 0.0149, False),
    ],
)
def test_the_job_must_wait_in_six_of_the_last_seven_samples(
    rises: int, advance: float, is_found: bool
) -> None:
    rows = world().rows
    rows.channel[0], rows.advance_rises[0], rows.advance_recent[0] = ADVANCE, rises, advance
    rows.baseline_log_own[:8], rows.span_s[:8] = 0.0, 1.0
    found = has_advance(rows, np.full(8, 0.1), POLICY)
    assert found.tolist() == [is_found] + [False] * 7


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
        rows, registry.cohorts, np.array([0]), np.array([excess]), np.array([5]), np.array([np.nan])
    )
    assert (bool(rows.onset_count[0]), bool(rows.is_stalled[0])) == (begins, is_stalled)


def test_noisy_members_need_a_larger_stall() -> None:
    """Five scales of a single step: 2 % of a sample of four steps are 4 % of each."""
    registry = world()
    rows = registry.rows
    rows.scale[:8], registry.cohorts.frames_per_sample[1] = 0.02, 4
    rows.bias[:8] = 0.0
    unknown = np.full(2, np.nan)
    update_stalls(
        rows, registry.cohorts, np.arange(2), np.array([0.19, 0.21]), np.array([5, 5]), unknown
    )
    assert rows.is_stalled[:2].tolist() == [False, True]


def punctual(period: int, size: float) -> MemberRegistry:
    """Return a world whose first member stalls every so many steps by a share of its own time."""
    registry = world(excess=0.0)
    rows = registry.rows
    rows.state[0], rows.onset_count[0], rows.stall_size[0] = HEALTHY, 8, math.log1p(size)
    rows.onsets[0] = 100 + period * np.arange(8)
    rows.last_step[0] = rows.onsets[0, -1]
    return registry


@pytest.mark.parametrize(
    ("period", "size", "loss"),
    [(50, 5.0, 5 / 55), (49, 5.0, None), (100, 0.51, 0.51 / 100.51), (100, 0.49, None)],
)
def test_work_that_comes_every_fifty_steps_or_more_is_structural(
    period: int, size: float, loss: float | None
) -> None:
    found = [each for each in find_structural(punctual(period, size), POLICY)
             if each.key[0] == "period"]  # fmt: skip
    assert [(each.period, each.member) for each in found] == ([(period, 0)] if loss else [])
    assert [each.loss for each in found] == ([pytest.approx(loss, rel=1e-6)] if loss else [])


def test_work_is_punctual_and_goes_on() -> None:
    late = punctual(100, 5.0)
    late.rows.onsets[0, 4] += 3  # 2 % of the period are allowed
    assert find_structural(late, POLICY) == []
    almost = punctual(100, 5.0)
    almost.rows.onsets[0, 4] += 2
    assert len(find_structural(almost, POLICY)) == 1
    over = punctual(100, 5.0)
    over.rows.last_step[0] += 201
    assert find_structural(over, POLICY) == []
    often = punctual(100, 5.0)
    often.rows.onset_count[1:8] = 3  # peers stall as well: 3 times as often and two more
    assert find_structural(often, POLICY) == []
    often.rows.onset_count[1:8] = 2
    assert len(find_structural(often, POLICY)) == 1


@pytest.mark.parametrize(
    ("slow", "of", "is_shared"), [(3, 5, True), (3, 6, False), (2, 2, False), (3, 3, True)]
)
def test_most_of_a_rack_must_be_slow_and_two_ranks_are_no_rack(
    slow: int, of: int, is_shared: bool
) -> None:
    registry = MemberRegistry(POLICY)
    for rank in range(12):
        labels = (("rack", "r1" if rank < of else f"x{rank}"),)
        registry.put(member(f"n{rank}", rank, labels=labels), 0.0)
    found = Groups(registry)._shared(np.arange(slow), np.arange(12))
    assert found == (("rack", "r1") if is_shared else None)


def test_the_event_of_a_group_ends_with_the_group() -> None:
    events = JobEvents(world(), POLICY)
    events.open_groups[1] = OPEN
    (over,) = events._follow_groups()
    assert (over.state, over.episode, over.next_step) == (VerdictState.RESOLVED, "e", "")
    assert events.open_groups == {}


def grown(count: int, by: float, slow: int) -> bool:
    """Return whether steps are found to have grown, of which the last `slow` are longer."""
    cohorts = world().cohorts
    places = np.arange(count) % 128
    cohorts.step_log[1, places] = 0.0
    cohorts.step_log[1, places[count - slow :]] = by
    cohorts.step_samples[1], cohorts.sample_s[1] = count, 2.0
    return fleet_events._have_steps_grown(cohorts, 1, 2.0 * slow)


def test_steps_have_grown_by_half_of_a_rise_or_are_unknown() -> None:
    half = 0.5 * math.log1p(0.045)
    assert [grown(100, by, 30) for by in (half + 1e-6, half - 1e-6, 0.0)] == [True, False, False]
    assert [grown(300, by, 30) for by in (half + 1e-6, 0.0)] == [True, False]
    assert grown(19, 0.0, 10), "nine samples of before say nothing"
    assert not grown(20, 0.0, 10)
    assert grown(100, 0.0, 9), "nine samples since say nothing"


@pytest.mark.parametrize(
    ("moving", "judged", "expected", "reason"),
    [
        ((2, 0), (2, 0), (2, 3), fleet_events.TOGETHER),  # all of a small job
        ((1, 0), (1, 0), (1, 3), fleet_events.CLEAR),
        ((2, 0), (4, 0), (4, 4), fleet_events.CLEAR),  # two of four are named
        ((2, 0), (5, 0), (5, 5), fleet_events.CLEAR),  # 40 %
        ((3, 0), (5, 0), (5, 5), fleet_events.TOGETHER),
        ((2, 1), (2, 3), (2, 3), fleet_events.TOGETHER),  # three of the five of the job
    ],
)
def test_who_slows_down_together(
    moving: tuple[int, int], judged: tuple[int, int], expected: tuple[int, int], reason: int
) -> None:
    registry = world()
    registry.put(Member(cluster="c", node="m", rank=20, job="j", role="x"), 0.0)
    cohorts = registry.cohorts
    cohorts.expected[:3] = (0, *expected)
    counts = [np.array([0.0, *each]) for each in (moving, judged, expected)]
    found = fleet_events._reasons(cohorts, *counts, np.zeros(3, bool), 100.0, POLICY)
    assert found[1] == reason


def test_the_last_own_time_shows_what_a_job_shares() -> None:
    """Two of three are 10 % above their baselines at their last step: the third shares that."""
    registry = MemberRegistry(POLICY)
    for rank in range(4):
        registry.put(member(f"n{rank}", rank, role=f"stage{rank}"), 0.0)
    rows, cohorts = registry.rows, registry.cohorts
    cohorts.is_small[1:5], rows.baseline_log_own[:4], rows.frames[:4] = True, 0.0, 6
    rows.own_s[:4] = 1.0
    rows.own_s[:4, 5] = np.exp([0.0, 0.1, 0.2, 0.3])
    residuals.find_common(registry, np.ones(4, bool))
    assert rows.common[:4] == pytest.approx([0.2, 0.2, 0.1, 0.1])


@pytest.mark.parametrize(
    ("channel", "found"), [(FAST, CauseClass.STALL), (CHRONIC, CauseClass.UNKNOWN)]
)
def test_steps_that_are_slow_now_and_then_are_stalls(channel: int, found: CauseClass) -> None:
    registry = world(excess=0.0)
    rows = registry.rows
    rows.own_s[0, :5], rows.baseline_log_own[0], rows.recent_stalls[0] = 2.0, 0.0, 3.0
    rows.channel[0] = channel
    assert describe_member(registry, 0, POLICY).cause_class is found


@pytest.mark.parametrize(
    ("ranks", "slow", "is_sure"),
    [(4, 2, False), (4, 1, True), (5, 3, True), (3, 1, True), (2, 2, False)],
)
def test_half_of_a_few_may_be_the_usual_ones(ranks: int, slow: int, is_sure: bool) -> None:
    registry = world(ranks=ranks)
    registry.rows.state[:slow] = STRAGGLER
    registry.rows.state[slow:ranks] = HEALTHY
    found = describe_member(registry, 0, POLICY)
    assert (found.state is VerdictState.STRAGGLER) == is_sure
