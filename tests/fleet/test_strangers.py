"""Senders without a token, and senders that never finish: Fleet holds nothing for them."""

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from tests.support.pushes import NEVER_S, PB, post, protobuf
from tests.support.pushes import running as running_fleet
from tests.support.waiting import PATIENCE_S

from ingero.contract.otlp.values import MetricsRequest
from ingero.transport import access
from ingero.transport.listen import parse_address
from ingero.transport.otlp.server_grpc import PATHS

running = partial(running_fleet, tick_s=NEVER_S)
TOKEN = "a-token-of-the-fleet-0123"
STALLED = 400


@pytest.fixture
def secured(tmp_path: Path) -> dict[str, Any]:
    """Settings by which every listener needs a token."""
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    own = {"token_file": str(path)}
    return {
        "receivers": {"otlp": {"protocols": {"grpc": own, "http": own}}},
        "extensions": {"ingero_threshold": own, "zpages": own},
    }


async def head(address: str, *lines: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the head of a push whose body never comes."""
    reader, writer = await asyncio.open_connection(*parse_address(address))
    first = ("POST /v1/metrics HTTP/1.1", "Host: x", "Content-Type: application/x-protobuf")
    writer.write("\r\n".join((*first, "Content-Length: 4000000", *lines, "", "")).encode())
    return reader, writer


async def test_a_stranger_is_refused_before_the_body(secured: dict[str, Any]) -> None:
    async with running(**secured) as fleet:
        reader, writer = await head(fleet.addresses["http"])
        async with asyncio.timeout(PATIENCE_S):
            assert b" 401 " in await reader.readline()
        for _ in range(20):
            writer.write(bytes(100_000))
            await writer.drain()
        assert fleet._listeners.admission.receiving_bytes == 0
        writer.close()
        authorized = {**PB, "Authorization": f"Bearer {TOKEN}"}
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        assert (await post(url, protobuf("a", 0.9), authorized))[0] == 200


async def test_unfinished_bodies_are_bounded_and_do_not_keep_others_out() -> None:
    """Without a token everybody may push; the limit by address keeps the memory bounded."""
    async with running() as fleet:
        admission = fleet._listeners.admission
        admission._limit_bytes = 4 << 20
        senders = [await head(fleet.addresses["http"]) for _ in range(40)]
        for _, writer in senders:
            writer.write(bytes(200_000))
        with contextlib.suppress(ConnectionError):
            for _, writer in senders:
                await writer.drain()
        url = f"http://{fleet.addresses['http']}/v1/traces"
        async with asyncio.timeout(PATIENCE_S):
            assert (await post(url, b"", PB))[0] == 200
            while not admission.refused:
                await asyncio.sleep(0.01)
        assert admission.receiving_bytes <= 1 << 20
        for _, writer in senders:
            writer.close()


@pytest.mark.parametrize("kind", ["stranger", "anybody"])
async def test_stalled_calls_do_not_keep_others_out(secured: dict[str, Any], kind: str) -> None:
    changes, metadata = (secured, [("authorization", f"Bearer {TOKEN}")])
    if kind == "anybody":
        changes, metadata = {}, []
    async with (
        running(**changes) as fleet,
        grpc.aio.insecure_channel(fleet.addresses["grpc"]) as channel,
        grpc.aio.insecure_channel(
            fleet.addresses["grpc"], options=[("grpc.use_local_subchannel_pool", 1)]
        ) as other,
    ):
        path = PATHS[MetricsRequest]
        stalled = [channel.stream_unary(path)() for _ in range(STALLED)]
        async with asyncio.timeout(PATIENCE_S):
            await stalled[0].wait_for_connection()
            await other.unary_unary(path)(protobuf("a", 0.9), metadata=metadata, timeout=9.0)
            codes = {await call.code() for call in stalled}
        if kind == "stranger":
            assert codes == {
                grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            }
        else:
            assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}


async def test_refusals_are_limited_by_address_on_every_listener(secured: dict[str, Any]) -> None:
    asked = {"http": "POST /v1/metrics", "threshold": "GET /api/v1/status", "health": "GET /"}
    async with running(**secured) as fleet:
        for name, request in asked.items():
            reader, writer = await asyncio.open_connection(*parse_address(fleet.addresses[name]))
            head = f"{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
            statuses = []
            while 429 not in statuses:
                writer.write(head.encode())
                async with asyncio.timeout(PATIENCE_S):
                    reply = await reader.readuntil(b"\r\n\r\n")
                    length = reply.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
                    await reader.readexactly(int(length))
                statuses.append(int(reply.split()[1]))
                assert len(statuses) < 10 * access.FAILURES_AT_ONCE
            writer.close()
            assert set(statuses[:-1]) == {401}
            assert len(statuses) > access.FAILURES_AT_ONCE


async def test_a_foreign_page_cannot_silence_and_cannot_read() -> None:
    """A form of another page, and a page whose name resolves to this machine."""
    silence = b'{"target": "a", "for_s": 2592000, "why": "x", "force": true}'
    async with running() as fleet:
        url = f"http://{fleet.addresses['threshold']}/api/v1/silences"
        evil = {"Origin": "http://evil.example"}
        rebound = {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}
        form, json = {"Content-Type": "text/plain"}, {"Content-Type": "application/json"}
        for headers, status in (
            ({**form, **evil}, 403),
            (form, 415),
            ({**json, **evil}, 403),
            ({**json, **rebound}, 403),
        ):
            assert (await post(url, silence, headers))[0] == status
        assert fleet.verdicts.silences.active(0.0) == []
        assert (await post(url, silence, json))[0] == 200
        async with aiohttp.ClientSession() as session:
            for name, path in (("threshold", "/api/v1/status"), ("admin", "/debug/clusters")):
                address = f"http://{fleet.addresses[name]}{path}"
                async with session.get(address, headers={"Host": "evil.example"}) as reply:
                    assert reply.status == 403
            scraped = {"Host": "metrics.example"}
            url = f"http://{fleet.addresses['metrics']}/metrics"
            async with session.get(url, headers=scraped) as reply:
                assert reply.status == 200
            async with session.get(f"http://{fleet.addresses['health']}/") as reply:
                assert "frame-ancestors 'none'" in reply.headers["Content-Security-Policy"]
                assert reply.headers["X-Frame-Options"] == "DENY"
