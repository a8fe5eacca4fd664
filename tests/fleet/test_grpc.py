import grpc
import pytest
from tests.fleet.pushes import as_json, protobuf, running
from tests.fleet.test_receive import JSON, PB, post

from ingero.contract import otlp
from ingero.contract.otlp_codec import encode_protobuf
from ingero.transport.otlp_grpc import PATHS


async def export(address: str, body: bytes, *metadata: tuple[str, str], kind: type = otlp.MetricsRequest):
    """(answer, headers, trailers) of one call."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(PATHS[kind])(body, metadata=metadata)
        answer = await call
        return answer, dict(await call.initial_metadata()), dict(await call.trailing_metadata())


async def test_threshold_comes_as_metadata() -> None:
    """F006."""
    async with running() as fleet:
        answer, headers, trailers = await export(fleet.addresses["grpc"], protobuf("a", 0.9))
        assert answer == b""
        for found in (headers, trailers):
            assert (found["ingero-threshold"], found["ingero-quorum-met"]) == ("0.880000", "false")


async def test_grpc_and_http_leave_identical_state() -> None:
    """F033, F041."""
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        await export(fleet.addresses["grpc"], protobuf("a", 0.9, sent_ns=5))
        await post(url, protobuf("b", 0.9, sent_ns=5), PB)
        await post(url, as_json("c", 0.9, sent_ns=5), JSON)
        roster = fleet.processor.clusters["train"].roster
        found = {(row.score, row.state, row.report.sent_ns) for row in (roster.row(node, 0.0) for node in "abc")}
        assert found == {(0.9, "active", 5)}


async def test_cluster_by_metadata_and_verdict_back() -> None:
    async with running() as fleet:
        fleet.receiver.verdict_text = lambda cluster, node: f'["{cluster}/{node}"]'
        _, headers, _ = await export(fleet.addresses["grpc"], protobuf("a", 0.9), ("ingero.cluster.id", "meta"))
        assert list(fleet.processor.clusters) == ["meta"]
        assert headers["ingero-verdict"] == '["meta/a"]'


async def test_malformed_call_is_invalid_argument_with_the_threshold() -> None:
    async with running() as fleet:
        await export(fleet.addresses["grpc"], protobuf("a", 0.9, cluster="default"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await export(fleet.addresses["grpc"], b"\xff\xff", ("ingero.cluster.id", "default"))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert dict(caught.value.trailing_metadata())["ingero-threshold"] == "0.880000"


async def test_draining_is_unavailable_and_says_when() -> None:
    async with running() as fleet:
        fleet.receiver.draining = True
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await export(fleet.addresses["grpc"], protobuf("a", 0.9))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(caught.value.trailing_metadata())["retry-after"] == "1"


async def test_spans_and_logs_are_taken_and_counted() -> None:
    span = otlp.ResourceSpans(scope_spans=(otlp.ScopeSpans(spans=(otlp.Span(name="x"),)),))
    logs = otlp.ResourceLogs(scope_logs=(otlp.ScopeLogs(log_records=(otlp.LogRecord(), otlp.LogRecord())),))
    async with running() as fleet:
        address = fleet.addresses["grpc"]
        await export(address, encode_protobuf(otlp.TracesRequest(resource_spans=(span,))), kind=otlp.TracesRequest)
        await export(address, encode_protobuf(otlp.LogsRequest(resource_logs=(logs,))), kind=otlp.LogsRequest)
        assert fleet.receiver.items == {"TracesRequest": 1, "LogsRequest": 2}


async def test_partial_success_over_grpc() -> None:
    async with running() as fleet:
        answer, _, _ = await export(fleet.addresses["grpc"], protobuf("a", 2.0))
        assert b"outside 0 to 1" in answer
