"""Small rules of the verdict engine, on tables alone: stalls, what is said, and who is live."""

import math

import msgspec
import numpy as np
import pytest
from tests.core.verdict.test_verdict_words import PEERS, POLICY, world

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.decision import _find_stalls, _surely
from ingero.core.verdict.engine import EngineCounters, VerdictEngine
from ingero.core.verdict.episodes import REFRESH_S, Episodes
from ingero.core.verdict.events.describe import describe_group
from ingero.core.verdict.events.groups import Group
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.own_times import UNNUMBERED, make_batch
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.stall_channel import is_now_and_then
from ingero.core.verdict.table import (
    FAST,
    HEALTHY,
    STALL,
    STRAGGLER,
    SUSPECT,
)
from ingero.core.verdict.verdicts import describe_member
from ingero.core.verdict.what_if import _stalled_share, most_lost
from ingero.errors import ConfigError


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
    registry = world(ranks=12, usd_per_gpu_hour=1.111)
    rows = registry.rows
    rows.recent_excess[:10] = math.log(1.25)
    group = Group("rack", "r1", 50.0, 60.0, list(range(10)), 12)
    verdict = describe_group(registry, group, POLICY)
    assert (verdict.excess, verdict.loss, verdict.at_most) == (0.25, 0.2, True)
    assert verdict.usd_per_hour == 2.67  # 12 × 1.111 × 0.2 = 2.6664
    assert (verdict.peers, verdict.since, verdict.node) == (12, 50.0, "")
    assert verdict.evidence.endswith("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more")
    rows.recent_excess[:10] = math.log1p(1 / 6)
    verdict = describe_group(registry, group, POLICY)
    assert (verdict.excess, verdict.loss) == (0.1667, 0.1429)
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


def test_a_member_that_was_not_named_yet_is_named_once() -> None:
    episodes = Episodes(world(), POLICY)
    episodes._unsaid.add(0)
    assert [(v.state, v.rank) for v in episodes._refresh(100.0)] == [(VerdictState.STRAGGLER, 1)]
    assert episodes._refresh(110.0) == []


def test_a_straggler_that_an_event_of_its_job_explains_is_not_named() -> None:
    episodes = Episodes(world(), POLICY)
    (suspected,) = episodes._suspect(0, SUSPECT, 100.0)
    assert suspected.state is VerdictState.SUSPECT
    episodes.events.explains = lambda *_: True  # type: ignore[method-assign]
    (still,) = episodes._suspect(0, SUSPECT, 100.0)
    assert still.state is VerdictState.SUSPECT, "a suspect is nobody's event yet"
    (resolved,) = episodes._suspect(0, STRAGGLER, 110.0)
    said = (resolved.state, resolved.evidence)
    assert said == (VerdictState.RESOLVED, "explained by the event of its job")
    assert episodes._suspect(0, STRAGGLER, 120.0) == []
    assert (episodes.open, episodes._unsaid) == ({}, {0})


def test_a_member_that_is_healthy_again_is_forgotten() -> None:
    registry = world()
    episodes = Episodes(registry, POLICY)
    episodes._unsaid.add(0)
    registry.rows.state[0] = HEALTHY
    assert episodes._follow_members([0], np.zeros(8, bool), 100.0) == []
    assert episodes._unsaid == set()


def test_a_cohort_that_has_settled_starts_over_with_the_next_tick() -> None:
    engine = VerdictEngine()
    index = engine.register(Member(cluster="c", node="n", rank=0, job="j"), 0.0)
    cohort = engine.registry.rows.cohort[index]
    engine.registry.cohorts.has_settled[cohort] = True
    engine.registry.cohorts.baseline_level[cohort] = 1.0
    engine.tick(1.0)
    assert not engine.registry.cohorts.has_settled[cohort]
    assert math.isnan(engine.registry.cohorts.baseline_level[cohort])


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


