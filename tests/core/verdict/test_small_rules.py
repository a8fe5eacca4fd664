"""Small rules of the verdict engine, each on a table of its own: what is learned, kept and said."""

import math

import msgspec
import numpy as np
import pytest
from tests.core.verdict.test_verdict_words import PEERS, POLICY, world

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict import baseline, residuals
from ingero.core.verdict.advance_channel import _learn as learn_advances
from ingero.core.verdict.baseline import YOUNG, forget_start, relearn
from ingero.core.verdict.decision import _find_stalls
from ingero.core.verdict.engine import EngineCounters, VerdictEngine
from ingero.core.verdict.episodes import REFRESH_S, Episodes
from ingero.core.verdict.events import fleet_events
from ingero.core.verdict.events.describe import describe_group
from ingero.core.verdict.events.groups import Group
from ingero.core.verdict.events.job_events import ADOPT_S, JobEvents
from ingero.core.verdict.events.moves import Moves
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.own_times import make_batch
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.stall_channel import is_now_and_then
from ingero.core.verdict.table import FAST, HISTORY, RECENT_HISTORY, STALL, STRAGGLER, SUSPECT
from ingero.core.verdict.verdicts import describe_member
from ingero.errors import ConfigError


# --- stalls
def stalling(slow_steps: int, of: int = 40, by: float = 1.0) -> MemberRegistry:
    """Return a world whose first member was slow in some of its last steps."""
    registry = world(excess=0.0)
    rows = registry.rows
    rows.own_s[0] = np.nan
    rows.own_s[0, :of] = 1.0
    rows.own_s[0, :slow_steps] = 1.0 + by
    rows.baseline_log_own[0], rows.recent_stalls[0] = 0.0, 3.0
    return registry


def test_a_member_stalls_now_and_then_when_only_few_of_its_steps_are_slow() -> None:
    assert is_now_and_then(stalling(5).rows, 0)
    assert not is_now_and_then(stalling(40, by=0.5).rows, 0), "it is always slow"
    few = stalling(5)
    few.rows.recent_stalls[0] = 2.0
    assert not is_now_and_then(few.rows, 0)
    unknown = stalling(5)
    unknown.rows.own_s[0] = np.nan
    assert not is_now_and_then(unknown.rows, 0)


@pytest.mark.parametrize(("slow_steps", "channel"), [(5, STALL), (40, FAST)])
def test_suspects_are_judged_by_stalls_where_these_are_all_that_is_slow(
    slow_steps: int, channel: int
) -> None:
    rows = stalling(slow_steps, by=0.5).rows
    rows.state[0], rows.channel[0] = SUSPECT, FAST
    stalls = np.zeros(rows.size, bool)
    stalls[0] = True
    _find_stalls(rows, stalls)
    assert rows.channel[0] == channel


# --- what is said
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("min_effect", 0.6), ("gate", 0.2), ("false_alarms_per_1000_node_hours", 0.0),
        ("warmup_samples", 5), ("guard_share", 0.6), ("stale_s", 0.0), ("forget_s", 1.0),
        ("max_members", 0),
    ],
)  # fmt: skip
def test_an_error_names_the_setting(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"^verdict\.{key}: {value} "):
        VerdictPolicy(**{key: value})


def test_confidence_has_three_digits() -> None:
    verdict = describe_member(world(excess=math.log1p(0.00894)), 0, POLICY)
    assert verdict.confidence is not None
    assert 0.8 < verdict.confidence == round(verdict.confidence, 3)


def test_two_members_of_a_role_are_enough_to_be_sure() -> None:
    registry = world()
    registry.cohorts.expected[1] = 2.0
    assert describe_member(registry, 0, POLICY).state is VerdictState.STRAGGLER
    registry.cohorts.expected[1] = 1.0
    assert describe_member(registry, 0, POLICY).state is VerdictState.NOT_SURE


