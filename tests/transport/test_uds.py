"""The line socket: several readers, bounded queues, snapshots, and files of other users."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S, until_async

from ingero.errors import AuthError, Unavailable
from ingero.transport import uds
from ingero.transport.local import listener
from ingero.transport.uds import MAX_CONSUMERS, MAX_QUEUED_LINES, LineServer

ANOTHER = 54321


@asynccontextmanager
async def serving(path: Path, **options: object) -> AsyncIterator[LineServer]:
    server = LineServer(path, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
        while READERS:
            writer = READERS.pop()
            writer.close()
            await writer.wait_closed()


async def connect(server: LineServer, expected: int = 1) -> asyncio.StreamReader:
    reader, writer = await asyncio.open_unix_connection(server.path)
    READERS.append(writer)
    await until_async(lambda: server.consumers >= expected)
    return reader


READERS: list[asyncio.StreamWriter] = []


async def test_every_reader_gets_every_line(tmp_path: Path) -> None:
    async with serving(tmp_path / "run" / "s.sock") as server:
        first, second = await connect(server), await connect(server, 2)
        server.send(b"one\n")
        server.send(b"two\n")
        for reader in (first, second):
            assert [await reader.readline(), await reader.readline()] == [b"one\n", b"two\n"]
        assert (server.sent, dict(server.dropped)) == (2, {})


async def test_a_line_without_reader_is_counted_as_dropped(tmp_path: Path) -> None:
    async with serving(tmp_path / "s.sock") as server:
        server.send(b"lost\n")
        assert dict(server.dropped) == {"no_client": 1}


async def test_a_new_reader_starts_with_the_snapshot(tmp_path: Path) -> None:
    async with serving(tmp_path / "s.sock", snapshot=lambda: [b"state\n"]) as server:
        reader = await connect(server)
        server.send(b"next\n")
        assert [await reader.readline(), await reader.readline()] == [b"state\n", b"next\n"]


async def test_a_reader_that_does_not_read_loses_its_oldest_lines_and_nobody_waits(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path / "s.sock", stuck_after_s=PATIENCE_S) as server:
        slow, quick = await connect(server), await connect(server, 2)
        line = b"x" * 50_000 + b"\n"
        total = MAX_QUEUED_LINES + 50
        for _ in range(total):
            server.send(line)
            assert await quick.readexactly(len(line)) == line
        assert server.dropped["queue_full"] > 0
        assert server.consumers == 2
        assert await slow.readexactly(len(line)) == line


async def test_a_reader_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async with serving(tmp_path / "s.sock") as server:
        await connect(server)
        READERS[-1].close()
        for _ in range(3):
            server.send(b"x\n")
            await asyncio.sleep(0.01)
        await until_async(lambda: server.consumers == 0)


async def test_a_stuck_reader_is_disconnected(tmp_path: Path) -> None:
    async with serving(tmp_path / "s.sock", stuck_after_s=0.05) as server:
        await connect(server)
        for _ in range(20):
            server.send(b"x" * 200_000 + b"\n")
        await until_async(lambda: server.consumers == 0)
        assert server.dropped["write_error"] == 1


async def test_readers_that_left_before_a_line_was_sent_keep_nobody_out(tmp_path: Path) -> None:
    async with serving(tmp_path / "s.sock") as server:
        for place in range(MAX_CONSUMERS):
            await connect(server, place + 1)
        while READERS:
            writer = READERS.pop()
            writer.close()
            await writer.wait_closed()
        server.snapshot = lambda: [b"state\n"]
        reader = await connect(server)
        assert await reader.readline() == b"state\n"
        assert (server.refused, server.consumers) == (0, 1)


async def test_a_reader_that_only_stopped_writing_stays(tmp_path: Path) -> None:
    async with serving(tmp_path / "s.sock") as server:
        reader = await connect(server)
        READERS[-1].write_eof()
        await connect(server, 2)
        server.send(b"one\n")
        assert await reader.readline() == b"one\n"


async def test_a_user_with_all_places_makes_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path / "s.sock") as server:
        readers = [await connect(server, place + 1) for place in range(MAX_CONSUMERS)]
        monkeypatch.setattr(uds, "peer_credentials", lambda _: (1, ANOTHER, os.getgid()))
        server.gid, server.snapshot = os.getgid(), lambda: [b"state\n"]
        another = await connect(server)
        assert await another.readline() == b"state\n"
        assert (server.refused, server.consumers) == (1, MAX_CONSUMERS)
        assert await readers[0].read() == b""
        server.send(b"one\n")
        for reader in (another, readers[-1]):
            assert await reader.readline() == b"one\n"


async def test_permissions_are_owner_only_and_the_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "s.sock"
    async with serving(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


async def test_a_group_may_be_allowed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "s.sock"
    async with serving(path, gid=os.getgid()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o770


async def test_a_directory_that_was_there_keeps_its_group_and_mode(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    before = home.stat()
    async with serving(home / "s.sock", gid=65532 if os.geteuid() == 0 else os.getgid()):
        after = home.stat()
        assert (after.st_gid, after.st_mode) == (before.st_gid, before.st_mode)
    new = tmp_path / "new"
    async with serving(new / "s.sock", gid=os.getgid()):
        assert stat.S_IMODE(new.stat().st_mode) == 0o750


async def test_a_leftover_socket_is_replaced_and_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    leftover = socket.socket(socket.AF_UNIX)
    leftover.bind(str(path))
    leftover.close()
    async with serving(path):
        with pytest.raises(Unavailable, match="another process"):
            await LineServer(path).start()


async def test_bug_a_file_or_link_at_the_path_is_never_removed(tmp_path: Path) -> None:
    """The reference removed whatever was at the path."""
    precious = tmp_path / "precious"
    precious.write_text("x")
    link = tmp_path / "link.sock"
    link.symlink_to(precious)
    for path in (precious, link):
        with pytest.raises(AuthError, match="not a socket"):
            await LineServer(path).start()
    assert precious.read_text() == "x"


async def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    with pytest.raises(AuthError, match="chmod"):
        await LineServer(loose / "s.sock").start()
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(AuthError, match="link"):
        await LineServer(link / "s.sock").start()


async def test_other_users_are_refused_by_their_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path / "s.sock") as server:
        monkeypatch.setattr(listener, "_CREDENTIALS", _Stranger())
        reader, writer = await asyncio.open_unix_connection(server.path)
        READERS.append(writer)
        assert await reader.read() == b""
        assert (server.refused, server.consumers) == (1, 0)


class _Stranger:
    size = 12

    def unpack(self, _: bytes) -> tuple[int, int, int]:
        return 1, 54321, 54321
