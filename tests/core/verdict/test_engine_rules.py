"""Who holds a rank, what is kept of episodes, and when calm ends one: on tables alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support.verdict_tables import PEERS, POLICY, member, world

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.engine import EngineCounters, VerdictEngine
from ingero.core.verdict.members import Member
from ingero.core.verdict.own_times import make_batch
from ingero.core.verdict.policy import (
    VerdictPolicy,
)
from ingero.core.verdict.table import (
    STRAGGLER,
)
from ingero.errors import ConfigError


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


def test_a_node_without_ranks_is_none_of_the_ranks() -> None:
    node = Member(cluster="c", node="n")
    ranks = [replace(node, rank=rank) for rank in range(3)]
    assert len({member.rank_key for member in (node, *ranks)}) == 4


def test_a_cohort_that_becomes_small_starts_over_and_another_does_not() -> None:
    engine = VerdictEngine()
    for rank in range(3):
        engine.register(Member(cluster="c", node=f"n{rank}", rank=rank, job="j"), 100.0)
        engine.register(Member(cluster="c", node=f"n{rank}", rank=rank, job="k"), 100.0)
    rows = engine.registry.rows
    rows.last_seen_s[:6], rows.baseline_samples[:6] = 500.0, 60
    engine._update_expected(500.0)
    assert rows.baseline_samples[:6].tolist() == [60] * 6
    rows.last_seen_s[0] = 100.0  # silent for longer than anybody waits
    engine._update_expected(500.0)
    small = rows.cohort[:6] == rows.cohort[0]
    assert not rows.baseline_samples[:6][small].any()
    assert (rows.baseline_samples[:6][~small] == 60).all()


def test_members_are_found_by_job_node_and_rank() -> None:
    registry = world()
    assert registry.find_named("j", "n3", 3) == 2
    assert registry.find_named("j", "n3", 4) is None
    assert registry.find_named("k", "n3", 3) is None


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
