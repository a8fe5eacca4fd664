"""A Unix socket that only writes lines: several readers, each with its own bounded queue, none able to hold us up."""

import asyncio
import contextlib
import errno
import grp
import logging
import os
import socket
import stat
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path

from ingero.errors import AuthError, Unavailable

log = logging.getLogger(__name__)

MAX_CONSUMERS = 32
MAX_QUEUED_LINES = 256
STUCK_AFTER_S = 10.0  # a reader that takes nothing for this long is let go
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_SO_PEERGROUPS = 59
_MAX_GROUPS = 1024


class LineServer:
    """Broadcasts lines. `sent`, `dropped` (by reason) and `refused` count what became of them and of readers."""

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
        self.snapshot = snapshot  # what a new reader gets first
        self._consumers: set[_Consumer] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._identity: tuple[int, int] | None = None

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    async def start(self) -> None:
        """Bind; raises AuthError where the place is not ours alone, Unavailable where somebody else listens."""
        listener = open_listener(self.path, self.gid)
        status = self.path.lstat()
        self._identity = (status.st_dev, status.st_ino)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    async def close(self) -> None:
        """Give readers a moment to take what is queued, then leave no socket behind."""
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
        """Queue one line for every reader. Never waits."""
        if not self._consumers:
            self.dropped["no_client"] += 1
            return
        for consumer in self._consumers:
            if consumer.put(line):
                self.dropped["queue_full"] += 1
        self.sent += 1

    async def _serve(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_welcome(writer.get_extra_info("socket")):
            self.refused += 1
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        consumer = _Consumer(writer, self._stuck_after_s)
        for line in self.snapshot():
            consumer.put(line)
        self._consumers.add(consumer)
        try:
            await consumer.run()
        except (ConnectionError, TimeoutError):
            self.dropped["write_error"] += 1
        finally:
            self._consumers.discard(consumer)
            self._serving.discard(task)
            writer.transport.abort()

    def _is_welcome(self, peer: socket.socket) -> bool:
        """Ourselves, root, and members of the group the socket was opened for."""
        if len(self._consumers) >= MAX_CONSUMERS:
            return False
        try:
            _, uid, gid = peer_credentials(peer)
        except (OSError, struct.error):
            return False
        return uid in (0, os.geteuid()) or (
            self.gid >= 0 and self.gid in {gid, *_peer_groups(peer)}
        )


def open_listener(path: Path, gid: int = -1) -> socket.socket:
    """A listening socket in a directory that is ours alone, or our group's; non-blocking. Raises AuthError where the
    place is not, Unavailable where somebody else listens."""
    _prepare_directory(path.parent, gid)
    _remove_own_socket(path)
    return _bind(path, gid)


def peer_credentials(peer: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the other end, as the kernel vouches for it. Raises OSError."""
    pid, uid, gid = _CREDENTIALS.unpack(
        peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid, gid


class _Consumer:
    """One reader and what it has not taken yet; a full queue loses its oldest line."""

    def __init__(self, writer: asyncio.StreamWriter, stuck_after_s: float) -> None:
        self._writer = writer
        self._stuck_after_s = stuck_after_s
        self._queue: deque[bytes] = deque(maxlen=MAX_QUEUED_LINES)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closing = False
        writer.transport.set_write_buffer_limits(
            high=0
        )  # drain() returns when the kernel has taken everything

    def put(self, line: bytes) -> bool:
        """True when an older line had to go."""
        is_full = len(self._queue) == MAX_QUEUED_LINES
        self._queue.append(line)
        self._idle.clear()
        self._wake.set()
        return is_full

    async def run(self) -> None:
        """Hand lines over until the reader is gone or stuck."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                self._writer.write(self._queue.popleft())
                await asyncio.wait_for(self._writer.drain(), self._stuck_after_s)
            self._idle.set()
            if self._is_closing:
                return

    async def drain(self) -> None:
        """Stop after what is queued, or soon."""
        self._is_closing = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), 1.0)
        if not self._idle.is_set():
            self._writer.transport.abort()


def _prepare_directory(directory: Path, gid: int) -> None:
    """Make the directory, or insist that it is real, ours and closed to writing by others.

    Only a directory made here is opened to the group; one that was there keeps its owner, group and mode.
    """
    is_new = not directory.exists()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise AuthError(
            f"{directory} is not a directory of its own (a link?); choose another place for the socket"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise AuthError(
            f"{directory} belongs to user {status.st_uid}; choose a directory you own for the socket"
        )
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise AuthError(
            f"others may write to {directory}; run `chmod go-w {directory}` or choose another place"
        )
    if gid >= 0 and is_new:
        with contextlib.suppress(
            OSError
        ):  # without the right to, the group simply cannot reach the socket
            os.chown(directory, -1, gid)
            directory.chmod(0o750)


def _remove_own_socket(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise AuthError(f"{path} exists and is not a socket; move it away or choose another path")
    if status.st_uid != os.geteuid():
        raise AuthError(f"{path} is a socket of user {status.st_uid}; choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()  # left behind by a process that is gone
        except OSError as error:
            raise Unavailable(f"cannot tell whether {path} is in use: {error.strerror}") from None
        else:
            raise Unavailable(
                f"another process listens on {path}; stop it or give each agent its own path"
            )


def _bind(path: Path, gid: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o077)  # closed from the first moment, opened afterwards
    try:
        listener.bind(str(path))
        listener.listen(MAX_CONSUMERS)  # at once: whoever sees the path may connect
    except OSError as error:
        listener.close()
        reason = (
            "the path is too long"
            if error.errno == errno.ENAMETOOLONG or not error.errno
            else error.strerror
        )
        raise Unavailable(f"cannot listen on {path}: {reason}") from None
    finally:
        os.umask(before)
    mode = 0o700
    if gid >= 0:
        try:
            os.chown(path, -1, gid)
            mode = 0o770
        except OSError:
            log.warning(
                "socket_group_refused",
                extra={"path": str(path), "gid": gid, "group": _group_name(gid)},
            )
    path.chmod(mode)
    listener.setblocking(False)
    return listener


def _peer_groups(peer: socket.socket) -> tuple[int, ...]:
    try:
        data = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MAX_GROUPS)
    except OSError:
        return ()
    return struct.unpack(f"{len(data) // 4}I", data[: len(data) // 4 * 4])


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
