"""Attempts on the wire against a real Echo: each is refused with a reason, and ingest goes on."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.support import http2_frames as h2
from tests.support.echo_samples import metrics_body
from tests.support.echo_service import TOKEN, RunningEcho
from tests.support.waiting import PATIENCE_S
from tests.support.wire_attempts import (
    BOMBS,
    MEMORY_BYTES,
    METRICS,
    ODD_JSON,
    ZEROS,
    http2_floods,
    odd_requests,
    peak_bytes,
)

from ingero.contract.names import JSON_TYPE, PROTOBUF_TYPE
from ingero.echo.ingest import MAX_REQUEST_BYTES
from ingero.transport.listen import parse_address

METADATA = (("authorization", f"Bearer {TOKEN}"),)
QUESTIONS = ("/api/v2/sql", "/api/v2/tools/fleet.cluster.summary", "/mcp")


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEcho]:
    with RunningEcho(tmp_path_factory.mktemp("echo"), bearer_rate=1000.0) as running:
        yield running


@contextlib.contextmanager
def unharmed(echo: RunningEcho) -> Iterator[None]:
    """Check that an attempt takes no memory, here and in the store, and that ingest goes on."""
    pids = ("self", *_children())
    before = [peak_bytes(pid) for pid in pids]
    yield
    assert sum(map(peak_bytes, pids)) - sum(before) < MEMORY_BYTES
    assert echo.send(metrics_body()).status == 200

    async def call() -> None:
        async with grpc.aio.insecure_channel(echo.service.addresses["grpc"]) as channel:
            await channel.unary_unary(METRICS)(
                metrics_body(), metadata=METADATA, timeout=PATIENCE_S
            )

    asyncio.run(call())


def _children() -> list[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return [pid for task in tasks for pid in task.read_text().split()]


def test_bombs_over_http(echo: RunningEcho) -> None:
    for name, (encoding, body, status) in BOMBS.items():
        with unharmed(echo):
            for path in ("metrics", "traces", "logs"):
                headers = {"Content-Type": PROTOBUF_TYPE, "Content-Encoding": encoding}
                found = echo.call(echo.url(f"/v1/{path}", "http"), body, TOKEN, headers)
                assert found.status == status, (name, path, found.body)


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_bombs_over_grpc(echo: RunningEcho, algorithm: grpc.Compression) -> None:
    async def attack() -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(echo.service.addresses["grpc"]) as channel:
            call = channel.unary_unary(METRICS)(ZEROS, metadata=METADATA, compression=algorithm)
            return await call.code()

    with unharmed(echo):
        assert asyncio.run(attack()) is grpc.StatusCode.RESOURCE_EXHAUSTED


def answered(echo: RunningEcho, listener: str, sent: bytes) -> bytes:
    """The status of the reply to raw bytes."""
    address = parse_address(echo.service.addresses[listener])
    with socket.create_connection(address, PATIENCE_S) as connection:
        with contextlib.suppress(ConnectionError):  # it need not read to the end
            connection.sendall(sent)
        with contextlib.suppress(ConnectionError):
            return connection.recv(100).partition(b"\r\n")[0].split()[1]
        return b"closed"


@pytest.mark.parametrize("token", [TOKEN, None], ids=["with a token", "without"])
def test_requests_that_no_client_sends(echo: RunningEcho, token: str | None) -> None:
    """Without a token nothing of the body matters: what is no request gets 400, the rest 401."""
    more = (f"Authorization: Bearer {token}",) if token else ()
    with unharmed(echo):
        for name, (sent, status) in odd_requests(MAX_REQUEST_BYTES, *more).items():
            allowed = {status} if token else {status, b"401", b"429", b"closed"}
            assert answered(echo, "http", sent) in allowed, name


def test_json_that_no_agent_sends(echo: RunningEcho) -> None:
    for name, (body, statuses) in ODD_JSON.items():
        with unharmed(echo):
            headers = {"Content-Type": JSON_TYPE}
            found = echo.call(echo.url("/v1/metrics", "http"), body, TOKEN, headers)
            assert found.status in statuses, (name, found.body)


def test_http2_that_no_client_sends(echo: RunningEcho) -> None:
    """HTTP/2 floods on the gRPC listener: calls of others are answered meanwhile and after."""
    address = parse_address(echo.service.addresses["grpc"])
    for flood in http2_floods(authorization=f"Bearer {TOKEN}").values():
        with socket.create_connection(address, 1.0) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + flood)
            with unharmed(echo):
                pass


HOSTILE_QUESTIONS = {
    "nesting": b"[" * 500_000,
    "objects": b'{"a":' * 200_000,
    "a long number": b'{"limit": ' + b"9" * 500_000 + b"}",
    "a huge exponent": b'{"limit": 1e999999}',
    "half a character": b'{"sql": "\\ud800"}',
    "a zero character": b'{"sql": "SELECT \\u0000"}',
    "no UTF-8": b'{"sql": "\xff\xfe"}',
    "no object": b'"SELECT 1"',
    "too long": b'{"sql": "' + b" " * (1 << 20),
    "unknown keys": b"{" + b",".join(b'"k%d": 1' % n for n in range(10_000)) + b"}",
}


def test_questions_that_no_client_asks(echo: RunningEcho) -> None:
    for path in QUESTIONS:
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}"]
        lines += [f"Content-Type: {JSON_TYPE}", f"Accept: {JSON_TYPE}, text/event-stream"]
        with unharmed(echo):
            for name, body in HOSTILE_QUESTIONS.items():
                head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode()
                found = answered(echo, "mcp", head + body)
                assert found in (b"400", b"413"), (path, name, found)
