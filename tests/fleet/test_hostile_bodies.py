"""Requests that are small on the wire and huge when decoded: refused, while pushes go on."""

import asyncio
import contextlib
import gzip
import time
from collections.abc import AsyncIterator
from functools import partial

import grpc
import pytest
from tests.support.hostile_bodies import hostile_bodies, nested
from tests.support.pushes import JSON, NEVER_S, PB, health, post
from tests.support.pushes import running as running_fleet

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf
from ingero.transport.otlp.server_grpc import PATHS

running = partial(running_fleet, tick_s=NEVER_S)
GZIP = {"Content-Encoding": "gzip"}
# Of this process, which does not run while other processes do. 50 ms are promised on a quiet
# machine; a crowded one is slower. Without the limits it is 50 seconds.
LONGEST_PAUSE_S = 0.4


@contextlib.asynccontextmanager
async def watched_loop(pauses: list[float]) -> AsyncIterator[None]:
    """Measure how long the event loop, which Fleet shares with the test, lets a task wait.

    The clock is the CPU time of this process, so that other processes do not count.
    """

    async def watch() -> None:
        while True:
            began_s = time.process_time()
            await asyncio.sleep(0.001)
            pauses.append(time.process_time() - began_s)

    task = asyncio.create_task(watch())
    yield
    task.cancel()


@pytest.mark.parametrize("path", ["metrics", "traces", "logs"])
async def test_floods_of_empty_messages_do_not_stop_pushes(path: str) -> None:
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/{path}"
        bodies = {name: gzip.compress(body, 9) for name, body in hostile_bodies().items()}
        pauses: list[float] = []
        async with watched_loop(pauses):
            for name, body in bodies.items():
                status, _, reply = await post(url, body, {**PB, **GZIP})
                allowed = name in ("as many as are allowed", "a segment")
                # within the number of fields they may still expand too much
                assert status in ((200, 413) if allowed else (413,)), name
                assert status == 200 or b"more than" in reply
        assert max(pauses) < LONGEST_PAUSE_S
        body = encode_protobuf(health("a", 0.9))
        assert (await post(f"http://{fleet.addresses['http']}/v1/metrics", body, PB))[0] == 200


async def test_large_bodies_in_one_segment_are_decoded_outside_the_event_loop() -> None:
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        for body, headers in (
            (nested(b"\x0a\x12", b"\x12\x00" * 90_000), PB),
            (b'{"resourceMetrics":[%b]}' % b",".join([b"{}"] * 60_000), JSON),
            (b'{"resourceMetrics":[%b]}' % b",".join([b'{"resource":null}'] * 9_000), JSON),
        ):
            assert (await post(url, body, headers))[0] == 200
        deep = b'{"resourceMetrics":' + b"[" * 100_000
        status, _, reply = await post(url, deep, JSON)
        assert (status, b"levels deep" in reply) == (413, True)
        counts = fleet.receiver.reply_counts()
        assert (counts["http", 200], counts["http", 413]) == (3, 1)


async def test_grpc_answers_invalid_argument() -> None:
    async with running() as fleet, grpc.aio.insecure_channel(fleet.addresses["grpc"]) as channel:
        for kind in (otlp.MetricsRequest, otlp.TracesRequest, otlp.LogsRequest):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(PATHS[kind])(nested(b"\x0a\x12", b"\x12\x00" * 3_000_000))
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "600000 fields" in raised.value.details()


async def test_a_large_push_leaves_the_same_state_as_small_ones() -> None:
    """Many nodes in one request, with measurements: decoded in a thread, stored in slices."""
    nodes = [f"node-{number}" for number in range(1000)]
    own_time = otlp.Metric(
        name=names.STEP_OWN_TIME_MS,
        gauge=otlp.Gauge(
            data_points=tuple(
                otlp.NumberPoint(
                    attributes=otlp.attributes({names.STEP: step}),
                    as_double=9.0,
                    time_unix_nano=step,
                )
                for step in range(3)
            )
        ),
    )
    resources = []
    for node in nodes:
        (resource,) = health(node, 0.9).resource_metrics
        scope = otlp.ScopeMetrics(metrics=(*resource.scope_metrics[0].metrics, own_time))
        resources.append(otlp.ResourceMetrics(resource=resource.resource, scope_metrics=(scope,)))
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        body = encode_protobuf(otlp.MetricsRequest(tuple(resources)))
        assert (await post(url, body, PB))[0] == 200
        assert sorted(fleet.processor.clusters["train"].roster.rows) == sorted(nodes)
        assert fleet.processor.counters.pushes == 1
        assert fleet.verdicts.counters.own_times == 3 * len(nodes)
