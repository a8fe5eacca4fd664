"""Engines in Fleet: replicas of different nodes compared, and the same surfaces as for ranks."""

from dataclasses import replace
from pathlib import Path

from tests.support.engine_reports import BUSY, engine

from ingero.config.rates import load_rates
from ingero.contract.exposition import render
from ingero.contract.measurements.engines import EngineId, EngineReport, encode_engine
from ingero.contract.names import NODE_ID
from ingero.contract.otlp.codec import decode_protobuf, encode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.types import Identity
from ingero.contract.verdict import VerdictState, decode_verdicts
from ingero.fleet.engines.metrics import engine_families
from ingero.fleet.replay import encode_one, replay
from ingero.fleet.verdict_metrics import verdict_families
from ingero.fleet.verdicts import VerdictService
from ingero.storage.input_log import PUSH, TICK, VERDICT, InputLog

STALLED = replace(BUSY, step_s=None, stalled_s=6.0, waits="worker waits", health=200)


def push(node: str, who: EngineId, report: EngineReport, **more: str) -> MetricsRequest:
    identity = Identity(node=node, cluster="c", **more)  # type: ignore[arg-type]  # texts only
    return MetricsRequest((encode_engine(identity, who, report, 1),))


def test_the_slow_replica_of_four_nodes_is_named_on_every_surface() -> None:
    """F161: status, reply to its node only, and metrics."""
    service = VerdictService()
    named = []
    for second in range(60):
        for number in range(4):
            report = replace(BUSY, step_s=0.05) if number == 2 else BUSY
            service.take(push(f"node-{number}", engine(), report), "c", 1_000.0 + second)
        named += service.tick(1_000.0 + second)
    ((cluster, verdict),) = named
    assert (cluster, verdict.node, verdict.state) == ("c", "node-2", VerdictState.STRAGGLER)
    assert service.recent_verdicts("c") == [verdict]
    assert service.open_verdicts() == [("c", verdict)]
    assert {key: decode_verdicts(text) for key, text in service.texts.items()} == {
        ("c", "node-2"): [verdict]
    }
    page = render(verdict_families(service) + engine_families(service.engines)).decode()
    assert 'engine="vllm on port 8000, pid 100"' in page
    assert 'ingero_fleet_engine_replicas{cluster_id="c",engine="vllm",model="llama"} 4' in page
    assert service.clusters == {}  # the engine that judges ranks was never needed


def test_a_replica_is_priced_by_its_gpus() -> None:
    """F159: the price of a replica hour; none without a known price."""
    rates = load_rates()
    known = next(model for model in rates.providers["gcp"])
    service = VerdictService(rates)
    two = replace(engine(), gpus=2)
    service.take(push("priced", two, STALLED, gpu_model=known, provider="gcp"), "c", 1_000.0)
    service.take(push("unknown", engine(1), STALLED), "c", 1_000.0)
    found = {verdict.node: verdict.usd_per_hour for _, verdict in service.tick(1_000.0)}
    assert found == {"priced": round(2 * rates.providers["gcp"][known], 4), "unknown": None}


def test_resolved_verdicts_are_served_for_a_minute() -> None:
    service = VerdictService()
    service.take(push("n", engine(), STALLED), "c", 1_000.0)
    service.tick(1_000.0)
    service.take(push("n", engine(), BUSY), "c", 1_001.0)
    service.tick(1_001.0)
    assert [each.state for each in service.recent_verdicts("c")] == [VerdictState.RESOLVED]
    assert service.open_verdicts() == []
    service.tick(1_062.0)
    assert service.recent_verdicts("c") == []


def test_reports_without_a_valid_node_are_refused() -> None:
    service = VerdictService()
    body = encode_protobuf(push("n", engine(), STALLED)).replace(NODE_ID.encode(), b"x" * 14)
    service.take(decode_protobuf(MetricsRequest, body), "c", 1_000.0)
    assert service.tick(1_000.0) == []
    assert service.engines.refused == 1


def test_clusters_are_bounded_and_not_compared() -> None:
    service = VerdictService(max_clusters=2)
    for number in range(3):
        service.take(push("n", engine(), BUSY), f"c{number}", 1_000.0)
    assert sorted(service.engines.judges) == ["c0", "c1"]
    assert service.engines.refused == 1


def test_recorded_engines_replay_to_the_same_verdicts(tmp_path: Path) -> None:
    log, service = InputLog(tmp_path / "inputs", b"", 1 << 20), VerdictService()
    for second, report in enumerate((BUSY, STALLED, STALLED, BUSY)):
        request, at_s = push("n", engine(), report), 1_000.0 + second
        log.write(PUSH, at_s, "c", encode_protobuf(request))
        service.take(request, "c", at_s)
        log.write(TICK, at_s, "", b"")
        for cluster, verdict in service.tick(at_s):
            log.write(VERDICT, at_s, cluster, encode_one(verdict))
    log.close()
    again = replay(tmp_path / "inputs")
    assert [each.verdict.state for each in again.verdicts] == ["straggler", "resolved"]
    assert again.is_same
