"""The annotation socket: a job states its step, epoch and phase, and only its own."""

import contextlib
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ingero.agent.processes.discover import owner_uid, start_time
from ingero.agent.processes.namespaces import find_ancestor, is_elsewhere
from ingero.agent.recording.annotation_limits import (
    MAX_ACCEPTS,
    USER_LINES_PER_S,
    AnnotationLimits,
    place_for,
)
from ingero.contract.annotations import (
    MAX_LINE_BYTES,
    MAX_LINES_PER_S,
    Annotation,
    decode_annotation,
)
from ingero.errors import AuthError, IngeroError, MalformedInput
from ingero.storage.caller import caller
from ingero.storage.trace.database import Row, insert_sql
from ingero.transport.local.listener import open_listener, peer_credentials

ANSWER_S: Final = 2.0  # for all that the recorder answers
READ_BYTES: Final = 64 * 1024  # per connection and poll
INSERT_ANNOTATION: Final = insert_sql(
    "annotations",
    (
        "timestamp",
        "labels",
        "pid",
        "start_time",
        "span_start",
        "span_end",
        "peer_uid",
        "peer_gid",
        "peer_pid",
    ),
    "INSERT",
)


@dataclass(slots=True)
class _Connection:
    peer: socket.socket
    pid: int
    uid: int
    gid: int
    buffer: bytes = b""
    second: int = 0
    lines: int = 0
    is_inside: bool = False  # in a container with its own pids
    is_skipping: bool = False  # inside a line that is too long
    errors: list[str] = field(default_factory=list)


class AnnotationServer:
    """Polled by its owner; never blocks. `accepted` and `rejected` (by reason) count lines.

    The kernel tells which user a connection belongs to, and `limits` holds the users' shares.
    """

    def __init__(
        self,
        path: Path,
        gid: int = -1,
        *,
        clock: Callable[[], float] = time.monotonic,
        credentials: Callable[[socket.socket], tuple[int, int, int]] = peer_credentials,
    ) -> None:
        self.path = path
        self.accepted = 0
        self.rejected: Counter[str] = Counter()
        self.limits = AnnotationLimits()
        self._clock, self._credentials = clock, credentials
        if gid < 0 and os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdigit():
            gid = caller().pw_gid  # the caller of sudo runs the job under their own user
        self._listener = open_listener(path, gid)
        self._connections: list[_Connection] = []

    def poll(self, now_ns: int) -> list[Row]:
        """Return rows of everything that arrived."""
        for _ in range(MAX_ACCEPTS):
            if not self._accept():
                break
        rows: list[Row] = []
        for connection in list(self._connections):
            if self.limits.may_read(connection.uid, self._clock()):
                rows += self._read(connection, now_ns)
        self.accepted += len(rows)
        return rows

    def _accept(self) -> bool:
        """Take or refuse one waiting connection; return False if none is waiting."""
        try:
            peer, _ = self._listener.accept()
        except OSError:  # no connection is waiting, or no descriptor is free
            return False
        peer.setblocking(False)
        try:
            who = self._credentials(peer)
        except OSError:
            place = None
        else:
            place = place_for(who[1], [connection.uid for connection in self._connections])
        if place is None:
            self.rejected["connections"] += 1
            peer.close()
            return True
        if place < len(self._connections):
            self.rejected["closed"] += 1
            self._connections.pop(place).peer.close()
        self._connections.append(_Connection(peer, *who, is_inside=is_elsewhere(who[0])))
        return True

    def _read(self, connection: _Connection, now_ns: int) -> list[Row]:
        try:
            data = connection.peer.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.limits.count_bytes(connection.uid, len(data), self._clock())
        lines = self._split(connection, data)
        if not data and not connection.is_skipping:
            lines.append(connection.buffer)
        rows = [
            row
            for line in lines
            if line.strip() and (row := self._take(connection, line, now_ns)) is not None
        ]
        self._answer(connection)
        if not data:
            connection.peer.close()
            self._connections.remove(connection)
        return rows

    def _split(self, connection: _Connection, data: bytes) -> list[bytes]:
        *lines, connection.buffer = (connection.buffer + data).split(b"\n")
        if connection.is_skipping and lines:
            lines.pop(0)
            connection.is_skipping = False
        if len(connection.buffer) > MAX_LINE_BYTES:
            if not connection.is_skipping:
                self._reject(
                    connection, "too_long", f"a line is longer than {MAX_LINE_BYTES} bytes"
                )
            connection.buffer, connection.is_skipping = b"", True
        return lines

    def _take(self, connection: _Connection, line: bytes, now_ns: int) -> Row | None:
        second = now_ns // 1_000_000_000
        if second != connection.second:
            connection.second, connection.lines = second, 0
        connection.lines += 1
        if connection.lines > MAX_LINES_PER_S:
            self._reject(connection, "rate", f"more than {MAX_LINES_PER_S} lines in a second")
            return None
        if not self.limits.take_line(connection.uid, self._clock()):
            text = f"more than {USER_LINES_PER_S} lines in a second from user {connection.uid}"
            self._reject(connection, "user_rate", text)
            return None
        try:
            note = decode_annotation(line)
            if connection.is_inside and note.pid:
                note = replace(note, pid=outer_pid(note.pid, connection.pid))
            started = check_owner(note, connection.uid)
        except AuthError as error:
            self._reject(connection, "owner", str(error))
            return None
        except MalformedInput as error:
            self._reject(connection, "malformed", str(error))
            return None
        labels = json.dumps(dict(note.labels), ensure_ascii=False, separators=(",", ":"))
        who = (connection.uid, connection.gid, connection.pid)
        return (
            note.at_ns or now_ns,
            labels,
            note.pid,
            started,
            note.span_start_ns,
            note.span_end_ns,
            *who,
        )

    def _reject(self, connection: _Connection, reason: str, text: str) -> None:
        self.rejected[reason] += 1
        if len(connection.errors) < 8:
            connection.errors.append(text)

    def _answer(self, connection: _Connection) -> None:
        """Send the errors to the writer; a writer that does not read misses them."""
        if connection.errors:
            with contextlib.suppress(OSError):
                connection.peer.send("".join(f"{text}\n" for text in connection.errors).encode())
            connection.errors.clear()

    def close(self) -> None:
        """Close all connections and remove the socket."""
        for connection in self._connections:
            connection.peer.close()
        self._connections.clear()
        self._listener.close()
        self.path.unlink(missing_ok=True)


