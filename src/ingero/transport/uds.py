"""A Unix socket that broadcasts lines to several readers, each with its own bounded queue."""

import asyncio
import contextlib
import logging
import os
import select
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path

from ingero.core.crowd import place_for
from ingero.stopping import is_set_within
from ingero.transport.local.listener import open_listener, peer_credentials, peer_groups

log = logging.getLogger(__name__)

MAX_CONSUMERS = 32
MAX_QUEUED_LINES = 256
STUCK_AFTER_S = 10.0  # a reader that reads nothing for this long is disconnected


class LineServer:
    """Broadcasts lines; counts lines sent and dropped (by reason), and readers without a place."""

    def __init__(
        self,
        path: Path,
        *,
        gid: int = -1,
        snapshot: Callable[[], Iterable[bytes]] = tuple,
        stuck_after_s: float = STUCK_AFTER_S,
    ) -> None:
        self.path = path
        self._stuck_after_s = stuck_after_s
        self.gid = gid
        self.sent = 0
        self.dropped: Counter[str] = Counter()
        self.refused = 0
        self.snapshot = snapshot  # the lines that a new reader gets first
        self._consumers: dict[_Consumer, int] = {}  # with their users, oldest first
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._identity: tuple[int, int] | None = None

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    async def start(self) -> None:
        """Bind the socket; raise AuthError for an unsafe directory, Unavailable if it is in use."""
        listener = open_listener(self.path, self.gid)
        status = self.path.lstat()
        self._identity = (status.st_dev, status.st_ino)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    async def close(self) -> None:
        """Give readers a moment to read what is queued, then remove the socket."""
        if self._server is None:
            return
        self._server.close()
        await asyncio.gather(*(consumer.drain() for consumer in self._consumers))
        await asyncio.gather(*self._serving, return_exceptions=True)
        with contextlib.suppress(OSError):
            status = self.path.lstat()
            if (status.st_dev, status.st_ino) == self._identity:
                self.path.unlink()
        self._server = None

    def send(self, line: bytes) -> None:
        """Queue one line for every reader, without waiting."""
        if not self._consumers:
            self.dropped["no_client"] += 1
            return
        for consumer in self._consumers:
            if consumer.put(line):
                self.dropped["queue_full"] += 1
        self.sent += 1

    async def _serve(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = self._allowed_user(writer.get_extra_info("socket"))
        if uid is None or not self._make_place(uid):
            self.refused += 1
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        consumer = _Consumer(writer, self._stuck_after_s)
        for line in self.snapshot():
            consumer.put(line)
        self._consumers[consumer] = uid
        try:
            await consumer.run()
        except (ConnectionError, TimeoutError):
            self.dropped["write_error"] += 1
        finally:
            self._consumers.pop(consumer, None)
            self._serving.discard(task)
            writer.transport.abort()

    def _allowed_user(self, peer: socket.socket) -> int | None:
        """Return a peer that is this user, root, or in the group of the socket; None for others."""
        try:
            _, uid, gid = peer_credentials(peer)
        except (OSError, struct.error):
            return None
        is_ours = uid in (0, os.geteuid())
        is_of_group = self.gid >= 0 and self.gid in {gid, *peer_groups(peer)}
        return uid if is_ours or is_of_group else None

    def _make_place(self, uid: int) -> bool:
        """Return whether a user may have one more reader; a user with more may lose one for it."""
        for consumer in [each for each in self._consumers if each.has_left()]:
            self._remove(consumer)
        place = place_for(uid, list(self._consumers.values()), MAX_CONSUMERS)
        if place is None:
            return False
        if place < len(self._consumers):
            self.refused += 1
            self._remove(list(self._consumers)[place])
        return True

    def _remove(self, consumer: "_Consumer") -> None:
        del self._consumers[consumer]
        consumer.disconnect()


class _Consumer:
    """One reader and the lines it has not read yet; a full queue drops its oldest line."""

    def __init__(self, writer: asyncio.StreamWriter, stuck_after_s: float) -> None:
        self._writer = writer
        self._stuck_after_s = stuck_after_s
        self._queue: deque[bytes] = deque(maxlen=MAX_QUEUED_LINES)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closing = False
        # drain() returns when the kernel has accepted everything
        writer.transport.set_write_buffer_limits(high=0)

    def put(self, line: bytes) -> bool:
        """Queue a line; return True if an older one had to be dropped."""
        is_full = len(self._queue) == MAX_QUEUED_LINES
        self._queue.append(line)
        self._idle.clear()
        self._wake.set()
        return is_full

    async def run(self) -> None:
        """Write lines until the reader disconnects or stops reading."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                self._writer.write(self._queue.popleft())
                async with asyncio.timeout(self._stuck_after_s):
                    await self._writer.drain()
            self._idle.set()
            if self._is_closing:
                return

    def has_left(self) -> bool:
        """Return whether the reader closed its end; without lines, no write would tell."""
        transport = self._writer.transport
        if transport.is_closing():
            return True
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), 0)  # POLLHUP is always told
        return bool(poll.poll(0))

    def disconnect(self) -> None:
        """Stop at once."""
        self._queue.clear()
        self._is_closing = True
        self._wake.set()
        self._writer.transport.abort()

    async def drain(self) -> None:
        """Stop once the queue is written, or after a second."""
        self._is_closing = True
        self._wake.set()
        if not await is_set_within(self._idle, 1.0):
            self._writer.transport.abort()
