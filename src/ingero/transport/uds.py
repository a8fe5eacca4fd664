"""A Unix socket that broadcasts lines to several readers, each with its own bounded queue."""

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
STUCK_AFTER_S = 10.0  # a reader that reads nothing for this long is disconnected
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_SO_PEERGROUPS = 59
_MAX_GROUPS = 1024


class LineServer:
    """Broadcasts lines, and counts lines sent and dropped (by reason) and readers refused."""

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
        self._consumers: set[_Consumer] = set()
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
        if not self._is_allowed(writer.get_extra_info("socket")):
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

    def _is_allowed(self, peer: socket.socket) -> bool:
        """Allow this user, root, and members of the group that the socket was opened for."""
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
    """Return a non-blocking listening socket in a directory that only we, or our group, can use.

    Raises AuthError for any other directory, and Unavailable where another process listens.
    """
    _prepare_directory(path.parent, gid)
    _remove_own_socket(path)
    return _bind(path, gid)


def peer_credentials(peer: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the peer as the kernel reports them; raise OSError."""
    pid, uid, gid = _CREDENTIALS.unpack(
        peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid, gid


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
                await asyncio.wait_for(self._writer.drain(), self._stuck_after_s)
            self._idle.set()
            if self._is_closing:
                return

    async def drain(self) -> None:
        """Stop once the queue is written, or after a second."""
        self._is_closing = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), 1.0)
        if not self._idle.is_set():
            self._writer.transport.abort()


def _prepare_directory(directory: Path, gid: int) -> None:
    """Create the directory, or check that it is ours and that others cannot write to it.

    Only a directory created here is opened to the group; a present one keeps owner, group and mode.
    """
    is_new = not directory.exists()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise AuthError(
            f"{directory} is not a directory (a link?); choose another path for the socket"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise AuthError(
            f"{directory} belongs to user {status.st_uid}; "
            "choose a directory you own for the socket"
        )
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise AuthError(
            f"others may write to {directory}; run `chmod go-w {directory}` or choose another path"
        )
    if gid >= 0 and is_new:
        with contextlib.suppress(OSError):  # without permission, the group cannot use the socket
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
            path.unlink()  # left by a process that has ended
        except OSError as error:
            raise Unavailable(f"cannot tell whether {path} is in use: {error.strerror}") from None
        else:
            raise Unavailable(
                f"another process listens on {path}; stop it or give each agent its own path"
            )


def _bind(path: Path, gid: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o077)  # private from the start; opened to the group afterwards
    try:
        listener.bind(str(path))
        listener.listen(MAX_CONSUMERS)  # at once, because clients may connect as soon as it exists
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