def test_a_group_is_described_with_its_loss_ranks_and_price() -> None:
    registry = world(ranks=12, usd_per_gpu_hour=2.0)
    rows = registry.rows
    rows.recent_excess[:10] = math.log(1.25)
    group = Group("rack", "r1", 50.0, 60.0, list(range(10)), 12)
    verdict = describe_group(registry, group, POLICY)
    assert (verdict.excess, verdict.loss, verdict.at_most) == (0.25, 0.2, True)
    assert verdict.usd_per_hour == round(12 * 2.0 * 0.2, 2)
    assert (verdict.peers, verdict.since, verdict.node) == (12, 50.0, "")
    assert verdict.evidence.endswith("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more")
    rows.recent_excess[:10] = math.log1p(1 / 7)
    verdict = describe_group(registry, group, POLICY)
    assert (verdict.excess, verdict.loss) == (0.1429, 0.125)
    rows.recent_excess[:10] = -0.1
    assert describe_group(registry, group, POLICY).loss == 0.0


@pytest.mark.parametrize(("own_s", "is_slow"), [(1.0, False), (1.04, False), (1.06, True)])
def test_figures_are_computed_again_while_half_of_the_excess_is_left(
    own_s: float, is_slow: bool
) -> None:
    registry = world()
    registry.rows.own_s[0] = own_s
    before = Verdict(episode="e", state=VerdictState.STRAGGLER, node="n1", since=1.0, excess=0.1)
    episodes = Episodes(registry, POLICY)
    assert episodes._is_still_slow(0, before) == is_slow
    assert episodes._is_still_slow(0, msgspec.structs.replace(before, excess=None))


def test_figures_are_computed_again_every_ten_seconds() -> None:
    class Counted(Episodes):
        def _refresh(self, now_s: float) -> list[Verdict]:
            calls.append(now_s)
            return []

    calls: list[float] = []
    registry = world()
    episodes = Counted(registry, POLICY)
    live = np.zeros(registry.rows.size, bool)
    for now_s in (1000.0, 1009.5, 1000.0 + REFRESH_S, 1019.0, 1020.0):
        episodes.advance(live, np.zeros(registry.cohorts.size), now_s)
    assert calls == [1000.0, 1010.0, 1020.0]


# --- events
def test_the_end_of_one_slow_period_is_not_that_of_another() -> None:
    moves = Moves()
    moves.begin(1, 3, 0.0)
    moves.begin(1, 5, 10.0)
    moves.end(1, 3, 100.0)
    assert moves.going_on(1) == [5]
    moves.begin(1, 3, 150.0)
    moves.end(1, 3, 200.0)
    assert [period.ended_s for period in moves.periods[1]] == [100.0, None, 200.0]


@pytest.mark.parametrize(
    ("kind", "after_s", "adopts"),
    [
        (fleet_events.SLOWER, ADOPT_S, True),
        (fleet_events.SLOWER, ADOPT_S - 1, False),
        (fleet_events.TOGETHER, 2 * ADOPT_S, False),
        (fleet_events.COVERAGE, 2 * ADOPT_S, False),
    ],
)
def test_a_level_that_a_cohort_keeps_for_minutes_is_its_baseline(
    kind: int, after_s: float, adopts: bool
) -> None:
    registry = world()
    cohorts, size = registry.cohorts, registry.cohorts.size
    cohorts.event[:size], cohorts.event_since_s[:size] = kind, 100.0
    cohorts.level[:size], cohorts.baseline_level[:size] = 0.3, 0.1
    events = np.full(size, kind, np.int8)
    JobEvents(registry, POLICY)._follow_fleet_events(
        events, np.zeros(size), np.zeros(size), 100.0 + after_s
    )
    assert cohorts.baseline_level[1] == (0.3 if adopts else 0.1)


# --- steps
def test_medians_of_steps_are_kept_apart() -> None:
    for stride in (1, 2, 64, 1024):
        places = residuals._slot(np.arange(0, 200 * stride, stride, dtype=np.int64))
        assert len(set(places.tolist())) > 150, stride


