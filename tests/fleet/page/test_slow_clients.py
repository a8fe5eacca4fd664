"""Clients that do not read, or come and go: others are not disturbed, and memory stays bounded."""

import asyncio
import json
import socket

from tests.support.live_page import advance, put, running, watching
from tests.support.waiting import PATIENCE_S, until_async

from ingero.contract.live import LiveDelta, LiveSnapshot, apply_delta
from ingero.fleet.app import FleetService
from ingero.fleet.page.hub import MAX_WAITING

NODES = 2000


async def connect(fleet: FleetService) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream and read nothing of it; hardly anything fits between here and Fleet."""
    host, port = fleet.addresses["threshold"].rsplit(":", 1)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=peer, limit=4096)
    writer.write(b"GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await writer.drain()
    return reader, writer


async def change(fleet: FleetService, second: int) -> None:
    """Let every node change, and a second pass."""
    for number in range(NODES):
        put(fleet, f"node-{number:04d}", 0.5 + 0.4 * ((number + second) % 7) / 7)
    advance(fleet, second)
    await asyncio.sleep(0)


async def test_a_client_that_does_not_read_holds_nobody_up_and_starts_over() -> None:
    async with running() as fleet:
        await change(fleet, 0)
        reader, writer = await connect(fleet)
        await until_async(lambda: len(fleet.live.streams) == 1, "the stream is not open")
        [slow] = fleet.live.streams
        async with watching(fleet) as quick:
            first = await quick.tick()
            view = first[0]
            assert isinstance(view, LiveSnapshot)
            for second in range(1, 5 * MAX_WAITING):
                await change(fleet, second)
                delta = (await quick.tick())[0]
                assert isinstance(delta, LiveDelta), "the other client sees every second"
                view = apply_delta(view, delta)
                assert len(slow.waiting) <= MAX_WAITING
            assert slow.is_behind, "what it did not read is not kept for it"
            scores = {node.node_id: node.score for node in view.nodes}
            found = await read_until_caught_up(reader, scores)
            assert found, "it starts over with what is true now"
            assert fleet.live.restarted >= 1
        writer.close()
        await until_async(lambda: not fleet.live.streams, "a closed stream stays counted")


async def read_until_caught_up(reader: asyncio.StreamReader, scores: dict[str, object]) -> bool:
    """Read until a snapshot holds these scores; the body comes in chunks."""
    kept = b""
    async with asyncio.timeout(PATIENCE_S):
        await reader.readuntil(b"\r\n\r\n")
        while size := int(await reader.readline(), 16):
            *lines, kept = (kept + (await reader.readexactly(size + 2))[:-2]).split(b"\n")
            for line in lines:
                if line.startswith(b'{"type":"snapshot"'):
                    nodes = json.loads(line)["nodes"]
                    if {node[0]: node[1] for node in nodes} == scores:
                        return True
    return False


async def test_clients_that_come_and_go_leave_nothing() -> None:
    """Also those that are gone before their first byte, or in the middle of a snapshot."""
    async with running() as fleet:
        await change(fleet, 0)
        for turn in range(30):
            reader, writer = await connect(fleet)
            if turn % 3:
                await reader.read(100)
            writer.transport.abort()
            if turn % 10 == 0:
                await change(fleet, turn)
        await until_async(lambda: not fleet.live.streams, "streams of gone clients stay counted")
        async with watching(fleet) as late:
            assert isinstance((await late.tick())[0], LiveSnapshot)
