"""Worlds in which many ranks slow down together: one event, for as long as they are slow."""

import numpy as np
import pytest
from tests.support.verdict_world import (
    START_S,
    blamed,
    events,
    member,
    run,
    run_labelled,
    span_of,
    steady,
)

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch


def stage_of_two(rank: int) -> dict[str, object]:
    return {"role": f"pp{rank // 2}"}


def related(seconds: int, jobs: int, ranks: int, seed: int, common: float) -> np.ndarray:
    """Return noise of 1 % per rank around a common mode per job; neighbouring samples are alike."""
    rng = np.random.default_rng(seed)
    own = 0.008 * rng.standard_t(5, (seconds, jobs * ranks)) * np.sqrt(3 / 5)
    mode = common * np.sqrt(1 - 0.99**2) * rng.normal(0, 1, (seconds, jobs))
    for second in range(1, seconds):
        own[second] += 0.6 * own[second - 1]
        mode[second] += 0.99 * mode[second - 1]
    return own + np.repeat(mode, ranks, axis=1)


@pytest.mark.parametrize("begin_s", [200, 420])
def test_a_slow_replica_of_a_pipeline_is_one_event_for_as_long_as_it_is_slow(begin_s: int) -> None:
    """Stages of two are compared with their own past, which must not follow an event."""
    own = steady(begin_s + 400, 16, 31)
    own[begin_s:, 1::2] += np.log1p(0.10)
    found = run_labelled(own, stage_of_two)
    assert [event.evidence for event in events(found)] == ["8 of 16 members slowed down together"]
    assert {v.state for _, v in found} == {VerdictState.FLEET_EVENT}


@pytest.mark.parametrize("seed", [32, 33])
def test_a_pipeline_that_slows_down_as_a_whole_blames_nobody(seed: int) -> None:
    """What a whole job changes by is no usual own time of its members."""
    own = steady(500, 16, seed)
    own[200:] += np.log1p(0.10)
    found = run_labelled(own, stage_of_two)
    assert blamed(found) == set()
    assert {v.rank for _, v in found if v.state is VerdictState.LATE} == set()


def test_pipelines_with_two_replicas_are_quiet_in_health_for_a_day() -> None:
    """Here 24 jobs run for an hour each. What a whole job does must not look like one rank's."""
    jobs, engine = 24, VerdictEngine()
    pace = np.log([1, 1, 1.1, 1.1, 1.2, 1.2, 1.25, 1.25])
    own = related(3600, jobs, 8, seed=71, common=0.03) + np.tile(pace, jobs)
    members = np.array(
        [
            engine.register(member(rank, job=f"j{job}", **stage_of_two(rank)), START_S)
            for job in range(jobs)
            for rank in range(8)
        ]
    )
    found = []
    for second, row in enumerate(np.exp(own)):
        span = np.repeat(row.reshape(jobs, 8).max(axis=1) + 0.15, 8)
        batch = make_batch(members, row, np.full(len(row), second), span_s=span)
        engine.observe(batch, START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    assert blamed(found) == set()
    assert len(events(found)) <= 1


def test_most_ranks_that_stay_slow_for_minutes_are_one_event_that_stays_open() -> None:
    own = steady(700, 64, 4)
    own[300:, :48] += np.log1p(0.10)
    found = run_labelled(own)
    assert [v.evidence for _, v in found] == ["48 of 64 members slowed down together"]


def named_s(found: list[tuple[int, Verdict]], rank: int) -> int:
    """Return when a rank was first named."""
    return next(s for s, v in found if v.rank == rank and v.state is VerdictState.STRAGGLER)


@pytest.mark.parametrize("slow", [32, 48])
def test_most_ranks_of_a_job_that_share_a_rack_are_one_event_that_names_it(slow: int) -> None:
    own = steady(400, 64, 5)
    own[200:, :slow] += np.log1p(0.10)
    found = run_labelled(own, lambda rank: {"labels": (("rack", "a" if rank < slow else "b"),)})
    assert [(v.shared, v.evidence) for _, v in found] == [
        ("rack a", f"{slow} of 64 members slowed down together, and what they share is rack a")
    ]
    assert found[0][1].next_step.startswith("look at what rack a has in common")


def test_one_of_two_nodes_that_is_slow_is_named_by_the_event() -> None:
    own = steady(400, 16, 5)
    own[200:, :8] += np.log1p(0.10)
    found = run_labelled(own, lambda rank: {"node": f"n{rank // 8}"})
    assert [(v.shared, v.node, v.rank) for _, v in found] == [("node n0", "n0", None)]


@pytest.mark.parametrize("slow", [24, 48])
def test_a_gpu_model_that_becomes_slower_is_one_event_that_names_it(slow: int) -> None:
    """It does not set the pace by its nature: what its ranks usually take is less."""
    own = steady(700, 64, 6, common=0.005)
    own[420:, :slow] += np.log1p(0.10)
    found = run_labelled(own, lambda rank: {"gpu_model": "H100" if rank < slow else "H200"})
    assert [(v.state, v.shared) for _, v in found] == [(VerdictState.FLEET_EVENT, "GPU model H100")]


def test_a_slow_stage_is_said_once_however_long_it_lasts() -> None:
    own = steady(700, 16, 7, common=0.005)
    own[420:, 4:6] += np.log1p(0.10)
    found = run_labelled(own, stage_of_two)
    assert [(v.state, v.shared) for _, v in found] == [(VerdictState.FLEET_EVENT, "stage pp2")]


@pytest.mark.parametrize("rise", [0.10, 1.0])
def test_a_rank_that_becomes_slow_while_the_whole_job_is_slower_is_named_as_soon_as_ever(
    rise: float,
) -> None:
    """A batch of twice the size is such a job, too."""
    own = steady(700, 16, 8, common=0.005)
    own[420:] += np.log1p(rise)
    own[560:, 5] += np.log1p(0.08)
    found = run_labelled(own)
    assert (blamed(found), len(events(found))) == ({5}, 1)
    assert 560 < named_s(found, 5) <= 572
    named = [v for _, v in found if v.state is VerdictState.STRAGGLER][-1]
    assert named.loss == pytest.approx(0.06, abs=0.02), "of the steps that the job has now"


def test_what_a_rank_loses_is_not_what_its_whole_job_became_slower_by() -> None:
    own = steady(700, 16, 9, common=0.005)
    own[420:] += np.log1p(0.30)
    own[420:, 5] += np.log1p(0.10)
    engine = VerdictEngine()
    assert blamed(run(own, engine, {"span_s": span_of(own)})) == {5}
    (loss,) = [(v.loss, v.at_most) for v in engine.current() if v.rank == 5]
    assert loss == (pytest.approx(0.07, abs=0.02), True)


@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_slows_some_ranks_down_more_than_others_is_one_event(seed: int) -> None:
    """Who is named before it is known that all are slower may stand out; the others do not."""
    own = steady(760, 16, seed, common=0.005)
    own[420:] += np.log1p(np.random.default_rng(seed).uniform(0.07, 0.13, 16))
    found = run_labelled(own)
    assert blamed([entry for entry in found if entry[0] > 520]) <= blamed(
        [entry for entry in found if entry[0] <= 520]
    )
    assert 1 <= len(events(found)) <= 2
