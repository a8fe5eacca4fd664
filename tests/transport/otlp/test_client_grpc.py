"""Pushes over gRPC: the outcome of each reply and what it carries."""

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tests.support.own_times import rank_push
from tests.support.scripted_fleet import scripted_fleet
from tests.support.waiting import PATIENCE_S

from ingero.contract import names
from ingero.contract.otlp.codec import decode_protobuf
from ingero.contract.otlp.values import Metric, MetricsRequest, ResourceMetrics, ScopeMetrics
from ingero.contract.threshold import ServedThreshold
from ingero.contract.verdict import Verdict, VerdictState, encode_verdicts
from ingero.core.health.modes import PushOutcome
from ingero.transport.bearer import RotatingToken
from ingero.transport.endpoint import Protocol, parse_endpoint
from ingero.transport.otlp.client import ClientOptions, HttpPush
from ingero.transport.otlp.client_grpc import GrpcPems, GrpcPush

REQUEST = MetricsRequest(
    resource_metrics=(ResourceMetrics(scope_metrics=(ScopeMetrics(metrics=(Metric(name="m"),)),)),)
)


class ScriptedService(grpc.GenericRpcHandler):
    """A metrics service that answers as `abort` and `metadata` define."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.metadata: dict[str, str] = {}
        self.reply: tuple[tuple[str, str], ...] = ()
        self.trailing: tuple[tuple[str, str], ...] = ()
        self.abort: grpc.StatusCode | None = None

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != names.METRICS_METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(self.export)

    async def export(self, body: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self.bodies.append(body)
        self.metadata = dict(context.invocation_metadata() or ())
        await context.send_initial_metadata(self.reply)
        context.set_trailing_metadata(self.trailing)
        if self.abort is not None:
            await context.abort(self.abort, "because")
        return b""


@contextlib.asynccontextmanager
async def grpc_pair() -> AsyncIterator[tuple[ScriptedService, GrpcPush]]:
    service, server = ScriptedService(), grpc.aio.server()
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    endpoint = parse_endpoint(f"http://127.0.0.1:{port}", protocol=Protocol.GRPC)
    client = GrpcPush(
        endpoint,
        "c",
        "n",
        ClientOptions(timeout_s=PATIENCE_S, headers={"X-A": "b"}),
        GrpcPems(),
        random.Random(1),
    )
    try:
        yield service, client
    finally:
        await client.close()
        await server.stop(None)


@pytest.mark.parametrize("place", ["reply", "trailing"])
async def test_grpc_push_f006(place: str) -> None:
    verdict = Verdict(episode="e", state=VerdictState.SUSPECT, node="n", since=1.0)
    async with grpc_pair() as (service, client):
        values = (
            (names.THRESHOLD_METADATA, "0.870348"),
            (names.QUORUM_METADATA, "true"),
            (names.VERDICT_METADATA, encode_verdicts([verdict])),
        )
        setattr(service, place, values)
        reply = await client.push(REQUEST)
    assert (reply.outcome, reply.threshold) == (PushOutcome.OK, ServedThreshold(0.870348, True))
    assert reply.verdicts == (verdict,)
    assert decode_protobuf(MetricsRequest, service.bodies[0]) == REQUEST
    assert (service.metadata[names.CLUSTER_HEADER], service.metadata["x-a"]) == ("c", "b")


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, PushOutcome.SHED),
        (grpc.StatusCode.INVALID_ARGUMENT, PushOutcome.REFUSED),
        (grpc.StatusCode.UNAUTHENTICATED, PushOutcome.AUTH),
        (grpc.StatusCode.INTERNAL, PushOutcome.SERVER_ERROR),
    ],
)
async def test_grpc_errors_still_bring_the_threshold(
    code: grpc.StatusCode, outcome: PushOutcome
) -> None:
    async with grpc_pair() as (service, client):
        service.abort = code
        service.trailing = ((names.THRESHOLD_METADATA, "0.8"), (names.QUORUM_METADATA, "false"))
        reply = await client.push(REQUEST)
    assert (reply.outcome, reply.threshold) == (outcome, ServedThreshold(0.8, False))
    assert len(service.bodies) == 1


async def test_compressed_pushes_over_grpc_arrive_as_they_were() -> None:
    request = decode_protobuf(MetricsRequest, rank_push(0, 0))
    async with grpc_pair() as (service, client):
        client._options = replace(client._options, is_compressed=True)
        assert (await client.push(request)).outcome is PushOutcome.OK
    assert decode_protobuf(MetricsRequest, service.bodies[0]) == request


async def test_grpc_to_an_unreachable_fleet() -> None:
    endpoint = parse_endpoint("http://127.0.0.1:1", protocol=Protocol.GRPC)
    client = GrpcPush(
        endpoint, "c", "n", ClientOptions(timeout_s=0.5), GrpcPems(), random.Random(1)
    )
    assert (await client.push(REQUEST, retry=False)).outcome is PushOutcome.TRANSPORT
    await client.close()


async def test_grpc_names_that_are_no_metadata_travel_in_the_body_alone() -> None:
    """Metadata is ASCII; a cluster named zürich must not stop the push."""
    async with grpc_pair() as (service, client):
        odd = GrpcPush(
            client._endpoint,
            "zürich",
            "日本-1",
            ClientOptions(timeout_s=PATIENCE_S),
            GrpcPems(),
            random.Random(1),
        )
        assert (await odd.push(REQUEST)).outcome is PushOutcome.OK
        assert names.CLUSTER_HEADER not in service.metadata
        await odd.close()


async def test_a_rotated_token_is_used_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("first")
    options = ClientOptions(timeout_s=PATIENCE_S, token=RotatingToken(path))
    async with scripted_fleet() as fleet, grpc_pair() as (service, channel):
        http = HttpPush(parse_endpoint(fleet.url), "c", "n", options, random.Random(1))
        grpc_client = GrpcPush(channel._endpoint, "c", "n", options, GrpcPems(), random.Random(1))
        seen = []
        for content in (
            "first",
            "second",
            "",
        ):  # an empty file is being written just now: the last good one counts
            path.write_text(content)
            await http.push(REQUEST)
            await grpc_client.push(REQUEST)
            seen += [
                fleet.requests[-1][0].headers["Authorization"],
                service.metadata["authorization"],
            ]
        await http.close()
        await grpc_client.close()
    assert seen == ["Bearer first"] * 2 + ["Bearer second"] * 4
