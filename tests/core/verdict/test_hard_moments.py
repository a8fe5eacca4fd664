"""Faults at moments that make them hard to see: a restart, a rank that was late or fast before."""

import numpy as np
import pytest
from tests.support.verdict_world import START_S, blamed, member, run_labelled, steady

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch


def restarted(own: np.ndarray, begin_s: int, seed: int) -> tuple[list[tuple[int, Verdict]], int]:
    """Feed a job whose ranks are dealt to its nodes anew; columns are nodes.

    Returns what was said, and the new rank of node 7.
    """
    engine, nodes = VerdictEngine(), own.shape[1]
    ranks = np.random.default_rng(seed).permutation(nodes)
    found = []
    for second in range(len(own)):
        if second in (0, begin_s):
            dealt = np.arange(nodes) if second == 0 else ranks
            members = np.array(
                [
                    engine.register(member(int(rank), node=f"n{node}"), START_S + second)
                    for node, rank in enumerate(dealt)
                ]
            )
            began = second
        if not begin_s <= second < begin_s + 20:  # it loads its checkpoint
            now = np.exp(own[second])
            step, span = np.full(nodes, second - began), np.full(nodes, now.max() + 0.15)
            engine.observe(make_batch(members, now, step, span_s=span), START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    return found, int(ranks[7])


@pytest.mark.parametrize("effect", [0.10, 0.20])
def test_a_slow_node_is_named_again_after_a_restart_that_gives_it_another_rank(
    effect: float,
) -> None:
    """It is slow from its first step on, so its steps since then are not calm."""
    own = steady(440, 16, 8)
    own[200:, 7] += np.log1p(effect)
    found, rank = restarted(own, 300, 8)
    named = [(s, v) for s, v in found if v.state is VerdictState.STRAGGLER]
    assert [(v.node, v.rank) for _, v in named] == [("n7", 7), ("n7", rank)]
    assert 320 < named[1][0] <= 400
    assert named[1][1].evidence.endswith("ever since it was first seen")
    assert named[1][1].loss == pytest.approx(effect / (1 + effect), abs=0.035)
    assert {v.state for _, v in found if v.node == "n7"} <= {
        VerdictState.SUSPECT, VerdictState.STRAGGLER, VerdictState.RESOLVED,
    }  # fmt: skip


def test_a_rank_that_was_late_at_no_cost_is_named_soon_when_it_becomes_slow() -> None:
    own = steady(420, 8, 78)
    own[200:, 5] += np.log1p(0.03)
    own[300:, 5] += np.log1p(0.06)
    said = [(s, str(v.state)) for s, v in run_labelled(own) if v.rank == 5]
    assert [state for _, state in said if state != "suspect"] == ["late", "straggler"]
    assert 300 < said[-1][0] <= 315


@pytest.mark.parametrize("by", [0.05, 0.10])
def test_a_rank_that_was_faster_for_a_minute_is_not_slow_afterwards(by: float) -> None:
    own = steady(400, 8, 5)
    own[140:200, 5] -= np.log1p(by)
    assert blamed(run_labelled(own)) == set()
    own[200:, 5] += np.log1p(0.06)
    found = run_labelled(own)
    first = next(s for s, v in found if v.state is VerdictState.STRAGGLER)
    assert (blamed(found), 200 < first <= 212) == ({5}, True)


@pytest.mark.parametrize("begin_s", [5, 15, 18, 20, 22, 35, 60])
def test_a_fault_that_begins_during_the_warm_up_is_named(begin_s: int) -> None:
    """A first baseline of calm and slow samples seems to scatter; it must not stay for good."""
    own = steady(420, 8, 4)
    own[begin_s:, 5] += np.log1p(0.10)
    assert blamed(run_labelled(own)) == {5}


@pytest.mark.parametrize("by", [0.15, -0.15])
def test_stages_of_a_job_that_began_at_another_pace_are_measured_at_its_own(by: float) -> None:
    """What it showed at first is not what its ranks usually take, and no peer hides anything."""
    own = steady(460, 8, 7, common=0.005) + np.arange(8) % 4 * 0.2
    own[:20] += np.log1p(by)
    own[400:, 3] += np.log1p(0.20)
    found = run_labelled(own, lambda rank: {"role": f"pp{rank % 4}"})
    named = [v for _, v in found if v.state is VerdictState.STRAGGLER]
    assert [(v.rank, v.excess) for v in named] == [(3, pytest.approx(0.19, abs=0.01))]


def test_slowness_that_grows_in_steps_is_one_episode_and_its_loss_grows() -> None:
    own = steady(420, 8, 2)
    for at, more in ((200, 0.05), (260, 0.05), (320, 0.06)):
        own[at:, 5] += np.log1p(more)
    found = run_labelled(own)
    assert {(v.rank, v.episode) for _, v in found} == {(5, found[0][1].episode)}
    assert found[-1][1].state is VerdictState.STRAGGLER


@pytest.mark.parametrize("away_s", [10, 25, 60])
def test_an_agent_that_restarts_inside_an_episode_goes_on_with_it(away_s: int) -> None:
    own = steady(440, 8, 7)
    own[200:, 5] += np.log1p(0.10)
    engine = VerdictEngine()
    members = np.array([engine.register(member(rank), START_S) for rank in range(8)])
    found = []
    for second in range(len(own)):
        if second == 260 + away_s:
            engine.register(member(5), START_S + second)
        who = members[np.arange(8) != 5] if 260 <= second < 260 + away_s else members
        span = np.full(len(who), np.exp(own[second]).max() + 0.15)
        batch = make_batch(who, np.exp(own[second, who]), np.full(len(who), second), span_s=span)
        engine.observe(batch, START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    assert [str(v.state) for _, v in found if v.rank == 5][-1] == "straggler"
    assert {v.rank for _, v in found} == {5}
    assert len({v.episode for _, v in found}) == 1


def test_a_node_whose_eight_ranks_are_slow_by_different_amounts_is_one_event() -> None:
    own = steady(320, 64, 11)
    own[200:, 24:32] += np.log1p(np.linspace(0.03, 0.20, 8))
    found = run_labelled(own, lambda rank: {"node": f"n{rank // 8}"})
    assert blamed(found) == set()
    (event,) = [v for _, v in found if v.state is VerdictState.FLEET_EVENT]
    assert (event.shared, event.node) == ("node n3", "n3")


def test_a_host_fault_after_a_gpu_fault_on_the_same_rank_has_a_class_of_its_own() -> None:
    own = steady(560, 8, 3)
    own[200:260, 5] += np.log1p(0.10)
    own[400:, 5] += np.log1p(0.15)
    idle = np.full(own.shape, 0.1)
    idle[400:, 5] += 0.15
    engine = VerdictEngine()
    members = np.array([engine.register(member(rank), START_S) for rank in range(8)])
    found = []
    for second in range(len(own)):
        batch = make_batch(members, np.exp(own[second]), np.full(8, second), idle_s=idle[second])
        engine.observe(batch, START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    named = [v for _, v in found if v.state is VerdictState.STRAGGLER]
    assert [(v.rank, str(v.cause_class)) for v in named] == [(5, "compute"), (5, "host")]
