"""Senders without a token, and senders that never finish: Echo holds nothing for them."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.support.echo_samples import metrics_body
from tests.support.echo_service import TOKEN, RunningEcho
from tests.support.waiting import PATIENCE_S, until

from ingero.contract.otlp.values import MetricsRequest
from ingero.echo.api import AUDITED_FAILURES
from ingero.transport.access import FAILURES_AT_ONCE
from ingero.transport.listen import parse_address
from ingero.transport.otlp.server_grpc import PATHS

DECLARED = 8 << 20


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[RunningEcho]:
    with RunningEcho(tmp_path) as running:
        yield running


def begin(echo: RunningEcho, token: str | None, sent: int) -> socket.socket:
    """Declare the largest body, and send a part of it."""
    connection = socket.create_connection(parse_address(echo.service.addresses["http"]), PATIENCE_S)
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Length: {DECLARED}\r\n"
        f"Content-Type: application/x-protobuf\r\n{authorization}\r\n"
    )
    connection.sendall(head.encode() + bytes(sent))
    return connection


def test_declared_lengths_do_not_lock_ingest(echo: RunningEcho) -> None:
    strangers = [begin(echo, None, 1000) for _ in range(40)]
    assert strangers[0].recv(100).startswith(b"HTTP/1.1 401")
    senders = [begin(echo, TOKEN, 1000) for _ in range(40)]
    until(lambda: echo.service.admission.receiving_bytes == 40_000)
    assert echo.send(metrics_body()).status == 200
    for connection in (*strangers, *senders):
        connection.close()
    until(lambda: echo.service.admission.receiving_bytes == 0)


def test_stalled_calls_of_strangers_end_at_once(echo: RunningEcho) -> None:
    async def attack() -> set[grpc.StatusCode]:
        async with grpc.aio.insecure_channel(echo.service.addresses["grpc"]) as channel:
            path = PATHS[MetricsRequest]
            stalled = [channel.stream_unary(path)() for _ in range(400)]
            metadata = [("authorization", f"Bearer {TOKEN}")]
            async with asyncio.timeout(PATIENCE_S):
                await channel.unary_unary(path)(metrics_body(), metadata=metadata)
                return {await call.code() for call in stalled}

    first, limited = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED
    assert asyncio.run(attack()) == {first, limited}


def test_wrong_tokens_do_not_fill_the_audit_log(echo: RunningEcho) -> None:
    limited = echo.sql("SELECT 1", token="wrong")
    assert limited.status == 401
    while limited.status == 401:
        limited = echo.sql("SELECT 1", token="wrong")
        assert echo.service.questions.replies["http", 401] < 10 * FAILURES_AT_ONCE
    assert echo.sql("SELECT 1").status == 200
    assert (limited.code, limited.headers["retry-after"]) == ("rate_limited", "1")
    trail = echo.service.audit
    assert trail.written + len(trail._waiting) < AUDITED_FAILURES[1] + 20