def outer_pid(pid: int, writer: int) -> int:
    """Return the pid here of a process that a writer in a container calls `pid`.

    It must be the writer or one of its ancestors.
    """
    found = find_ancestor(writer, pid)
    if found is None:
        raise AuthError(
            f"process {pid} of your container is neither the writer nor one of its ancestors"
        )
    return found


def check_owner(note: Annotation, uid: int) -> int:
    """Return the start time of the process that an annotation is about.

    Only its owner and root may annotate it.
    """
    if not note.pid:
        return note.start_time
    owner = owner_uid(note.pid)
    if owner is None:
        raise AuthError(f"process {note.pid} does not exist")
    if uid not in (0, owner):
        raise AuthError(f"process {note.pid} belongs to user {owner}, not to user {uid}")
    started = start_time(note.pid) or 0
    if note.start_time and note.start_time != started:
        raise AuthError(
            f"process {note.pid} started at {started}, not {note.start_time}: the pid was reused"
        )
    return started


def send_annotation(path: Path, line: bytes) -> None:
    """Send one line to a running recorder and wait for its error message, if any."""
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(ANSWER_S)
            peer.connect(str(path))
            peer.sendall(line)
            peer.shutdown(socket.SHUT_WR)
            answer = b""
            deadline_s = time.monotonic() + ANSWER_S
            while time.monotonic() < deadline_s and (part := peer.recv(4096)):
                answer += part
    except FileNotFoundError:
        raise IngeroError(
            f"no recorder listens on {path}; start `ingero trace --annotate`"
        ) from None
    except PermissionError:
        raise AuthError(
            f"{path} may not be opened by you; start the recorder with --annotate-socket-gid"
        ) from None
    except (ConnectionRefusedError, TimeoutError) as error:
        raise IngeroError(
            f"{path} does not answer ({error}); is `ingero trace --annotate` still running?"
        ) from None
    if answer:
        raise MalformedInput(answer.decode(errors="replace").strip())