def a_step(registry: MemberRegistry, log_own: list[float], step: int) -> None:
    """Close one step of the first members."""
    members = np.arange(len(log_own))
    batch = make_batch(members, np.exp(log_own), np.full(len(log_own), step))
    frame = residuals.Frame(registry.rows.cohort[members], batch)
    residuals.take_frame(registry, frame, 100.0)


def test_a_late_sample_is_compared_with_the_middle_of_what_peers_showed() -> None:
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    cohorts.frames_per_sample[1] = 100
    a_step(registry, [0.0, 0.1, 0.2, 0.3], 7)  # without one of them, the medians are 0.1 or 0.2
    late = make_batch(np.array([5]), np.array([math.exp(0.45)]), np.array([7]))
    assert residuals.take_late(registry, late, 101.0) == 0
    assert rows.residual_sum[5] == pytest.approx(0.30, abs=1e-6)
    unknown = make_batch(np.array([6]), np.array([1.0]), np.array([8]))
    assert residuals.take_late(registry, unknown, 101.0) == 1
    assert rows.residual_count[6] == 0


@pytest.mark.parametrize(("members", "too_late"), [(2, 0), (1, 1)])
def test_a_late_sample_needs_two_peers_at_its_step(members: int, too_late: int) -> None:
    registry = world()
    a_step(registry, [0.1] * members, 7)
    late = make_batch(np.array([5]), np.array([1.0]), np.array([7]))
    assert residuals.take_late(registry, late, 101.0) == too_late


@pytest.mark.parametrize(("frames", "per_sample"), [(2, 0), (3, 1), (50, 10)])
def test_the_pace_of_a_job_is_known_after_three_steps_in_five_seconds(
    frames: int, per_sample: int
) -> None:
    registry = world()
    cohorts = registry.cohorts
    cohorts.first_frame_s[1], cohorts.frames[1] = 100.0, frames
    residuals._find_pace(registry, np.array([1]), 104.9)
    assert cohorts.frames_per_sample[1] == 0
    residuals._find_pace(registry, np.array([1]), 105.0)
    assert cohorts.frames_per_sample[1] == per_sample
    if per_sample:
        assert cohorts.sample_s[1] == pytest.approx(5.0 / frames * per_sample)


@pytest.mark.parametrize(("per_sample", "moved"), [(1, 0.02), (10, 0.002), (0, 0.02)])
def test_a_baseline_follows_whole_samples(per_sample: int, moved: float) -> None:
    registry = world()
    registry.rows.baseline_log_own[:8], registry.rows.state[0] = 0.0, 0
    registry.rows.cusum[0] = 0.0
    registry.cohorts.frames_per_sample[1] = per_sample
    members = np.arange(4)
    batch = make_batch(members, np.full(4, math.e), np.full(4, 1))
    residuals._follow_baselines(registry, batch, registry.rows.cohort[members])
    assert registry.rows.baseline_log_own[0] == pytest.approx(moved)


def test_each_cohort_of_a_step_counts_once() -> None:
    registry = world()
    for rank in range(100, 104):
        registry.put(Member(cluster="c", node=f"m{rank}", rank=rank, job="k"), 0.0)
    rows, cohorts = registry.rows, registry.cohorts
    members = np.array([0, 1, 2, 8, 9, 10])
    batch = make_batch(members, np.ones(6), np.full(6, 1))
    present = residuals._advance_cohorts(
        registry, batch, rows.cohort[members], np.zeros(cohorts.size), 100.0
    )
    assert present.tolist() == [rows.cohort[0], rows.cohort[8]]


