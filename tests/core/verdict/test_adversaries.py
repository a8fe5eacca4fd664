"""Worlds that invite a wrong answer: shared causes, work that moves, throttling, lost pushes.

The worlds of `test_job_events` are the others of this kind.
"""

import numpy as np
import pytest
from tests.support.verdict_world import (
    START_S,
    advance_of,
    blamed,
    events,
    member,
    run,
    run_labelled,
    span_of,
    states,
    steady,
)

from ingero.contract.verdict import CauseClass, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch


def test_a_stage_whose_ranks_slow_down_together_is_one_event_that_names_it() -> None:
    own = steady(560, 16, 21, common=0.004)
    own[420:, 4:8] += np.log1p(0.12)
    found = run_labelled(own, lambda rank: {"role": f"stage{rank // 4}"})
    assert blamed(found) == set()
    (event,) = events(found)
    assert (event.shared, event.peers) == ("stage stage1", 4)
    assert event.evidence.startswith("all 4 members together are 1")


def test_ranks_of_one_gpu_model_that_slow_down_together_blame_nobody() -> None:
    own = steady(560, 16, 22, common=0.005)
    own[420:, :8] += np.log1p(0.12)
    found = run_labelled(own, lambda rank: {"gpu_model": "H100" if rank < 8 else "H200"})
    assert blamed(found) == set()
    assert [event.shared for event in events(found)] == ["GPU model H100"]


def test_an_expert_that_is_hot_for_minutes_moves_with_the_work_from_the_third_on() -> None:
    own = steady(1500, 8, 23)
    for turn in range(4):
        own[200 + 300 * turn : 500 + 300 * turn, 1 + turn] += np.log1p(0.15)
    found = run_labelled(own)
    assert CauseClass.DATA_IMBALANCE in {event.cause_class for event in events(found)}
    assert blamed(found) <= {1, 2, 3}


def test_a_gpu_that_throttles_every_other_minute_by_five_percent_is_one_episode() -> None:
    own = steady(800, 8, 24)
    own[200:, 5] += np.where(np.arange(600) % 120 < 60, np.log1p(0.05), 0.0)
    found = run_labelled(own)
    assert blamed(found) == {5}
    assert (
        len({v.episode for _, v in found if v.rank == 5 and v.state is VerdictState.STRAGGLER}) == 1
    )


@pytest.mark.parametrize("ranks", [8, 64])
def test_two_slow_ranks_are_both_named_soon(ranks: int) -> None:
    own = steady(230, ranks, 25)
    own[200:, [3, ranks - 2]] += np.log1p(0.10)
    found = run_labelled(own)
    assert blamed(found) == {3, ranks - 2}
    assert max(s for s, v in found if v.state is VerdictState.STRAGGLER) <= 214


def test_a_second_rank_as_slow_as_the_first_takes_neither_its_name_nor_the_loss() -> None:
    """The job waits for none of them alone, and all it waits for is their joint loss."""
    own = steady(320, 16, 25)
    own[150:260, 3] += np.log1p(0.15)
    own[220:, 14] += np.log1p(0.15)
    columns = {"span_s": span_of(own), "advance_s": advance_of(own)}
    found = run(own, None, columns)
    assert "the job waits" in found[0][1].evidence
    assert states(found, 3) == ["suspect", "straggler", "recovering", "resolved"]
    assert states(found, 14) == ["suspect", "straggler"]
    recovered = next(s for s, v in found if v.state is VerdictState.RECOVERING)
    assert 260 < recovered <= 265
    engine = VerdictEngine()
    run(own[:255], engine, {name: values[:255] for name, values in columns.items()})
    losses = {v.rank: v.loss for v in engine.current() if not v.at_most}
    assert losses == {3: pytest.approx(0.05, abs=0.01), 14: pytest.approx(0.05, abs=0.01)}


def test_a_slow_ramp_is_named_before_it_costs_a_lot_and_nobody_else_is() -> None:
    own = steady(1400, 8, 26)
    own[200:, 2] += np.log1p(0.20 * np.arange(1200) / 1200)
    found = run_labelled(own)
    assert blamed(found) == {2}
    first = next(s for s, v in found if v.state is VerdictState.STRAGGLER)
    assert 0.20 * (first - 200) / 1200 <= 0.05


def test_ranks_that_leave_and_come_back_do_not_hide_a_slow_one() -> None:
    own = steady(700, 16, 27)
    own[300:500, 12:] = np.nan  # the job continues with twelve ranks
    own[420:, 6] += np.log1p(0.10)
    found = run(own, columns={"span_s": span_of(np.nan_to_num(own))})
    assert blamed(found) == {6}
    first = next(s for s, v in found if v.state is VerdictState.STRAGGLER)
    assert 420 < first <= 435


@pytest.mark.parametrize(("lost", "doubled", "late"), [(0.2, 0.0, 0.0), (0.2, 0.1, 0.2)])
def test_lost_doubled_and_late_pushes_delay_a_name_and_blame_nobody(
    lost: float, doubled: float, late: float
) -> None:
    engine, rng, ranks = VerdictEngine(), np.random.default_rng(28), 8
    members = np.array([engine.register(member(rank), START_S) for rank in range(ranks)])
    own = steady(260, ranks, 28)
    own[200:, 4] += np.log1p(0.08)
    due: dict[int, list[tuple[int, int]]] = {}
    found = []
    for second in range(len(own)):
        for rank in range(ranks):
            fate = rng.random()
            if fate < lost:
                continue
            delay = 3 if fate < lost + late else 0
            due.setdefault(second + delay, []).append((rank, second))
            if fate > 1 - doubled:
                due.setdefault(second + 1, []).append((rank, second))
        for rank, step in due.pop(second, []):
            batch = make_batch(members[[rank]], np.exp(own[step, [rank]]), np.array([step]))
            engine.observe(batch, START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    assert blamed(found) == {4}
    first = next(s for s, v in found if v.state is VerdictState.STRAGGLER)
    assert 200 < first <= 222


@pytest.mark.parametrize(("scatter", "longer"), [(0.10, 1.0), (0.30, 1.0), (0.30, 3.0)])
def test_after_restless_minutes_five_percent_are_found_an_hour_later_as_soon_as_ever(
    scatter: float, longer: float
) -> None:
    """Where steps are not known, only what was learned about own times finds the rank."""
    own = steady(3640, 8, 29)
    own[:180] += np.random.default_rng(3).normal(0, scatter, (180, 8)) + np.log(longer)
    own[3600:, 5] += np.log1p(0.05)
    found = run(own)
    first = next(s for s, v in found if v.state is VerdictState.STRAGGLER and v.rank == 5)
    assert 3600 < first <= 3615
