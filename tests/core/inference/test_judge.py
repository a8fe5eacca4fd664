"""Verdicts about inference engines: who is named, what for, when it ends, and who never is."""

from dataclasses import replace

import pytest
from tests.support.engine_reports import BUSY, IDLE, JudgedEngines, engine

from ingero.contract.measurements.engines import EngineReport
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.inference import judge as judging
from ingero.core.inference.judge import EngineJudge

STALLED = replace(
    BUSY,
    step_s=None,
    stalled_s=6.0,
    waits="VLLM::Worker (pid 7) is stopped by a signal in execute_model runner.py:12",
    health=200,
)


def replicas(*reports: EngineReport) -> JudgedEngines:
    world = JudgedEngines()
    for number, report in enumerate(reports):
        world.reports[f"node-{number}", engine(number)] = report
    return world


def test_a_stalled_engine_is_named_with_where_it_waits_and_its_price() -> None:
    """F159: no step although /health says 200."""
    world = replicas(BUSY, BUSY)
    world.price = 3.5
    assert world.run(5) == []
    world.reports["node-1", engine(1)] = STALLED
    (verdict,) = world.run(1)
    assert verdict == Verdict(
        episode=verdict.episode,
        state=VerdictState.STRAGGLER,
        node="node-1",
        job="llama",
        cause_class=CauseClass.HANG,
        loss=1.0,
        cause=STALLED.waits,
        since=1_000.0,
        usd_per_hour=3.5,
        evidence="no step while 8 requests run and 0 wait although /health says 200",
        next_step=judging.NEXT_STEPS[judging.FindingKind.STALLED],
        engine="vllm on port 8001, pid 101",
    )
    assert world.run(20) == []  # the same episode, and nothing new to say
    world.reports["node-1", engine(1)] = BUSY
    (resolved,) = world.run(1)
    assert (resolved.episode, resolved.state) == (verdict.episode, VerdictState.RESOLVED)
    assert world.judge.current() == []


def test_idle_engines_are_never_named() -> None:
    """F160: neither stalled nor slow, and their silence is no step of zero seconds."""
    world = replicas(IDLE, BUSY, BUSY, IDLE)
    assert world.run(120) == []


def test_the_slow_replica_of_a_model_is_named_and_nobody_else() -> None:
    """F161: at equal batch, against the median of the others."""
    world = replicas(BUSY, BUSY, BUSY, BUSY)
    assert world.run(40) == []
    world.reports["node-2", engine(2)] = replace(BUSY, step_s=0.03)
    world.price = 2.0
    (verdict,) = world.run(60)
    assert (verdict.node, verdict.state, verdict.peers) == ("node-2", VerdictState.STRAGGLER, 3)
    assert verdict.loss == pytest.approx(1 / 3, abs=1e-4)
    assert verdict.usd_per_hour == pytest.approx(2 / 3, abs=1e-3)
    assert verdict.evidence == (
        "a step takes 30 ms at equal batch instead of 20 ms, the median of 3 other replicas"
    )
    world.reports["node-2", engine(2)] = BUSY
    assert [each.state for each in world.run(60)] == [VerdictState.RESOLVED]


def test_a_larger_batch_is_no_slow_replica() -> None:
    world = replicas(BUSY, BUSY, BUSY, replace(BUSY, step_tokens=64.0, step_s=0.05))
    assert world.run(120) == []


def test_longer_contexts_make_it_not_sure() -> None:
    world = replicas(BUSY, BUSY, BUSY, replace(BUSY, kv_usage=0.9, step_s=0.03))
    (verdict,) = world.run(60)
    assert verdict.state is VerdictState.NOT_SURE
    assert "longer contexts may explain" in verdict.evidence


def test_of_two_replicas_the_one_that_changed_is_named() -> None:
    world = replicas(BUSY, BUSY)
    world.run(40)
    world.reports["node-0", engine(0)] = replace(BUSY, step_s=0.04)
    (verdict,) = world.run(60)
    assert verdict.node == "node-0"
    assert verdict.evidence.endswith("20 ms before, as the other replica still has")


def test_two_replicas_that_always_differed_are_not_judged() -> None:
    world = replicas(BUSY, replace(BUSY, step_s=0.04))
    assert world.run(120) == []


def test_where_half_are_slow_nobody_is_named() -> None:
    slow = replace(BUSY, step_s=0.04)
    assert replicas(BUSY, BUSY, slow, slow).run(120) == []


def test_other_models_are_not_compared() -> None:
    world = replicas(BUSY, BUSY, BUSY)
    world.reports["node-9", replace(engine(9), model="other")] = replace(BUSY, step_s=0.2)
    assert world.run(120) == []