# --- baselines
def test_a_member_starts_over_with_its_last_minute() -> None:
    rows = world().rows
    rows.baseline_samples[:8], rows.samples[:8] = 240, 240
    rows.latest[0] = np.linspace(0, 1, RECENT_HISTORY)
    rows.last_log_own[0] = 0.7
    baseline._start_over(rows, np.array([0]))
    assert (rows.baseline_samples[0], rows.samples[0]) == (0, RECENT_HISTORY)
    assert rows.history[0, :RECENT_HISTORY].tolist() == rows.latest[0].tolist()
    assert rows.last_log_own[0] == pytest.approx(0.7)
    assert rows.baseline_samples[1] == 240


def test_a_cohort_that_has_settled_learns_anew() -> None:
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    rows.baseline_samples[:8], cohorts.baseline_level[1] = 240, 0.5
    forget_start(rows, cohorts)
    assert rows.baseline_samples[0] == 240
    cohorts.has_settled[1] = True
    forget_start(rows, cohorts)
    assert not rows.baseline_samples[:8].any()
    assert np.isnan(cohorts.baseline_level[1])
    assert not cohorts.has_settled[1]


def compiled_first(samples: int) -> MemberRegistry:
    """Return a world whose first member was slow when its baseline was learned, and is no more."""
    registry = world()
    rows = registry.rows
    rows.state[0] = 0
    rows.baseline_samples[:8], rows.samples[:8] = 60, samples
    rows.raw_bias[0], rows.latest[:8] = 0.2, 0.0
    rows.scale[:8] = 0.003
    return registry


@pytest.mark.parametrize(
    ("samples", "is_again"),
    [(120, True), (119, False), (YOUNG - RECENT_HISTORY, True), (YOUNG, False)],
)
def test_what_was_learned_of_a_slow_start_is_learned_again_in_the_first_half_hour(
    samples: int, is_again: bool
) -> None:
    registry = compiled_first(samples)
    relearn(registry.rows, registry.cohorts, np.arange(8))
    assert (registry.rows.baseline_samples[0] == 0) == is_again
    assert registry.rows.baseline_samples[1] == 60


def test_two_calm_windows_in_a_row_let_a_cohort_start_over() -> None:
    """How calm they are is the spread around their middle, wherever that is."""
    registry = compiled_first(120)
    rows, cohorts = registry.rows, registry.cohorts
    rows.raw_bias[0], rows.scale[:8] = 0.0, 0.02
    rows.latest[:8] = 0.5 + 0.001 * np.resize([1.0, -1.0], RECENT_HISTORY)
    relearn(rows, cohorts, np.arange(8))
    assert (cohorts.calm_windows[1], rows.baseline_samples[1]) == (1, 60)
    relearn(rows, cohorts, np.arange(8))
    assert (cohorts.calm_windows[1], rows.baseline_samples[1]) == (0, 0)


def test_the_bias_is_the_clipped_mean_of_skewed_samples() -> None:
    rows = world().rows
    rows.baseline_samples[0] = 0
    history = np.resize([0.10, 0.11, 0.12, 0.20], HISTORY)
    rows.history[0] = history
    baseline._compute_members(rows, np.array([0]), 40)
    assert rows.raw_bias[0] == pytest.approx(history[:40].mean(), abs=0.01)
    assert rows.raw_bias[0] > np.median(history[:40])


@pytest.mark.parametrize(("moved", "is_learned"), [(0.005, True), (0.05, False)])
def test_a_slowdown_is_not_learned_as_the_usual_advance(moved: float, is_learned: bool) -> None:
    registry = world()
    rows = registry.rows
    rows.advance_samples[:8] = 60
    rows.advance_history[:8, :60] = 0.02 + 0.0005 * np.resize([1, -1], 60)
    learn_advances(rows, registry.cohorts, 1, POLICY)
    first = rows.advance_bias[:8].copy()
    assert first == pytest.approx(0.02, abs=1e-3)
    rows.advance_learned[:8] = 60
    rows.advance_history[0, :60] += moved
    learn_advances(rows, registry.cohorts, 1, POLICY)
    assert rows.advance_bias[0] == pytest.approx(first[0] + (moved if is_learned else 0), abs=1e-3)
    assert rows.advance_bias[1:8] == pytest.approx(first[1:], abs=1e-6)


