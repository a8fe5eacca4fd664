"""What is counted of calls and requests: every reply, also to a mistake of ours, and no other."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from tests.support.pushes import JSON, PB, post
from tests.support.waiting import until_async

from ingero.contract.names import METRICS_METHOD
from ingero.contract.otlp.values import MetricsRequest
from ingero.errors import MalformedPush
from ingero.transport.bearer import Key
from ingero.transport.http import HttpListener
from ingero.transport.listen import bind, parse_address
from ingero.transport.otlp.server_grpc import grpc_listener
from ingero.transport.otlp.server_http import (
    Inbound,
    OtlpService,
    Reply,
    otlp_endpoint,
    push_protocol,
)

SECRET = "/secret/path"
SAID = "the service failed; its log has the reason"
KEY = Key("k", b"")


def receive(inbound: Inbound) -> Reply:
    if inbound.body == b"wrong":
        raise MalformedPush("wrong")
    if inbound.body == b"mistake":
        raise RuntimeError(SECRET)
    return Reply()


def forgetful(authorization: str | None, address: str | None) -> Key:
    raise RuntimeError(SECRET)


@contextlib.asynccontextmanager
async def over_grpc(
    admit: Callable[[str | None, str | None], Key] = lambda *_: KEY,
) -> AsyncIterator[tuple[str, Counter[int]]]:
    counts: Counter[int] = Counter()
    service = OtlpService(admit, receive, lambda *_: (), lambda status: counts.update([status]))
    listener = grpc_listener("127.0.0.1:0", None, service)
    await listener.start()
    yield listener.address, counts
    await listener.stop(5.0)


@contextlib.asynccontextmanager
async def over_http(
    admit: Callable[[str | None, str | None], Key] = lambda *_: KEY,
) -> AsyncIterator[tuple[str, Counter[int]]]:
    """A listener whose fast path makes the same mistakes."""
    counts: Counter[int] = Counter()
    service = OtlpService(admit, receive, lambda *_: (), lambda status: counts.update([status]))

    def answer(request: tuple[object, ...], date: bytes, address: str | None) -> None:
        if b"mistake" in request:
            raise RuntimeError(SECRET)

    route = Route("/v1/metrics", otlp_endpoint(MetricsRequest, service, 4096), methods=["POST"])
    listener = HttpListener(
        Starlette(routes=[route]), bind("127.0.0.1:0"), protocol=push_protocol(answer)
    )
    await listener.start()
    yield f"http://{listener.address}/v1/metrics", counts
    await listener.stop()


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def refused(address: str, body: bytes) -> tuple[grpc.StatusCode, str]:
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(METRICS_METHOD)(body)
    return error.value.code(), error.value.details()


@pytest.mark.parametrize("leaves", ["too late", "cancels", "drops"])
async def test_calls_whose_sender_leaves_before_its_message_are_not_counted(leaves: str) -> None:
    admitted = []

    def admit(*_: object) -> Key:
        admitted.append(leaves)
        return KEY

    async with over_grpc(admit) as (address, counts):
        for number in range(5):
            channel = grpc.aio.insecure_channel(address)
            timeout = 1.0 if leaves == "too late" else None
            call = channel.stream_unary(METRICS_METHOD)(never(), timeout=timeout)
            await until_async(lambda number=number: len(admitted) > number)
            if leaves == "cancels":
                call.cancel()
            elif leaves == "drops":
                await channel.close()
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                await call
            await channel.close()
        assert await refused(address, b"wrong") == (grpc.StatusCode.INVALID_ARGUMENT, "wrong")
    assert counts == {400: 1}


@pytest.mark.parametrize("body", [b"", b"mistake"])
async def test_a_mistake_over_grpc_is_counted_and_logged_but_not_told(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    admitting = over_grpc() if body else over_grpc(forgetful)
    with caplog.at_level(logging.ERROR):
        async with admitting as (address, counts):
            assert await refused(address, body) == (grpc.StatusCode.INTERNAL, SAID)
            assert counts == {500: 1}
    assert SECRET in caplog.text


@pytest.mark.parametrize("headers", [PB, JSON])
@pytest.mark.parametrize("body", [b"", b"mistake"])
async def test_a_mistake_over_http_is_counted_and_logged_but_not_told(
    body: bytes, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    admitting = over_http() if body else over_http(forgetful)
    with caplog.at_level(logging.ERROR):
        async with admitting as (url, counts):
            status, _, answer = await post(url, body, headers)
            assert (status, counts) == (500, {500: 1})
            assert SAID.encode() in answer and SECRET.encode() not in answer
    assert SECRET in caplog.text


async def test_a_request_whose_sender_leaves_before_its_body_is_not_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with over_http() as (url, counts):
        _, writer = await asyncio.open_connection(*parse_address(url.split("/")[2]))
        head = b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
        writer.write(head + b"Content-Type: application/x-protobuf\r\n\r\n1")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await post(url, b"wrong", PB))[0] == 400
        await until_async(lambda: counts == {400: 1})
    assert not caplog.records
