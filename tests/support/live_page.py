"""A Fleet whose page is watched: its streams, one tick at a time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import aiohttp
from tests.support.pushes import NEVER_S, health
from tests.support.pushes import running as running_fleet
from tests.support.verdict_pushes import own_time_push

from ingero.contract.live import (
    LiveDelta,
    LiveMessage,
    LiveRanks,
    LiveTick,
    decode_message,
)
from ingero.contract.verdict import VerdictState
from ingero.fleet.app import FleetService
from ingero.transport.bearer import Key

running = partial(running_fleet, tick_s=NEVER_S)


ALL = Key("test", b"")


class Reader:
    """Reads messages of one stream."""

    def __init__(self, lines: aiohttp.StreamReader) -> None:
        self._lines = lines

    async def next(self) -> LiveMessage:
        async with asyncio.timeout(20):
            return decode_message(await self._lines.readline())

    async def tick(self) -> list[LiveMessage]:
        """Everything up to the next tick, which is the last."""
        found = [await self.next()]
        while not isinstance(found[-1], LiveTick):
            found.append(await self.next())
        return found


@contextlib.asynccontextmanager
async def watching(
    fleet: FleetService, query: str = "", token: str | None = None
) -> AsyncIterator[Reader]:
    url = f"http://{fleet.addresses['threshold']}/api/v1/live{query}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(read_bufsize=1 << 20) as session,
        session.get(url, headers=headers) as reply,
    ):
        assert reply.status == 200, await reply.text()
        assert reply.headers["Content-Type"].startswith("application/x-ndjson")
        yield Reader(reply.content)


def advance(fleet: FleetService, seconds: float = 1.0) -> None:
    """One tick of Fleet, so many seconds from now."""
    fleet.tick(time.monotonic() + seconds)


def put(fleet: FleetService, node: str, score: float, cluster: str = "train") -> None:
    fleet.processor.take(health(node, score), cluster, time.monotonic(), time.time_ns())


def seconds_with_a_slow_rank(fleet: FleetService) -> Iterator[None]:
    """Let eight ranks push in every second, of which rank 5 is slower after two minutes."""
    start_s = time.monotonic()
    for second in range(160):
        for rank in range(8):
            own_ms = 500 * (1.3 if rank == 5 and second >= 120 else 1.0) + (rank * second) % 7
            push = own_time_push(f"n{rank}", rank, second, own_ms)
            fleet.processor.take(push, "c", start_s + second, 0)
        fleet.tick(start_s + second)
        yield


async def slow_rank(fleet: FleetService, reader: Reader) -> dict[str, Any]:
    """Return what was streamed last when rank 5 is named."""
    seen: dict[str, Any] = {"episodes": {}}
    for _ in seconds_with_a_slow_rank(fleet):
        for message in await reader.tick():
            if isinstance(message, LiveRanks):
                seen["ranks"] = message.ranks
            elif isinstance(message, LiveDelta):
                given = {name: getattr(message, name) for name in ("summary", "verdicts", "jobs")}
                seen |= {name: value for name, value in given.items() if value}
                for episode in message.episodes or ():
                    seen["episodes"][episode.verdict.episode] = episode
        if any(v.state is VerdictState.STRAGGLER for v in seen.get("verdicts", ())):
            return seen
    raise AssertionError("rank 5 was not named")
