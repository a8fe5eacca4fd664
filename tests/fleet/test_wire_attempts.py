"""Attempts on the wire against a real Fleet: each is refused with a reason, and pushes go on."""

import asyncio
import contextlib
import gzip
import zlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import aiohttp
import grpc
import pytest
from tests.support import http2_frames as h2
from tests.support.pushes import JSON, NEVER_S, PB, as_json, post, protobuf
from tests.support.pushes import running as running_fleet
from tests.support.waiting import PATIENCE_S

from ingero.contract.otlp.values import MetricsRequest
from ingero.fleet.app import FleetService
from ingero.transport.listen import parse_address
from ingero.transport.otlp.server_grpc import PATHS

running = partial(running_fleet, tick_s=NEVER_S)
METRICS = PATHS[MetricsRequest]
ZEROS = bytes(34 << 20)
MEMORY_BYTES = 96 << 20  # more than any attempt may add to this process, which holds Fleet, too


@contextlib.asynccontextmanager
async def unharmed(fleet: FleetService) -> AsyncIterator[None]:
    """Check that an attempt takes no memory, and that an honest push is answered after it."""
    before = _peak_bytes()
    yield
    assert _peak_bytes() - before < MEMORY_BYTES
    async with asyncio.timeout(PATIENCE_S):
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        assert (await post(url, protobuf("honest", 0.9), PB))[0] == 200
        async with grpc.aio.insecure_channel(fleet.addresses["grpc"]) as channel:
            await channel.unary_unary(METRICS)(protobuf("honest", 0.9))


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(body) + packer.flush()


BOMBS = {
    "gzip": ("gzip", gzip.compress(ZEROS, 9), 413),
    "gzip in gzip": ("gzip", gzip.compress(gzip.compress(ZEROS, 9), 9), 400),
    "two members of gzip": ("gzip", gzip.compress(b"") + gzip.compress(ZEROS, 9), 400),
    "deflate": ("deflate", zlib.compress(ZEROS, 9), 413),
    "raw deflate": ("deflate", raw_deflate(ZEROS), 413),
    "cut off": ("gzip", gzip.compress(ZEROS, 9)[:-9], 413),
    "two encodings": ("gzip, gzip", gzip.compress(gzip.compress(ZEROS, 9), 9), 400),
    "zstd": ("zstd", b"\x28\xb5\x2f\xfd" + bytes(100), 400),
    "br": ("br", bytes(100), 400),
    "compress": ("compress", bytes(100), 400),
}