# --- the engine
def test_nothing_is_counted_before_anything_happened() -> None:
    assert EngineCounters() == EngineCounters(0, 0, 0, 0, 0)
    assert VerdictEngine().counters == EngineCounters()


@pytest.mark.parametrize(
    ("baseline_samples", "cusum", "state", "bars", "said"),
    [
        (0, 5.0, 0, 0.0, "still being learned"),
        (60, 5.0, 0, 0.5, "below its limit"),
        (60, 20.0, 0, 2.0, "above its limit"),
        (60, 20.0, STRAGGLER, 2.0, "blamed, too"),
    ],
)
def test_why_a_peer_is_not_blamed(
    baseline_samples: int, cusum: float, state: int, bars: float, said: str
) -> None:
    engine = VerdictEngine()
    engine.registry = world()
    rows = engine.registry.rows
    rows.baseline_samples[:8], rows.cusum[1:8], rows.state[1:8] = baseline_samples, cusum, state
    verdict = Verdict(
        episode="e", state=VerdictState.STRAGGLER, node="n1", rank=1, job="j", since=1.0
    )
    reasons = engine.peer_reasons(verdict)
    assert [reason.rank for reason in reasons] == [2, 3, 4, 5, 6, 7, 8]
    assert {reason.bars for reason in reasons} == {bars}
    assert all(said in reason.reason for reason in reasons)
    assert {round(reason.excess, 6) for reason in reasons} == {0.0}
    assert len(reasons) == len(PEERS)


def test_reports_at_one_moment_say_nothing_about_the_length_of_steps() -> None:
    engine = VerdictEngine()
    members = [engine.register(Member(cluster="c", node=f"n{n}", rank=n, job="j"), 0.0)
               for n in range(3)]  # fmt: skip
    batch = make_batch(np.array(members), np.ones(3), np.array([1, 1, 1]))
    engine.observe(batch, 100.0)
    engine.observe(batch, 120.0)
    cohort = engine.registry.rows.cohort[members[0]]
    usual_s = float(engine.registry.cohorts.gap_s[cohort])
    engine.observe(batch, 120.0)
    assert engine.registry.cohorts.gap_s[cohort] == usual_s


@pytest.mark.parametrize(("gap_s", "patience_s"), [(1.0, 30.0), (10.0, 30.0), (20.0, 60.0)])
def test_a_member_is_live_for_three_of_its_usual_steps(gap_s: float, patience_s: float) -> None:
    engine = VerdictEngine()
    for rank in range(3):
        engine.register(Member(cluster="c", node=f"n{rank}", rank=rank, job="j"), 0.0)
    cohorts = engine.registry.cohorts
    cohorts.gap_s[:], cohorts.frames[:] = gap_s, 10
    engine.tick(100.0)
    cohort = engine.registry.rows.cohort[0]
    assert cohorts.patience_s[cohort] == patience_s


@pytest.mark.parametrize(
    ("members", "age_s", "is_small"), [(1, 11.0, True), (2, 11.0, True), (3, 11.0, False),
                                       (1, 9.0, False)]
)  # fmt: skip
def test_a_cohort_of_fewer_than_three_is_small_after_ten_seconds(
    members: int, age_s: float, is_small: bool
) -> None:
    engine = VerdictEngine()
    for rank in range(members):
        index = engine.register(Member(cluster="c", node=f"n{rank}", rank=rank, job="j"), 100.0)
        engine.registry.rows.last_seen_s[index] = 100.0 + age_s
    engine._update_expected(100.0 + age_s)
    cohort = engine.registry.rows.cohort[0]
    assert engine.registry.cohorts.is_small[cohort] == is_small
    assert engine.registry.cohorts.expected[cohort] == members
