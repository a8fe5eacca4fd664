"""Members that come, go and change while verdicts are open, and cohorts of one to three."""

import numpy as np
import pytest
from tests.support.verdict_world import ONSET, START_S, blamed, member, noise, run, slowed, states

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch


def go_on(
    engine: VerdictEngine, members: list[int | None], log_own: np.ndarray, after: int
) -> list[Verdict]:
    """Continue with the same ranks; row n of `log_own` is second `after` + n."""
    found = []
    for second, row in enumerate(log_own, after):
        batch = make_batch(np.array(members), np.exp(row), np.full(len(row), second))
        engine.observe(batch, START_S + second)
        found += engine.tick(START_S + second)
    return found


def test_a_straggler_whose_labels_change_is_compared_anew_not_left_open() -> None:
    engine = VerdictEngine()
    assert blamed(run(slowed(effect=0.3), engine)) == {3}
    members = [engine.register(member(rank, role="dp"), START_S + 230) for rank in range(8)]
    found = go_on(engine, members, noise(30, 8), 230)
    assert [(v.rank, v.state, v.evidence) for v in found] == [
        (3, VerdictState.RESOLVED, "compared anew: its peers or labels changed")
    ]
    assert engine.current() == []


def test_a_straggler_whose_cohort_shrinks_below_three_is_compared_anew() -> None:
    own = slowed(ranks=3, rank=1, effect=0.3, seconds=560)
    own[230:, 2] = np.nan
    engine = VerdictEngine()
    assert states(run(own, engine), 1)[-1] == "resolved"
    assert [v for v in engine.current() if v.node] == []


def test_ranks_that_moved_to_other_nodes_are_neither_peers_nor_paid_for_twice() -> None:
    engine = VerdictEngine()
    run(noise(100, 8), engine, usd_per_gpu_hour=2.0)
    members = [
        engine.register(member(rank, node=f"new{rank}", usd_per_gpu_hour=2.0), START_S + 100)
        for rank in range(8)
    ]
    found = go_on(engine, members, slowed(effect=0.3, seconds=ONSET + 30), 100)
    named = next(v for v in found if v.state is VerdictState.STRAGGLER)
    assert (named.node, named.peers) == ("new3", 7)
    assert named.usd_per_hour == pytest.approx(8 * 2.0 * 0.3 / 1.3, rel=0.05)


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_one_slow_rank_of_three_is_no_fleet_event(slow: int) -> None:
    found = run(slowed(ranks=3, rank=slow, effect=1.0, seconds=260))
    assert blamed(found) == {slow}
    assert {v.rank for _, v in found} == {slow}


def test_two_members_are_not_slower_together_when_one_is() -> None:
    found = run(slowed(ranks=2, rank=1, effect=1.0, seconds=260))
    assert states(found, 1)[-1] == "not_sure"
    assert [v for _, v in found if not v.node] == []


def test_a_lone_member_is_judged_by_its_baseline_and_has_no_price() -> None:
    """Without peers, the possible speed of the job is unknown."""
    engine = VerdictEngine()
    found = run(slowed(ranks=1, rank=0, effect=0.3, seconds=260), engine, usd_per_gpu_hour=2.0)
    assert states(found, 0)[-1] == "not_sure"
    assert [v.usd_per_hour for v in engine.current()] == [None]


def test_stalls_without_a_steady_period_have_a_price_all_the_same() -> None:
    rng = np.random.default_rng(5)
    own = noise(700, 8, spread=0.005)
    own[ONSET:, 2] += np.where(rng.random(550) < 0.1, np.log(2.0), 0.0)
    engine = VerdictEngine()
    run(own, engine, usd_per_gpu_hour=2.0)
    (verdict,) = engine.current()
    assert verdict.period is None
    assert verdict.usd_per_hour == pytest.approx(8 * 2.0 * 0.1 / 1.1, rel=0.5)


@pytest.mark.parametrize("own_s", [0.0, -1.0, 1e-300, 1e300, np.inf, np.nan])
def test_an_own_time_that_no_step_can_have_is_missing(own_s: float) -> None:
    assert len(make_batch(np.array([0]), np.array([own_s]))) == 0


def test_who_was_early_once_may_be_late_now() -> None:
    """Lateness that is not measured any more does not prevent a verdict."""
    engine = VerdictEngine()
    members = np.array([engine.register(member(rank), START_S) for rank in range(8)])
    own, late = np.exp(slowed(effect=0.1)), np.where(np.arange(8) == 3, 0.0, 0.01)
    found = []
    for second in range(len(own)):
        lateness = late if second < 100 else np.full(8, np.nan)
        engine.observe(
            make_batch(members, own[second], np.full(8, second), lateness_s=lateness),
            START_S + second,
        )
        found += engine.tick(START_S + second)
    assert {v.rank for v in found if v.state is VerdictState.STRAGGLER} == {3}


def test_labels_that_change_for_ever_take_no_more_room() -> None:
    engine = VerdictEngine()
    for second in range(300):
        index = engine.register(
            member(0, role=f"r{second}", job=f"j{second // 10 % 2}"), START_S + second
        )
        engine.observe(
            make_batch(np.array([index]), np.array([0.1]), np.array([second])), START_S + second
        )
        engine.tick(START_S + second)
    assert engine.registry.cohorts.size <= 20
    assert len(engine.registry.cohort_keys) == engine.registry.cohorts.size