def test_preemptions_of_a_full_cache_are_pressure() -> None:
    """F162: KV-cache pressure overloads an engine; no node is to blame."""
    full = replace(BUSY, kv_usage=0.97, preemptions_per_s=2.0)
    (verdict,) = replicas(full).run(30)
    assert (verdict.state, verdict.cause_class) == (VerdictState.OVERLOADED, CauseClass.KV_CACHE)
    assert verdict.evidence == "the KV cache is 97% full; 2.0 preemptions per second"
    retracted = replace(BUSY, kv_usage=0.97, paused=3.0)
    assert replicas(retracted).run(30)[0].evidence.endswith("3 requests paused")
    assert replicas(replace(BUSY, kv_usage=0.97)).run(30) == []
    assert replicas(replace(BUSY, preemptions_per_s=2.0)).run(30) == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"waiting_capacity": 9.0, "waiting_deferred": 0.0}, "for capacity: the batch is full"),
        ({"waiting_capacity": 9.0, "kv_usage": 0.95}, "for capacity: the KV cache is full"),
        ({"waiting_deferred": 9.0}, "because the engine defers them"),
        ({"kv_usage": 0.95}, "because the KV cache is full"),
        ({"kv_usage": None}, "and the engine does not say why"),
    ],
)
def test_a_growing_queue_is_named_with_its_reason(more: dict[str, float | None], why: str) -> None:
    """F163: the reason is the engine's own where it gives one."""
    world = replicas(BUSY)
    changed: list[Verdict] = []
    for waiting in range(0, 90, 2):
        world.reports["node-0", engine(0)] = replace(BUSY, waiting=float(waiting), **more)  # type: ignore[arg-type]  # numbers
        changed += world.run(1)
    assert [each.cause_class for each in changed] == [CauseClass.QUEUE]
    assert why in changed[0].evidence


def test_a_long_queue_that_does_not_grow_is_not_named() -> None:
    assert replicas(replace(BUSY, waiting=50.0)).run(120) == []


def test_ranks_where_requests_pile_up_are_named() -> None:
    """F164: waiting requests on one data-parallel rank while others wait for work."""
    world = JudgedEngines()
    for rank in range(8):
        waiting = 20.0 if rank == 5 else 0.0
        world.reports["node-0", replace(engine(0), rank=rank)] = replace(BUSY, waiting=waiting)
    (verdict,) = world.run(60)
    assert (verdict.cause_class, verdict.rank) == (CauseClass.DATA_IMBALANCE, 5)
    assert verdict.evidence == ("20 requests wait at rank 5, 0 at the median of the other 7 ranks")


def test_ranks_that_all_wait_are_even() -> None:
    world = JudgedEngines()
    for rank in range(4):
        report = replace(BUSY, waiting=10.0 + rank)
        world.reports["node-0", replace(engine(0), rank=rank)] = report
    assert world.run(60) == []


def test_an_engine_that_ends_is_forgotten_and_its_verdict_resolved() -> None:
    world = replicas(STALLED)
    assert len(world.run(1)) == 1
    world.reports.clear()
    assert [each.state for each in world.run(20)] == [VerdictState.RESOLVED]
    assert len(world.judge) == 0


def test_a_restarted_engine_begins_anew() -> None:
    world = replicas(BUSY, BUSY)
    world.run(40)
    del world.reports["node-0", engine(0)]
    restarted = replace(engine(0), pid=999)
    world.reports["node-0", restarted] = replace(BUSY, step_s=0.04)
    assert world.run(60) == []  # two replicas, and nothing is known of its past


def test_the_number_of_replicas_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MAX_REPLICAS", 3)
    judge = EngineJudge()
    for number in range(5):
        judge.take("node", engine(number), BUSY, 1.0)
    assert (len(judge), judge.dropped) == (3, 2)


def test_the_replica_that_reported_least_recently_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "MAX_REPLICAS", 2)
    judge = EngineJudge()
    for number in (0, 1, 0, 2):
        judge.take("node", engine(number), BUSY, 1.0)
    assert [each.engine.port for each in judge.replicas()] == [8000, 8002]


def test_a_stalled_engine_is_told_with_its_queue_and_beside_others_that_are_full() -> None:
    waits = replace(STALLED, waiting=3.0, health=None, is_up=False)
    full = replace(BUSY, kv_usage=0.97, preemptions_per_s=2.0)
    found = replicas(waits, full).run(30)
    assert [(each.node, each.cause_class) for each in found] == [
        ("node-0", CauseClass.HANG),
        ("node-1", CauseClass.KV_CACHE),
    ]
    assert found[0].evidence == (
        "no step while 8 requests run and 3 wait; its metrics page does not answer either"
    )
    silent = replace(STALLED, running=None, waiting=None, health=None)
    (verdict,) = replicas(silent).run(1)
    assert verdict.evidence == "no step while 0 requests run and 0 wait"
    assert (judging.MAX_REPLICAS, judging.STALE_S) == (4096, 15.0)
