import asyncio
import random
from typing import Any

import pytest
from tests.support.pushes import JSON, PB, as_json, forwarding, post, protobuf, running
from tests.support.waiting import PATIENCE_S, until_async

from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import decode_protobuf
from ingero.errors import AuthError
from ingero.fleet.forward import (
    Busy,
    DebugSink,
    Forwarder,
    ForwardPolicy,
    Refused,
    forward_families,
)
from ingero.fleet.processor import Taken

TAKEN = Taken("", "")
QUICK = ForwardPolicy(queue_size=3, initial_s=0.01, max_s=0.02, max_elapsed_s=0.2)


class Backend:
    """Collects batches, after it has raised the given errors."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.batches: list[tuple[type, bytes]] = []

    async def send(self, kind: type, body: bytes) -> int:
        if self.failures:
            raise self.failures.pop(0)
        self.batches.append((kind, body))
        return 0


def forwarder(backend: Any, policy: ForwardPolicy = QUICK) -> Forwarder:
    return Forwarder("otlp", backend.send, policy, random.Random(1))


def offer(target: Forwarder, *nodes: str, encoding: Encoding = Encoding.PROTOBUF) -> None:
    encode = protobuf if encoding is Encoding.PROTOBUF else as_json
    for node in nodes:
        target.offer(otlp.MetricsRequest, encode(node, 0.9), encoding, TAKEN)


async def test_requests_of_both_encodings_are_sent_as_one_batch() -> None:
    backend = Backend()
    target = forwarder(backend)
    offer(target, "a")
    offer(target, "b", encoding=Encoding.JSON)
    target.start()
    await target.stop()
    (batch,) = backend.batches
    request = decode_protobuf(*batch)
    nodes = [
        otlp.plain_attributes(r.resource.attributes)["ingero.node.id"]
        for r in request.resource_metrics
    ]
    assert nodes == ["a", "b"]
    assert target.counters.sent == 2


def test_debug_lines_count_items_and_never_fail(caplog: pytest.LogCaptureFixture) -> None:
    """The debug exporter is on the push path: an accepted push must not fail there."""
    caplog.set_level("INFO")
    sink = DebugSink("normal")
    for body in (protobuf("a", 0.9), b"\xff\xff"):
        sink.offer(otlp.MetricsRequest, body, Encoding.PROTOBUF, TAKEN)
    assert [getattr(record, "items", None) for record in caplog.records] == [1, None]


def test_debug_lines_count_suppressed_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    now_s, sink = 100.0, DebugSink("basic")
    monkeypatch.setattr("ingero.fleet.forward.time.monotonic", lambda: now_s)
    for _ in range(25):
        sink.offer(otlp.MetricsRequest, b"", Encoding.PROTOBUF, TAKEN)
    now_s = 101.0
    sink.offer(otlp.MetricsRequest, b"", Encoding.PROTOBUF, TAKEN)
    assert [getattr(record, "suppressed", 0) for record in caplog.records] == [0] * 10 + [15]


async def test_full_queue_drops_the_oldest_and_counts() -> None:
    backend = Backend()
    target = forwarder(backend)
    offer(target, *"abcde")
    assert (target.queued, target.counters.dropped["queue_full"]) == (3, 2)
    target.start()
    await target.stop()
    assert b"\x01a" not in backend.batches[0][1]


async def test_busy_backend_gets_a_batch_again_and_a_refusal_is_final() -> None:
    backend = Backend(Busy("later"), Busy("later", retry_after_s=0.01), Refused("never"))
    target = forwarder(backend)
    offer(target, "a")
    target.start()
    await target.stop()
    assert (target.counters.retries, target.counters.dropped["refused"], backend.batches) == (
        2,
        1,
        [],
    )


async def test_dead_backend_is_given_up_in_time() -> None:
    backend = Backend(*(Busy("down") for _ in range(1000)))
    target = forwarder(backend)
    offer(target, "a", "b")
    target.start()
    await target.stop(within_s=PATIENCE_S)
    assert target.counters.dropped["gave_up"] == 2


@pytest.mark.parametrize("is_silent", [True, False])
async def test_requests_that_a_backend_did_not_accept_before_the_stop_are_counted(
    is_silent: bool,
) -> None:
    began = asyncio.Event()

    async def hold(kind: type, body: bytes) -> int:
        began.set()
        if is_silent:
            await asyncio.Event().wait()
        raise Busy("later", 3600.0)

    target = Forwarder(
        "otlp", hold, ForwardPolicy(queue_size=3, initial_s=3600.0, max_s=3600.0, max_elapsed_s=1e6)
    )
    offer(target, "a", "b")
    target.start()
    await asyncio.wait_for(began.wait(), PATIENCE_S)
    offer(target, "c")
    await target.stop(within_s=0.01)
    assert target.counters.dropped["gave_up"] == 3


async def test_metrics_name_exporter_and_reason() -> None:
    target = forwarder(Backend())
    offer(target, *"abcd")
    samples = {
        (family.name, labels): value
        for family in forward_families([target])
        for _, labels, value in family.samples
    }
    assert samples["ingero_fleet_export_queue", (("exporter", "otlp"),)] == 3
    assert (
        samples[
            "ingero_fleet_export_dropped_total", (("exporter", "otlp"), ("reason", "queue_full"))
        ]
        == 1
    )


@pytest.mark.parametrize(("kind", "listener"), [("otlp", "grpc"), ("otlphttp", "http")])
async def test_fleet_forwards_to_another_fleet(kind: str, listener: str) -> None:
    """JSON and protobuf, metrics and spans are forwarded, and so are Fleet's own series."""
    async with running() as behind:
        changes = forwarding(kind, behind.addresses[listener])
        changes["processors"] = {"ingero": {"push_interval": "1s"}}
        async with running(**changes) as front:
            url = f"http://{front.addresses['http']}/v1"
            await post(f"{url}/metrics", protobuf("a", 0.9), PB)
            await post(f"{url}/metrics", as_json("b", 0.8), JSON)
            await post(
                f"{url}/traces",
                b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"x"}]}]}]}',
                JSON,
            )
            async with asyncio.timeout(PATIENCE_S):
                while not (
                    {"a", "b"} <= set(behind.processor.clusters.get("train", _NOBODY).roster.rows)
                    and behind.receiver.items["TracesRequest"]
                    and b"ingero_fleet_threshold" in await _received(behind)
                ):
                    await asyncio.sleep(0.05)


