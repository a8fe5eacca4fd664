"""A Fleet that answers what a test tells it to, over real HTTP, and remembers what it was sent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    delay_s: float = 0.0
    breaks: bool = False  # the connection, instead of a reply


@dataclass
class ScriptedFleet:
    """`answer` is asked for every request; by default everything is fine."""

    url: str = ""
    requests: list[tuple[web.Request, bytes]] = field(default_factory=list)
    answer: Callable[[int], Answer] = lambda _: Answer()

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append((request, await request.read()))
        answer = self.answer(len(self.requests))
        await asyncio.sleep(answer.delay_s)
        if answer.breaks and request.transport is not None:
            request.transport.abort()
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)


@contextlib.asynccontextmanager
async def scripted_fleet() -> AsyncIterator[ScriptedFleet]:
    fleet = ScriptedFleet()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", fleet.handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fleet.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fleet
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """Accepts connections and never answers."""
    writers: list[asyncio.StreamWriter] = []

    async def swallow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()
