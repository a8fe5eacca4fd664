"""Start and stop of Fleet: what strangers can do meanwhile, and that its end is orderly."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from tests.support.pushes import NEVER_S, PB, post, protobuf
from tests.support.pushes import running as running_fleet

from ingero.contract.otlp.values import MetricsRequest
from ingero.transport.http import HttpListener
from ingero.transport.otlp.server_grpc import PATHS, GrpcListener

running = partial(running_fleet, tick_s=NEVER_S)


async def test_fleet_answers_what_is_under_way_also_where_one_of_its_tasks_had_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise RuntimeError("a defect")

    async with running() as fleet:
        fleet._tasks.insert(0, asyncio.create_task(fail()))
        address = fleet.addresses["http"]
        await post(f"http://{address}/v1/metrics", protobuf("a", 0.9), PB)
    with pytest.raises(aiohttp.ClientConnectorError):
        await post(f"http://{address}/v1/metrics", protobuf("a", 0.9), PB)
    assert "a defect" in caplog.text
    assert all(task.done() for task in fleet._tasks)


async def test_a_listener_that_is_being_opened_asks_for_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token used to be known only after the socket was served, 5 ms later."""
    token_file = tmp_path / "tokens"
    token_file.write_text("a-good-token-0123456789\n")
    token_file.chmod(0o600)
    told: dict[str, Any] = {}
    start_http, start_grpc = HttpListener.start, GrpcListener.start

    async def http_started(listener: HttpListener) -> None:
        await start_http(listener)
        reply = await post(f"http://{listener.address}/v1/metrics", protobuf("a", 0.9), PB)
        told[listener.address] = reply[0]

    async def grpc_started(listener: GrpcListener) -> None:
        await start_grpc(listener)
        async with grpc.aio.insecure_channel(listener.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(PATHS[MetricsRequest])(protobuf("a", 0.9))
        told[listener.address] = refused.value.code()

    monkeypatch.setattr(HttpListener, "start", http_started)
    monkeypatch.setattr(GrpcListener, "start", grpc_started)
    protocols = {name: {"token_file": str(token_file)} for name in ("http", "grpc")}
    async with running(receivers={"otlp": {"protocols": protocols}}) as fleet:
        assert told[fleet.addresses["http"]] == 401
        assert told[fleet.addresses["grpc"]] is grpc.StatusCode.UNAUTHENTICATED
        assert not fleet.processor.clusters
