"""Listeners with misbehaving peers: requests that never end, headers without end."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tests.support.waiting import PATIENCE_S, until_async

from ingero.transport.http import HttpListener, TimedProtocol
from ingero.transport.listen import bind, parse_address
from ingero.transport.otlp.server_http import push_protocol

WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PUSH = (
    b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)  # fmt: skip


async def hello(_: Request) -> Response:
    return PlainTextResponse("hello")


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[HttpListener, type[TimedProtocol]]]:
    """A listener, and its protocol class, whose limits a test may change."""
    protocol = push_protocol(lambda *_: b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    listener = HttpListener(
        Starlette(routes=[Route("/", hello)]), bind("127.0.0.1:0"), protocol=protocol
    )
    await listener.start()
    try:
        yield listener, protocol
    finally:
        await listener.stop()
        listener.listener.close()


async def connect(listener: HttpListener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*parse_address(listener.address))


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"\r\n",
        b"GE",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n1",
    ],
)
@pytest.mark.parametrize("before", [b"", WHOLE, PUSH])
async def test_a_request_that_does_not_end_is_closed(begun: bytes, before: bytes) -> None:
    async with listening() as (listener, protocol):
        if not before:
            protocol.request_timeout_s = 0.1
        reader, writer = await connect(listener)
        if before:
            writer.write(before)
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
            protocol.request_timeout_s = 0.1
        if begun.strip() or not before:  # keep-alive closes an idle connection
            writer.write(begun)
            async with asyncio.timeout(PATIENCE_S):
                while await reader.read(100):
                    pass
            await until_async(lambda: not listener.connections)
        writer.close()


async def test_a_complete_request_does_not_time_out() -> None:
    async with listening() as (listener, protocol):
        reader, writer = await connect(listener)
        for request in (PUSH, WHOLE, PUSH):
            writer.write(request)
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
            protocol.request_timeout_s = 0.05
            with contextlib.suppress(TimeoutError):
                # idle for longer than a request may take
                while await asyncio.wait_for(reader.read(100), 0.12):
                    pass
        writer.close()


async def test_a_head_without_end_is_refused() -> None:
    async with listening() as (listener, _):
        reader, writer = await connect(listener)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"a" * 4096)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            assert b"400 Bad Request" in await asyncio.wait_for(reader.read(200), PATIENCE_S)
        await until_async(lambda: not listener.connections)
        writer.close()


@pytest.mark.parametrize(
    "hostile",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 1000,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 1000,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\na: " + b"b" * 200_000,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;a=" + b"b" * 200_000,
    ],
    ids=["headers", "pipelined", "trailers", "long trailer", "chunk extension"],
)
async def test_requests_without_end_are_refused(hostile: bytes) -> None:
    """Each of them would be kept in memory, before a token can be checked."""
    async with listening() as (listener, _):
        reader, writer = await connect(listener)
        writer.write(hostile)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                while b"400 Bad Request" not in await reader.read(1 << 20):
                    pass
        await until_async(lambda: not listener.connections)
        writer.close()


async def test_empty_lines_between_requests_keep_no_connection_open() -> None:
    async with listening() as (listener, protocol):
        for before in (WHOLE, PUSH):
            reader, writer = await connect(listener)
            writer.write(before)
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
            await asyncio.sleep(0)
            protocol.request_timeout_s = 0.1
            writer.write(b"\r\n")
            await until_async(lambda: not listener.connections)
            writer.close()


async def test_an_answer_does_not_wait_for_the_peers_acknowledgement() -> None:
    listener = bind("127.0.0.1:0")
    _, writer = await asyncio.open_connection(*listener.getsockname())
    accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    # asyncio looks at it before it sets the option itself
    assert listener.proto == socket.IPPROTO_TCP
    accepted.close()
    writer.close()
    listener.close()


async def test_an_idle_listener_sleeps_and_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fleet has seven listeners, and an idle agent may use 1 % of a core."""
    ticks, real = 0, uvicorn.Server.on_tick

    async def counted(server: uvicorn.Server, counter: int) -> bool:
        nonlocal ticks
        ticks += 1
        return await real(server, counter)

    monkeypatch.setattr(uvicorn.Server, "on_tick", counted)
    async with listening():
        await asyncio.sleep(0.7)
        began_s = asyncio.get_running_loop().time()
    assert ticks <= 3
    assert asyncio.get_running_loop().time() - began_s < 0.5