@pytest.mark.parametrize(("role", "after_s"), [("", 10.0), ("stage1", 3.0)])
def test_small_cohorts_are_found_in_time(role: str, after_s: float) -> None:
    """Roles are found when all ranks of a job are known."""
    engine = VerdictEngine()
    index = engine.register(Member(cluster="c", node="n", rank=1, job="j", role=role), 100.0)
    assert index is not None
    cohort = engine.registry.rows.cohort[index]
    for now_s, is_small in ((99.9 + after_s, False), (100.0 + after_s, True)):
        engine.registry.rows.last_seen_s[index] = now_s
        engine._update_expected(now_s)
        assert engine.registry.cohorts.is_small[cohort] == is_small


def test_the_length_of_steps_is_not_known_before_the_fourth() -> None:
    engine = VerdictEngine()
    for rank in range(3):
        engine.register(Member(cluster="c", node=f"n{rank}", rank=rank, job="j"), 0.0)
    cohorts, cohort = engine.registry.cohorts, engine.registry.rows.cohort[0]
    cohorts.gap_s[:] = 1.0
    for frames, patience_s in ((3, 300.0), (4, 30.0)):
        cohorts.frames[:] = frames
        engine.tick(100.0)
        assert cohorts.patience_s[cohort] == patience_s


def test_a_verdict_has_four_digits_of_its_loss() -> None:
    verdict = describe_member(world(excess=math.log1p(1 / 6)), 0, POLICY)
    assert (verdict.loss, verdict.excess) == (0.1429, 0.1667)


@pytest.mark.parametrize(("slow", "is_sure"), [(1, True), (2, False)])
def test_two_of_three_that_are_slow_may_be_the_usual_ones(slow: int, is_sure: bool) -> None:
    registry = world(ranks=3)
    registry.rows.state[:slow] = STRAGGLER
    state = describe_member(registry, 0, POLICY).state
    assert (state is VerdictState.STRAGGLER) == is_sure


def test_stalls_cost_their_excess_of_the_usual_own_time_as_often_as_they_come() -> None:
    """Of own times of 0.5 s, a stall of half of it in every tenth step costs 25 ms per step."""
    registry = world()
    rows = registry.rows
    rows.own_s[:8], rows.span_s[:8], rows.channel[0] = 0.5, 1.0, STALL
    most = most_lost(registry, 0, PEERS, excess=0.5, period=10)
    assert most == pytest.approx(0.025 / 1.0, rel=0.05)


def test_samples_without_a_step_number_are_taken_with_the_next_tick() -> None:
    engine = VerdictEngine()
    members = [engine.register(Member(cluster="c", node=f"n{n}", rank=n, job="j"), 0.0)
               for n in range(3)]  # fmt: skip
    engine.observe(make_batch(np.array(members), np.full(3, math.e), np.full(3, UNNUMBERED)), 100.0)
    assert np.isnan(engine.registry.rows.last_log_own[:3]).all()
    engine.tick(100.0)
    assert engine.registry.rows.last_log_own[:3] == pytest.approx(1.0)


def test_single_long_steps_bound_what_a_job_loses_by_stalls() -> None:
    """Every tenth step takes twice as long: 9.1 % are lost, and no bound is below that."""
    spans_s = np.where(np.arange(40) % 10 == 0, 0.1, 0.05)
    share = _stalled_share(spans_s)
    assert 1 - 0.05 / spans_s.mean() < share < 0.2
    assert _stalled_share(np.full(40, 0.05)) == 0.0
    assert _stalled_share(spans_s[:2]) == 0.0


def test_a_stage_of_a_pipeline_must_be_slow_beyond_its_error() -> None:
    """Members that have peers are compared with these, and need not."""
    registry = world()
    size = registry.rows.size
    registry.rows.scale[:size] = 0.02
    effect = np.full(size, 0.08)
    assert _surely(registry, effect).tolist() == effect.tolist()
    registry.cohorts.is_small[: registry.cohorts.size] = True
    assert (_surely(registry, effect) < 0.08).all()