async def test_bombs_over_http() -> None:
    async with running() as fleet:
        for name, (encoding, body, status) in BOMBS.items():
            async with unharmed(fleet):
                for path in ("metrics", "traces", "logs"):
                    url = f"http://{fleet.addresses['http']}/v1/{path}"
                    found = await post(url, body, {**PB, "Content-Encoding": encoding})
                    assert found[0] == status, (name, path, found)


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_bombs_over_grpc(algorithm: grpc.Compression) -> None:
    async with (
        running() as fleet,
        grpc.aio.insecure_channel(fleet.addresses["grpc"]) as channel,
        unharmed(fleet),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(METRICS)(ZEROS, compression=algorithm)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


HEAD = b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"
REFUSED = {
    "chunks without end": (HEAD + CHUNKS + (b"10000\r\n" + bytes(1 << 16) + b"\r\n") * 70, b"413"),
    "extensions of chunks": (HEAD + CHUNKS + b"1;" + b"x" * 70_000, b"400"),
    "trailers": (HEAD + CHUNKS + b"0\r\n" + b"a: b\r\n" * 300, b"400"),
    "many headers": (HEAD + b"a: b\r\n" * 300 + b"\r\n", b"400"),
    "a long header": (HEAD + b"a: " + b"x" * 70_000, b"400"),
    "a long path": (b"POST /" + b"x" * 70_000, b"400"),
    "two lengths": (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
    "a length and chunks": (HEAD + b"Content-Length: 5\r\n" + CHUNKS + b"0\r\n\r\n", b"400"),
    "a negative length": (HEAD + b"Content-Length: -1\r\n\r\n", b"400"),
    "a length without end": (HEAD + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", b"400"),
    "a great length": (HEAD + b"Content-Length: 9000000000\r\n\r\n", b"413"),
    "pipelined requests": ((HEAD + b"Content-Length: 0\r\n\r\n") * 500, b"400"),
    "HTTP/2": (h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0), b"400"),
    "not HTTP": (b"\x16\x03\x01\x02\x00" + bytes(512), b"400"),
}


async def test_requests_that_no_client_sends() -> None:
    async with running() as fleet:
        for name, (sent, status) in REFUSED.items():
            async with unharmed(fleet), asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(
                    *parse_address(fleet.addresses["http"])
                )
                with contextlib.suppress(ConnectionError):  # it need not read to the end
                    writer.write(sent)
                    await writer.drain()
                    answer = await reader.readline()
                assert answer.split()[1:2] == [status], (name, answer)
                writer.close()


def nested_json(depth: int) -> bytes:
    return b'{"resourceMetrics":' * depth + b"[]" + b"}" * depth


TEXTS = {
    "a double key": (b'{"resourceMetrics":[],"resourceMetrics":[]}', {200}),
    "a huge exponent": (as_json("n", 0.125).replace(b"0.125", b"1e999"), {200, 400}),
    "a long number": (as_json("n", 0.125).replace(b"0.125", b"1" * 10_000), {200, 400}),
    "NaN": (as_json("n", 0.125).replace(b"0.125", b"NaN"), {400}),
    "NaN as a text": (as_json("n", 0.125).replace(b"0.125", b'"NaN"'), {200}),
    "Infinity as a text": (as_json("n", 0.125).replace(b"0.125", b'"-Infinity"'), {200}),
    "nesting": (nested_json(40_000), {400, 413}),
    "arrays": (b"[" * 100_000, {400, 413}),
    "bytes that are no UTF-8": (as_json("node-x", 0.5).replace(b"node-x", b"\xff\xfe"), {400}),
    "half a character": (as_json("node-x", 0.5).replace(b"node-x", b"\\ud800"), {200, 400}),
    "a zero character": (as_json("node-x", 0.5).replace(b"node-x", b"\\u0000"), {200}),
    "nothing": (b"", {400}),
}


async def test_json_that_no_agent_sends() -> None:
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        for name, (body, statuses) in TEXTS.items():
            async with unharmed(fleet):
                found = await post(url, body, JSON)
                assert found[0] in statuses, (name, found)
        url = f"http://{fleet.addresses['threshold']}/api/v1/status"
        assert b"honest" in (await _get(url))


async def test_identities_that_are_no_text() -> None:
    """Protobuf texts must be UTF-8: such a request is refused as a whole."""
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        for bad in (b"\xff\xfe\xfd\xfc\xfb\xfa", b"\xed\xa0\x80\xed\xa0\x80", b"\xc0\x80abcd"):
            async with unharmed(fleet):
                body = protobuf("node-x", 0.5).replace(b"node-x", bad)
                assert (await post(url, body, PB))[0] == 400
        assert list(fleet.processor.clusters["train"].roster.rows) == ["honest"]


async def _get(url: str) -> bytes:
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        return await reply.read()


def rapid_resets(count: int) -> bytes:
    """Calls that are cancelled as soon as they are made."""
    call, cancel = h2.call(METRICS), b"\x00\x00\x00\x08"
    return b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, stream, call)
        + h2.frame(h2.RST_STREAM, 0, stream, cancel)
        for stream in range(1, 2 * count, 2)
    )


HTTP2 = {
    "rapid resets": rapid_resets(3000),
    "calls without messages": b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, stream, h2.call(METRICS))
        for stream in range(1, 6000, 2)
    ),
    "headers without end": h2.frame(h2.HEADERS, 0, 1, h2.call(METRICS))
    + h2.frame(h2.CONTINUATION, 0, 1, h2.headers(a="x" * 100)) * 3000,
    "long headers": h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.headers(a="x" * 16_000)),
    "settings": h2.frame(h2.SETTINGS, 0, 0) * 10_000,
    "pings": h2.frame(h2.PING, 0, 0, bytes(8)) * 10_000,
    "empty data": h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.call(METRICS))
    + h2.frame(h2.DATA, 0, 1) * 10_000,
}


async def test_http2_that_no_client_sends() -> None:
    """HTTP/2 floods on the gRPC listener: calls of others are answered meanwhile and after."""
    async with running() as fleet:
        for sent in HTTP2.values():
            async with unharmed(fleet):
                _, writer = await asyncio.open_connection(*parse_address(fleet.addresses["grpc"]))
                writer.write(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + sent)
                with contextlib.suppress(ConnectionError, TimeoutError):
                    await asyncio.wait_for(writer.drain(), 1.0)
                async with grpc.aio.insecure_channel(fleet.addresses["grpc"]) as channel:
                    await channel.unary_unary(METRICS)(protobuf("honest", 0.9), timeout=PATIENCE_S)
                writer.transport.abort()
