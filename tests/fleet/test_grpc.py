import asyncio
import random
from functools import partial

import grpc
import pytest
from tests.support.pushes import JSON, NEVER_S, PB, as_json, health, post, protobuf
from tests.support.pushes import running as running_fleet
from tests.support.waiting import until_async

from ingero.config.fleet_exporters import ClientTlsConfig, ForwardExporterConfig
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf
from ingero.core.health.modes import PushOutcome
from ingero.fleet.backends import GrpcBackend
from ingero.fleet.forward import Busy, Refused
from ingero.transport.bearer import Key
from ingero.transport.endpoint import Protocol, parse_endpoint
from ingero.transport.otlp.client import ClientOptions
from ingero.transport.otlp.client_grpc import GrpcPems, GrpcPush, retry_after
from ingero.transport.otlp.server_grpc import PATHS, grpc_listener
from ingero.transport.otlp.server_http import Inbound, OtlpService, Reply

running = partial(running_fleet, tick_s=NEVER_S)  # no tick comes between two pushes


async def export(
    address: str, body: bytes, *metadata: tuple[str, str], kind: type = otlp.MetricsRequest
):
    """Return answer, headers and trailers of one call."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(PATHS[kind])(body, metadata=metadata)
        answer = await call
        return answer, dict(await call.initial_metadata()), dict(await call.trailing_metadata())


async def test_threshold_comes_as_metadata() -> None:
    """F006."""
    async with running() as fleet:
        answer, headers, trailers = await export(fleet.addresses["grpc"], protobuf("a", 0.9))
        assert answer == b""
        found = (trailers["ingero-threshold"], trailers["ingero-quorum-met"])
        assert found == ("0.880000", "false")
        assert "ingero-threshold" not in headers, "sending headers costs a third of a call"


async def test_grpc_and_http_leave_identical_state() -> None:
    """F033, F041."""
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        await export(fleet.addresses["grpc"], protobuf("a", 0.9, sent_ns=5))
        await post(url, protobuf("b", 0.9, sent_ns=5), PB)
        await post(url, as_json("c", 0.9, sent_ns=5), JSON)
        roster = fleet.processor.clusters["train"].roster
        found = {
            (row.score, row.state, row.report.sent_ns)
            for row in (roster.row(node, 0.0) for node in "abc")
        }
        assert found == {(0.9, "active", 5)}


async def test_cluster_by_metadata_and_verdict_back() -> None:
    async with running() as fleet:
        fleet.receiver.answers.verdict_texts = {("meta", "a"): '["meta/a"]'}
        fleet.receiver.answers.ask_texts = {("meta", "a"): '["why"]'}
        _, _, trailers = await export(
            fleet.addresses["grpc"], protobuf("a", 0.9), ("ingero.cluster.id", "meta")
        )
        assert list(fleet.processor.clusters) == ["meta"]
        assert trailers["ingero-verdict"] == '["meta/a"]'
        assert trailers["ingero-ask"] == '["why"]'


async def test_malformed_call_is_invalid_argument_with_the_threshold() -> None:
    async with running() as fleet:
        await export(fleet.addresses["grpc"], protobuf("a", 0.9, cluster="default"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await export(fleet.addresses["grpc"], b"\xff\xff", ("ingero.cluster.id", "default"))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert dict(caught.value.trailing_metadata())["ingero-threshold"] == "0.880000"


async def test_draining_is_unavailable_with_a_delay() -> None:
    async with running() as fleet:
        fleet.receiver.refuses = "shutting down"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await export(fleet.addresses["grpc"], protobuf("a", 0.9))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        trailers = dict(caught.value.trailing_metadata())
        assert trailers["retry-after"] == "1"
        assert trailers["google.rpc.retryinfo-bin"] == b"\x0a\x02\x08\x01"
        assert trailers["grpc-status-details-bin"].startswith(
            b"\x08\x0e\x12\x19shutting down; push again\x1a"
        )


async def test_our_own_client_waits_as_long_as_it_is_asked_to() -> None:
    """A reply that asks for a delay is not a lost Fleet, and the push is not repeated at once."""
    async with running() as fleet:
        fleet.receiver.refuses = "shutting down"
        endpoint = parse_endpoint(fleet.addresses["grpc"], insecure=True, protocol=Protocol.GRPC)
        client = GrpcPush(
            endpoint, "c", "a", ClientOptions(timeout_s=60.0), GrpcPems(), random.Random(1)
        )
        reply = await client.push(health("a", 0.9))
        await client.close()
        assert (reply.outcome, reply.retry_after_s) == (PushOutcome.SHED, 1.0)
        await until_async(lambda: fleet.receiver.replies["grpc", 503] == 1)


@pytest.mark.parametrize(("retry_after_s", "expected"), [(None, Refused), (7, Busy)])
async def test_exhausted_backend_gets_the_batch_again_where_it_names_a_delay(
    retry_after_s: int | None, expected: type
) -> None:
    async with running() as fleet:
        reply = Reply(429, message="no room", retry_after_s=retry_after_s)
        fleet.receiver._admit = lambda *_: reply  # type: ignore[method-assign]  # a backend that is full
        config = ForwardExporterConfig(
            endpoint=fleet.addresses["grpc"], tls=ClientTlsConfig(insecure=True), timeout=60.0
        )
        backend = GrpcBackend(config)
        with pytest.raises(expected) as caught:
            await backend.send(otlp.MetricsRequest, protobuf("a", 0.9))
        await backend.close()
        assert getattr(caught.value, "retry_after_s", None) == retry_after_s


async def test_spans_and_logs_are_accepted_and_counted() -> None:
    span = otlp.ResourceSpans(scope_spans=(otlp.ScopeSpans(spans=(otlp.Span(name="x"),)),))
    logs = otlp.ResourceLogs(
        scope_logs=(otlp.ScopeLogs(log_records=(otlp.LogRecord(), otlp.LogRecord())),)
    )
    async with running() as fleet:
        address = fleet.addresses["grpc"]
        await export(
            address,
            encode_protobuf(otlp.TracesRequest(resource_spans=(span,))),
            kind=otlp.TracesRequest,
        )
        await export(
            address, encode_protobuf(otlp.LogsRequest(resource_logs=(logs,))), kind=otlp.LogsRequest
        )
        assert fleet.receiver.items == {"TracesRequest": 1, "LogsRequest": 2}


async def test_partial_success_over_grpc() -> None:
    async with running() as fleet:
        answer, _, _ = await export(fleet.addresses["grpc"], protobuf("a", 2.0))
        assert b"outside 0 to 1" in answer


async def test_calls_beyond_the_limit_are_refused_with_a_delay() -> None:
    """Two calls run at once; the third is refused with a delay."""
    release, begun = asyncio.Event(), 0

    async def receive(inbound: Inbound) -> Reply:
        nonlocal begun
        begun += 1
        await release.wait()
        return Reply()

    statuses: list[int] = []
    service = OtlpService(lambda *_: Key("k", b""), receive, lambda *_: (), statuses.append)
    listener = grpc_listener("127.0.0.1:0", None, service, max_running=2)
    await listener.start()
    async with grpc.aio.insecure_channel(listener.address) as channel:
        call = channel.unary_unary(PATHS[otlp.MetricsRequest])
        waiting = [call(b"") for _ in range(2)]
        async with asyncio.timeout(30):
            while begun < 2:
                await asyncio.sleep(0.01)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"")
        release.set()
        assert [await one for one in waiting] == [b"", b""]
        assert await call(b"") == b""
    await listener.stop()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert retry_after(dict(refused.value.trailing_metadata())) == 1.0
    assert statuses == [429, 200, 200, 200]
