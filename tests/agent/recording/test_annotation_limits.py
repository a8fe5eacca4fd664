"""Limits per user of the annotation socket. Nothing here can wait: time is set by the test."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.agent.recording.annotate import AnnotationServer
from ingero.agent.recording.annotation_limits import (
    MAX_ACCEPTS,
    MAX_CONNECTIONS,
    MAX_USER_CONNECTIONS,
    USER_BYTES_PER_S,
    USER_LINES_PER_S,
    place_for,
)

NOW = 1_700_000_000_000_000_000
LINE = b'{"labels":{"s":"1"}}\n'
ALICE, MALLORY = 1001, 1002


class World:
    """A server whose clock and whose peers' users are set by the test."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.uid = ALICE
        self.peers: list[socket.socket] = []
        self.server = AnnotationServer(
            folder / "run" / "annotate.sock",
            clock=lambda: self.now_s,
            credentials=lambda _: (os.getpid(), self.uid, os.getgid()),
        )

    def connect(self, uid: int) -> socket.socket:
        """Connect and let the server take the connection as one of this user."""
        peer = socket.socket(socket.AF_UNIX)
        self.peers.append(peer)
        peer.settimeout(10)
        peer.connect(str(self.server.path))
        self.uid = uid
        self.server.poll(NOW)
        return peer

    def is_closed(self, peer: socket.socket) -> bool:
        peer.setblocking(False)
        try:
            return peer.recv(1) == b""
        except BlockingIOError:
            return False

    def send(self, peer: socket.socket, data: bytes) -> int:
        """Send what fits into the socket's buffer without waiting; return how much that was."""
        peer.setblocking(False)
        try:
            return peer.send(data)
        except BlockingIOError:
            return 0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    one = World(tmp_path)
    with closing(one.server):
        yield one
        for peer in one.peers:
            peer.close()


def test_one_user_cannot_take_the_connections_of_others(world: World) -> None:
    for _ in range(MAX_USER_CONNECTIONS + 20):
        world.connect(MALLORY)
    assert world.server.rejected == {"connections": 20}
    mine = world.connect(ALICE)
    mine.sendall(LINE)
    assert len(world.server.poll(NOW)) == 1


def test_full_house_gives_a_place_to_who_has_fewer(world: World) -> None:
    users = range(2000, 2000 + MAX_CONNECTIONS // MAX_USER_CONNECTIONS)
    held = [world.connect(uid) for uid in users for _ in range(MAX_USER_CONNECTIONS)]
    assert len(world.server._connections) == MAX_CONNECTIONS
    mine = world.connect(ALICE)
    assert world.server.rejected == {"closed": 1}
    assert [world.is_closed(peer) for peer in held].count(True) == 1
    mine.sendall(LINE)
    assert len(world.server.poll(NOW)) == 1


def test_lines_of_a_user_are_counted_over_all_connections(world: World) -> None:
    theirs = [world.connect(MALLORY) for _ in range(10)]
    for peer in theirs:
        peer.sendall(LINE * 900)
    rows = world.server.poll(NOW)
    assert len(rows) == 2 * USER_LINES_PER_S
    assert world.server.rejected == {"user_rate": 9000 - 2 * USER_LINES_PER_S}
    assert b"lines in a second from user 1002" in theirs[-1].recv(4096)
    mine = world.connect(ALICE)
    mine.sendall(LINE)
    assert len(world.server.poll(NOW)) == 1
    world.now_s += 1.0
    theirs[0].sendall(LINE)
    assert len(world.server.poll(NOW + 10**9)) == 1


def test_bytes_beyond_the_share_wait_in_the_socket_of_the_sender(world: World) -> None:
    theirs = [world.connect(MALLORY) for _ in range(8)]
    mine = world.connect(ALICE)
    read = 0
    for _ in range(200):
        read += sum(world.send(peer, b"x" * 65536) for peer in theirs)
        world.server.poll(NOW)
    buffers = sum(peer.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for peer in theirs)
    # One read of each connection may exceed the share, because its size is known afterwards.
    assert read <= 2 * USER_BYTES_PER_S + len(theirs) * 65536 + 2 * buffers
    assert world.server.limits.waits > 0
    mine.sendall(LINE)
    assert len(world.server.poll(NOW)) == 1
    waits = world.server.limits.waits
    world.now_s += 10.0
    world.server.poll(NOW)
    assert world.server.limits.waits == waits


def test_one_poll_takes_a_bounded_number_of_connections(world: World) -> None:
    """Somebody who connects again and again does not hold the recorder in one poll."""
    taken = 0
    accept = world.server._listener.accept

    class Endless:
        def accept(self) -> object:
            nonlocal taken
            taken += 1
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(world.server.path))
                return accept()

        def close(self) -> None:
            listener.close()

    listener = world.server._listener
    world.server._listener = Endless()  # type: ignore[assignment]  # what the poll uses of a socket
    world.server.poll(NOW)
    assert taken == MAX_ACCEPTS


@given(
    uid=st.integers(1, 9),
    held=st.lists(st.integers(1, 9), max_size=MAX_CONNECTIONS),
    filler=st.integers(1, 9),
)
def test_nobody_is_refused_while_another_has_more(uid: int, held: list[int], filler: int) -> None:
    full = held + [filler] * (MAX_CONNECTIONS - len(held))
    for uids in (held, full):
        place = place_for(uid, uids)
        most = max((uids.count(other) for other in set(uids)), default=0)
        if place is None:
            assert uids.count(uid) >= MAX_USER_CONNECTIONS or uids.count(uid) + 1 >= most
        elif place < len(uids):
            assert len(uids) == MAX_CONNECTIONS
            assert uids.count(uids[place]) == most > uids.count(uid) + 1
            assert uids[place] not in uids[:place]
        else:
            assert len(uids) < MAX_CONNECTIONS
