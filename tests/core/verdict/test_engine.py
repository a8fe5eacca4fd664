"""The verdict engine: which ranks are named, which are not, and when nobody may be named."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers
from tests.support.verdict_world import ONSET, START_S, blamed, member, noise, run, slowed, states

from ingero.contract.verdict import CauseClass, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch
from ingero.core.verdict.policy import VerdictPolicy


def test_one_rank_slower_by_five_percent_is_named_within_twenty_seconds_and_nobody_else() -> None:
    found = run(slowed())
    assert blamed(found) == {3}
    second, verdict = next((s, v) for s, v in found if v.state is VerdictState.STRAGGLER)
    assert ONSET < second < ONSET + 20
    assert verdict.excess == pytest.approx(0.05, abs=0.02)
    assert verdict.peers == 7
    assert verdict.error is not None
    assert "against the median of 7 peers" in verdict.evidence


def test_an_episode_keeps_its_id_from_suspicion_to_recovery() -> None:
    own = slowed(seconds=330)
    own[230:, 3] -= np.log1p(0.05)
    found = [verdict for _, verdict in run(own) if verdict.rank == 3]
    assert len({verdict.episode for verdict in found}) == 1
    assert [str(verdict.state) for verdict in found] == [
        "suspect",
        "straggler",
        "recovering",
        "resolved",
    ]


def test_a_small_slowdown_is_first_suspected_then_confirmed() -> None:
    assert states(run(slowed(effect=0.025, seconds=300)), 3)[:2] == ["suspect", "straggler"]


def test_the_same_calls_give_the_same_bytes() -> None:
    first, second = (msgspec.json.encode([v for _, v in run(slowed(effect=0.1))]) for _ in range(2))
    assert first == second


@settings(max_examples=8, deadline=None)
@given(seed=integers(0, 1000), factor=floats(0.001, 1000))
def test_scaling_all_own_times_changes_nothing(seed: int, factor: float) -> None:
    own = slowed(effect=0.1, seed=seed % 5)
    scaled = run(own + np.log(factor))
    plain = run(own)
    assert [(s, v.rank, v.state, v.episode) for s, v in scaled] == [
        (s, v.rank, v.state, v.episode) for s, v in plain
    ]


@settings(max_examples=8, deadline=None)
@given(seed=integers(0, 1000))
def test_the_order_of_ranks_changes_nothing(seed: int) -> None:
    """Permuting the ranks permutes the blame."""
    own = slowed(effect=0.1)
    order = np.random.default_rng(seed).permutation(8)
    moved = {int(order[rank]) for rank in blamed(run(own[:, order])) if rank is not None}
    assert moved == {3}


@settings(max_examples=8, deadline=None)
@given(seed=integers(0, 1000), share=floats(0.05, 0.6))
def test_missing_data_never_blames_a_node(seed: int, share: float) -> None:
    own = noise(260, 8, seed=2)
    own[np.random.default_rng(seed).random(own.shape) < share] = np.nan
    own[200:, 5] = np.nan
    assert blamed(run(own)) == set()


def test_a_silent_straggler_is_closed_with_no_data_not_as_recovered() -> None:
    own = slowed(effect=0.2, seconds=560)
    own[200:, 3] = np.nan
    last = [verdict for _, verdict in run(own) if verdict.rank == 3][-1]
    assert (last.state, last.evidence) == (VerdictState.RESOLVED, "no data any more")


@pytest.mark.parametrize("share", [0.49, 0.9])
def test_many_moving_together_are_one_fleet_event(share: float) -> None:
    own = noise(260, 64, seed=3)
    own[ONSET:, : int(share * 64)] += 0.1
    found = run(own)
    assert blamed(found) == set()
    if share < 0.5:
        assert [v.state for _, v in found] == [VerdictState.FLEET_EVENT]
        assert "slowed down together" in found[0][1].evidence


def test_a_third_of_the_fleet_is_named_node_by_node() -> None:
    own = noise(260, 64, seed=4)
    own[ONSET:, 1:20] += 0.1
    assert blamed(run(own)) == set(range(1, 20))


def test_a_fleet_that_slows_down_together_is_one_event_without_blame() -> None:
    own = noise(300, 16, seed=5)
    own[ONSET:] += 0.3
    found = run(own)
    assert blamed(found) == set()
    assert any("together are" in v.evidence and v.cause_class is CauseClass.FLEET for _, v in found)


def test_losing_half_of_the_fleet_is_a_coverage_event() -> None:
    own = noise(300, 16, seed=6)
    own[ONSET:, 8:] = np.nan
    own[ONSET:, 2] += 0.1
    found = run(own)
    assert any("only 8 of 16 members report" in v.evidence for _, v in found)


def test_two_gpu_generations_without_a_label_are_a_split_cohort() -> None:
    own = noise(260, 16, seed=7)
    own[:, 8:] += 0.25
    own[ONSET:, 3] += 0.1
    found = run(own)
    assert blamed(found) == set()
    assert [(v.state, v.cause_class) for _, v in found] == [
        (VerdictState.NOT_SURE, CauseClass.STRUCTURAL)
    ]


def test_two_labelled_generations_are_two_cohorts() -> None:
    own = noise(230, 16, seed=7)
    own[:, :8] += 0.25
    own[ONSET:, 3] += 0.1
    engine = VerdictEngine()
    for rank in range(16):
        engine.register(member(rank, gpu_model="old" if rank < 8 else "new"), START_S)
    found = []
    members = np.arange(16)
    for second in range(len(own)):
        engine.observe(
            make_batch(members, np.exp(own[second]), np.full(16, second)), START_S + second
        )
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    assert blamed(found) == {3}


def test_slow_from_birth_is_named_but_rank_zero_is_excused() -> None:
    own = noise(280, 8, seed=8)
    own[:, 5] += 0.15
    engine = VerdictEngine()
    found = run(own, engine)
    assert blamed(found) == {5}
    assert "ever since it was first seen" in found[0][1].evidence
    assert engine.chronic()[0][0].rank == 5
    own[:, 0], own[:, 5] = own[:, 5].copy(), own[:, 0].copy()
    assert blamed(run(own)) == set()


def test_f109_a_stall_every_14_steps_is_found_with_its_period() -> None:
    """F109."""
    own = noise(400, 8, seed=9)
    own[ONSET::14, 5] += 0.3
    found = run(own)
    assert blamed(found) == {5}
    verdict = next(v for _, v in found if v.state is VerdictState.STRAGGLER)
    assert (verdict.cause_class, verdict.period) == (CauseClass.STALL, 14)


def test_f108_rank_5_late_by_290_ms_every_14_steps_is_named_with_its_lateness() -> None:
    """F108: steps of 250 ms; the other ranks wait."""
    engine = VerdictEngine()
    members = np.array([engine.register(member(rank), START_S) for rank in range(8)])
    rng = np.random.default_rng(4)
    found = []
    for second in range(200):
        steps = np.repeat(np.arange(second * 4, second * 4 + 4), 8)
        own = 0.25 * np.exp(rng.normal(0, 0.008, 32))
        late = (np.tile(np.arange(8), 4) == 5) & (steps % 14 == 0) & (second > 100)
        batch = make_batch(
            np.tile(members, 4), own + 0.29 * late, steps, lateness_s=np.where(late, 0.29, 0.0)
        )
        engine.observe(batch, START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    assert blamed(found) == {5}
    verdict = next(v for _, v in found if v.state is VerdictState.STRAGGLER)
    assert verdict.period == 14
    assert verdict.excess == pytest.approx(0.29 / 0.25, rel=0.1)


def test_a_lasting_slowdown_near_the_stall_line_is_no_stall() -> None:
    found = run(slowed(effect=0.09, seconds=400))
    assert blamed(found) == {3}
    assert {v.cause_class for _, v in found if v.rank == 3} == {CauseClass.UNKNOWN}


def test_two_members_are_compared_with_their_own_baseline_and_not_sure() -> None:
    own = np.random.default_rng(11).normal(0, 0.005, (300, 2))
    own[200:, 1] += 0.1
    found = run(own)
    assert blamed(found) == set()
    assert {(v.rank, v.state) for _, v in found} == {
        (1, VerdictState.SUSPECT),
        (1, VerdictState.NOT_SURE),
    }
    assert "its own baseline" in found[0][1].evidence


@pytest.mark.parametrize(
    ("idle_share", "cause"), [(1.0, CauseClass.HOST), (0.0, CauseClass.COMPUTE)]
)
def test_idle_gpu_time_distinguishes_host_from_compute(
    idle_share: float, cause: CauseClass
) -> None:
    engine = VerdictEngine()
    members = np.array([engine.register(member(rank), START_S) for rank in range(8)])
    own = np.exp(slowed(effect=0.2))
    found = []
    for second in range(len(own)):
        extra = 0.2 * (members == 3) * (second >= ONSET) * idle_share
        engine.observe(
            make_batch(members, own[second], np.full(8, second), idle_s=0.05 + extra),
            START_S + second,
        )
        found += engine.tick(START_S + second)
    assert {v.cause_class for v in found if v.state is VerdictState.STRAGGLER} == {cause}


def test_one_that_keeps_nobody_waiting_is_suspected_but_not_blamed() -> None:
    engine = VerdictEngine()
    members = np.array([engine.register(member(rank), START_S) for rank in range(8)])
    own = np.exp(slowed(effect=0.2))
    found = []
    for second in range(len(own)):
        late = np.where(members == 3, 0.0, 0.01)
        engine.observe(
            make_batch(members, own[second], np.full(8, second), lateness_s=late), START_S + second
        )
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    assert blamed(found) == set()
    assert states(found, 3)[0] == "suspect"


def test_the_price_is_what_the_whole_job_would_gain() -> None:
    """Steps end with the slowest: one of eight GPUs 30 % slower wastes 0.3 / 1.3 of all eight."""
    found = run(slowed(effect=0.3), usd_per_gpu_hour=2.0)
    verdict = next(v for _, v in found if v.state is VerdictState.STRAGGLER)
    assert verdict.usd_per_hour == pytest.approx(8 * 2.0 * 0.3 / 1.3, rel=0.05)


def test_unnumbered_samples_work_too() -> None:
    engine = VerdictEngine()
    members = np.array([engine.register(member(rank), START_S) for rank in range(8)])
    own = np.exp(slowed())
    found = []
    for second in range(len(own)):
        engine.observe(make_batch(members, own[second]), START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    assert blamed(found) == {3}


def test_five_second_pushes_name_the_rank_within_twenty_seconds() -> None:
    engine = VerdictEngine()
    members = np.array([engine.register(member(rank), START_S) for rank in range(8)])
    own = np.exp(slowed(seconds=200))
    found = []
    for second in range(len(own)):
        who = np.flatnonzero((second + members) % 5 == 4)
        steps = np.arange(max(0, second - 4), second + 1)
        if len(who):
            batch = make_batch(
                np.tile(who, len(steps)), own[steps][:, who].ravel(), np.repeat(steps, len(who))
            )
            engine.observe(batch, START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    assert blamed(found) == {3}
    assert next(s for s, v in found if v.state is VerdictState.STRAGGLER) <= ONSET + 20


def test_duplicates_and_strangers_are_counted_not_used() -> None:
    engine = VerdictEngine(VerdictPolicy(max_members=3))
    members = np.array([engine.register(member(rank), START_S) for rank in range(3)])
    assert engine.register(member(9), START_S) is None
    assert engine.counters.refused_members == 1
    batch = make_batch(members, np.ones(3), np.zeros(3, int))
    engine.observe(batch, START_S)
    engine.observe(batch, START_S)
    engine.tick(START_S)
    assert engine.frames.duplicates == 3
    assert len(make_batch(members, np.array([0.0, -1.0, np.nan]))) == 0


def test_ranks_of_jobs_long_over_make_room_for_new_ones() -> None:
    engine = VerdictEngine(VerdictPolicy(max_members=8))
    run(noise(100, 8), engine)
    assert engine.register(member(0, job="next"), START_S + 200) is None
    assert engine.counters.refused_members == 1
    later_s, own = START_S + 4000, np.exp(slowed(effect=0.1))
    members = np.array([engine.register(member(rank, job="later"), later_s) for rank in range(8)])
    assert sorted(members.tolist()) == list(range(8))  # the same rows again
    found = []
    for second in range(len(own)):
        engine.observe(make_batch(members, own[second], np.full(8, second)), later_s + second)
        found += [(second, verdict) for verdict in engine.tick(later_s + second)]
    assert blamed(found) == {3}


def test_a_host_that_always_was_slower_to_enqueue_is_not_the_cause_of_a_slow_gpu() -> None:
    """How long a GPU waits for its host differs from rank to rank; only a change means host."""
    engine = VerdictEngine()
    members = np.array([engine.register(member(rank), START_S) for rank in range(8)])
    own = np.exp(slowed())
    idle = 0.10 + 0.04 * (members == 3)
    found = []
    for second in range(len(own)):
        engine.observe(
            make_batch(members, own[second], np.full(8, second), idle_s=idle), START_S + second
        )
        found += engine.tick(START_S + second)
    (named,) = {
        (verdict.rank, verdict.cause_class)
        for verdict in found
        if verdict.state is VerdictState.STRAGGLER
    }
    assert named == (3, CauseClass.COMPUTE)


def test_a_recovering_rank_keeps_the_cause_and_size_of_its_slow_time() -> None:
    own = slowed(seconds=330)
    own[230:, 3] -= np.log1p(0.05)
    found = [verdict for _, verdict in run(own) if verdict.rank == 3]
    slow = [verdict for verdict in found if verdict.state is VerdictState.STRAGGLER][-1]
    over = [
        verdict
        for verdict in found
        if verdict.state in (VerdictState.RECOVERING, VerdictState.RESOLVED)
    ]
    assert len(over) == 2
    assert {verdict.cause_class for verdict in over} == {slow.cause_class}
    assert min(verdict.excess for verdict in over) > 0.02


@pytest.mark.parametrize("end", range(180, 190, 2))
def test_the_steps_of_its_recovery_do_not_change_a_cause(end: int) -> None:
    """With many steps a second, the last ones are normal while some samples are still slow."""
    engine, rng = VerdictEngine(), np.random.default_rng(4)
    members = np.array([engine.register(member(rank), START_S) for rank in range(8)])
    everyone, causes = np.tile(members, 32), set()
    for second in range(end + 20):
        own = 0.03 * np.exp(rng.normal(0, 0.005, (32, 8)))
        own[:, 3] *= 1.1 if 150 <= second < end else 1.0
        idle = np.full((32, 8), 0.003)
        idle[:, 3] += 0.0003 * (second >= end)  # little, but more than the remaining excess
        step = np.repeat(np.arange(32) + 32 * second, 8)
        engine.observe(
            make_batch(everyone, own.ravel(), step, idle_s=idle.ravel()), START_S + second
        )
        engine.tick(START_S + second)
        causes |= {verdict.cause_class for verdict in engine.current()}
    assert causes == {CauseClass.COMPUTE}


def test_stalls_that_begin_right_after_the_warm_up_are_named_with_their_period() -> None:
    """The clean history of all peers counts together, however short each is: six stalls suffice."""
    own = np.exp(noise(200, 8, spread=0.002))
    own[80::14, 5] += 1.0
    (named,) = {
        (v.rank, v.cause_class, v.period)
        for s, v in run(np.log(own))
        if v.state is VerdictState.STRAGGLER and s < 170
    }
    assert named == (5, CauseClass.STALL, 14)


def test_ranks_that_change_places_do_not_count_as_missing() -> None:
    """A restart moves ranks to other nodes: the old members are gone, not missing.

    The slow rank is named on the node where it runs now.
    """
    own = noise(420, 8, seed=5)
    own[300:, 3] += np.log1p(0.10)
    engine, found = VerdictEngine(), []
    for begin, shift in ((0, 0), (150, 3)):
        end = 150 if begin == 0 else 420
        members = [
            engine.register(member(r, node=f"n{(r + shift) % 8}"), START_S + begin)
            for r in range(8)
        ]
        for second in range(begin, end):
            batch = make_batch(np.array(members), np.exp(own[second]), np.full(8, second))
            engine.observe(batch, START_S + second)
            found += engine.tick(START_S + second)
    assert [v for v in found if v.state is VerdictState.FLEET_EVENT] == []
    assert {(v.node, v.rank) for v in found if v.state is VerdictState.STRAGGLER} == {("n6", 3)}