async def test_several_exporters_of_a_type_each_get_everything() -> None:
    """Exporters are named `type/name`, as in the configuration of a Collector."""
    async with running() as near, running() as far:
        plain = {"tls": {"insecure": True}}
        exporters = {
            "otlphttp/near": {"endpoint": near.addresses["http"], **plain},
            "otlphttp/far": {"endpoint": far.addresses["http"], **plain},
            "prometheus/second": {"endpoint": "127.0.0.1:0"},
        }
        pipelines = {"metrics": {"processors": ["ingero"], "exporters": ["prometheus", *exporters]}}
        async with running(exporters=exporters, service={"pipelines": pipelines}) as front:
            await post(f"http://{front.addresses['http']}/v1/metrics", protobuf("a", 0.9), PB)
            async with asyncio.timeout(30):
                while not all("train" in behind.processor.clusters for behind in (near, far)):
                    await asyncio.sleep(0.05)
            pages = [await series.render() for series in front.exporters.series.values()]
            assert (
                pages[0] == pages[1] and b'ingero_node_health_score{cluster_id="train"' in pages[0]
            )
            assert front.addresses["prometheus"] != front.addresses["prometheus/second"]
            own = (await front._render_own()).decode()
            assert 'ingero_fleet_prometheus_series{exporter="prometheus/second"} 1' in own
            assert 'ingero_fleet_export_sent_total{exporter="otlphttp/far"}' in own


class _NOBODY:
    class roster:
        rows: dict[str, int] = {}  # noqa: RUF012 - never changed


async def _received(fleet: Any) -> bytes:
    return await fleet.exporters.series["prometheus"].render()


async def test_dead_backend_never_stops_a_push() -> None:
    changes = forwarding("otlphttp", "127.0.0.1:1", sending_queue={"queue_size": 10})
    async with running(**changes) as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        for i in range(50):
            assert (await post(url, protobuf(f"n{i}", 0.9), PB))[0] == 200
        (target,) = fleet.exporters.forwarders
        assert target.queued <= 10
        assert target.counters.dropped["queue_full"] >= 30
        target.policy = ForwardPolicy(max_elapsed_s=0.0)


async def test_a_defect_in_a_backend_costs_one_batch_and_a_lost_token_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = forwarder(Backend(RuntimeError("defect"), AuthError("cannot read token file")))
    target.start()
    offer(target, "a")
    await until_async(lambda: target.counters.dropped["failed"])
    offer(target, "b")
    await until_async(lambda: target.counters.sent)
    await target.stop()
    assert (target.counters.sent, target.counters.dropped["failed"], target.counters.retries) == (
        1,
        1,
        1,
    )
    assert "export_failed" in caplog.text


async def test_fleets_own_series_go_on_after_a_report_that_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as behind:
        changes = forwarding("otlphttp", behind.addresses["http"])
        changes["processors"] = {"ingero": {"push_interval": "1s"}}
        async with running(**changes) as front:
            report, errors = front.exporters.report, [RuntimeError("a defect")]

            def failing_once(own: otlp.MetricsRequest) -> None:
                if errors:
                    raise errors.pop()
                report(own)

            front.exporters.report = failing_once  # type: ignore[method-assign] # on purpose
            await post(f"http://{front.addresses['http']}/v1/metrics", protobuf("a", 0.9), PB)
            async with asyncio.timeout(PATIENCE_S):
                while b"ingero_fleet_threshold" not in await _received(behind):
                    await asyncio.sleep(0.05)
    assert "report_failed" in caplog.text


async def test_a_body_that_cannot_be_turned_costs_that_body_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def defect(kind: type, body: bytes) -> bytes:
        raise RuntimeError("a defect")

    monkeypatch.setattr("ingero.fleet.forward._as_protobuf", defect)
    backend = Backend()
    target = forwarder(backend)
    offer(target, "a", encoding=Encoding.JSON)
    offer(target, "b")
    target.start()
    await until_async(lambda: target.counters.sent)
    await target.stop()
    assert (target.counters.sent, target.counters.dropped["failed"]) == (1, 1)
    assert "export_failed" in caplog.text
