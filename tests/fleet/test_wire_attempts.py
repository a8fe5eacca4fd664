"""Attempts on the wire against a real Fleet: each is refused with a reason, and pushes go on."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial

import aiohttp
import grpc
import pytest
from tests.support import http2_frames as h2
from tests.support.pushes import JSON, NEVER_S, PB, post, protobuf
from tests.support.pushes import running as running_fleet
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

from ingero.cli.show.logs import set_up_logging
from ingero.fleet.app import FleetService
from ingero.transport.listen import parse_address

running = partial(running_fleet, tick_s=NEVER_S)


@contextlib.asynccontextmanager
async def unharmed(fleet: FleetService) -> AsyncIterator[None]:
    """Check that an attempt takes no memory, and that an honest push is answered after it."""
    before = peak_bytes()
    yield
    assert peak_bytes() - before < MEMORY_BYTES
    async with asyncio.timeout(PATIENCE_S):
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        assert (await post(url, protobuf("honest", 0.9), PB))[0] == 200
        async with grpc.aio.insecure_channel(fleet.addresses["grpc"]) as channel:
            await channel.unary_unary(METRICS)(protobuf("honest", 0.9))


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


async def test_requests_that_no_client_sends() -> None:
    async with running() as fleet:
        for name, (sent, status) in odd_requests(4 << 20).items():
            async with unharmed(fleet), asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(
                    *parse_address(fleet.addresses["http"])
                )
                with contextlib.suppress(ConnectionError):  # it need not read to the end
                    writer.write(sent)
                    await writer.drain()
                    answer = await reader.readuntil(b"\r\n\r\n")
                assert answer.split()[1:2] == [status], (name, answer)
                assert b"content-security-policy: default-src 'none'; frame-anc" in answer, name
                writer.close()


async def test_json_that_no_agent_sends() -> None:
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        for name, (body, statuses) in ODD_JSON.items():
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


async def test_http2_that_no_client_sends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP/2 floods on the gRPC listener: calls of others are answered meanwhile and after."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    set_up_logging()
    logging.root.addHandler(caplog.handler)
    async with running() as fleet:
        for sent in http2_floods().values():
            async with unharmed(fleet):
                _, writer = await asyncio.open_connection(*parse_address(fleet.addresses["grpc"]))
                writer.write(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + sent)
                with contextlib.suppress(ConnectionError, TimeoutError):
                    await asyncio.wait_for(writer.drain(), 1.0)
                async with grpc.aio.insecure_channel(fleet.addresses["grpc"]) as channel:
                    await channel.unary_unary(METRICS)(protobuf("honest", 0.9), timeout=PATIENCE_S)
                writer.transport.abort()
    assert "Traceback" not in caplog.text, "a sender cannot fill the log"
