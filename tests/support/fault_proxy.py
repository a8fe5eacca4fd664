"""A TCP proxy that misbehaves on purpose: delays, cuts, stays half open, trickles."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Self


@dataclass
class FaultProxy:
    """Forwards to `target` with one fault; `address` is where to connect."""

    target: tuple[str, int]
    delay_s: float = 0.0
    cut_after_bytes: int | None = None
    swallow: bool = False  # accepts and never answers
    trickle_s: float = 0.0  # seconds between single bytes of the answer
    together: asyncio.Barrier | None = None  # forwards once so many connections wait here
    hold: tuple[bytes, asyncio.Event] | None = None  # requests with these bytes wait for the event
    refusing: bool = False  # closes every new connection at once
    address: str = ""
    accepted: int = 0  # connections so far
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Abort every connection that is open now."""
        for task in list(self._tasks):
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refusing:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.swallow:
                await asyncio.Event().wait()
            await asyncio.sleep(self.delay_s)
            if self.together is not None:
                await self.together.wait()
            upstream_reader, upstream_writer = await asyncio.open_connection(*self.target)
            try:
                await asyncio.gather(
                    self._pump(reader, upstream_writer, None),
                    self._pump(upstream_reader, writer, self.cut_after_bytes),
                )
            finally:
                upstream_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None
    ) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(1 if self.trickle_s and budget is not None else 65536):
                if self.hold is not None and self.hold[0] in data:
                    await self.hold[1].wait()
                if budget is not None and sent + len(data) > budget:
                    writer.write(data[: budget - sent])
                    await writer.drain()
                    writer.transport.abort()
                    return
                sent += len(data)
                writer.write(data)
                await writer.drain()
                if self.trickle_s and budget is not None:
                    await asyncio.sleep(self.trickle_s)
            writer.write_eof() if writer.can_write_eof() else writer.close()
