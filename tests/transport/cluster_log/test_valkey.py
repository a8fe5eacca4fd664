"""The cluster log in a real engine, and the same log in memory: one behaviour (F058)."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.memory_log import MemoryLog
from tests.support.peers import free_port
from tests.support.tls_files import Authority
from tests.support.valkey import Engine, engine

from ingero.errors import AuthError, MalformedInput, Unavailable
from ingero.transport.cluster_log.address import parse_log_address
from ingero.transport.cluster_log.port import BEGINNING, ClusterLog, Snapshot
from ingero.transport.cluster_log.valkey import CHUNK_BYTES, ValkeyLog
from ingero.transport.tls import ClientTls


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


def valkey_log(port: int, shard: str, **more: object) -> ValkeyLog:
    return ValkeyLog(parse_log_address(f"valkey://127.0.0.1:{port}"), shard, **more)  # type: ignore[arg-type]


@pytest.fixture(params=["memory", "valkey"])
def log(request: pytest.FixtureRequest) -> ClusterLog:
    if request.param == "memory":
        return MemoryLog(time.time)
    return valkey_log(request.getfixturevalue("server").port, request.node.name)


async def test_entries_are_numbered_and_read_in_their_order(log: ClusterLog) -> None:
    try:
        now_s = await log.append([b"one", b"two"], None)
        await log.append([b"three"], None)
        found = await log.read_after(BEGINNING, 0.0)
        assert [(each.number, each.body) for each in found] == [
            (1, b"one"),
            (2, b"two"),
            (3, b"three"),
        ]
        assert abs(found[0].at_s - time.time()) < 5 and abs(now_s - time.time()) < 5
        later = await log.read_after(found[0].position, 0.0)
        assert [each.body for each in later] == [b"two", b"three"]
        assert await log.read_after(found[-1].position, 0.05) == []
    finally:
        await log.close()


async def test_a_reader_wakes_as_soon_as_something_is_appended(log: ClusterLog) -> None:
    try:
        await log.append([b"first"], None)
        [first] = await log.read_after(BEGINNING, 0.0)
        reading = asyncio.create_task(log.read_after(first.position, 5.0))
        await asyncio.sleep(0.05)
        await log.append([b"second"], None)
        assert [each.body for each in await asyncio.wait_for(reading, 2.0)] == [b"second"]
    finally:
        await log.close()


async def test_a_second_has_one_tick_whoever_asks_and_a_new_log_waits_first(
    log: ClusterLog,
) -> None:
    try:
        until_s = time.monotonic() + 4.5
        while time.monotonic() < until_s:
            await log.append([], b"tick of a")
            await log.append([], b"tick of b")
            await asyncio.sleep(0.05)
        found = await log.read_after(BEGINNING, 0.0)
        seconds = [int(each.at_s) for each in found]
        assert len(seconds) == len(set(seconds))
        assert 2 <= len(seconds) <= 4
    finally:
        await log.close()


async def test_a_snapshot_is_returned_as_it_was_stored(log: ClusterLog) -> None:
    try:
        assert await log.get_snapshot() is None
        for size in (0, 10, 3 * CHUNK_BYTES + 5):
            snapshot = Snapshot(f"17-{size}", size, b"x" * size)
            await log.put_snapshot(snapshot)
            assert await log.get_snapshot() == snapshot
    finally:
        await log.close()


async def test_a_damaged_snapshot_is_refused(server: Engine) -> None:
    log, shard = valkey_log(server.port, "damaged"), "ingero:{damaged}:snap"
    client = redis.Redis(port=server.port)
    try:
        await log.put_snapshot(Snapshot("17-0", 1, b"x" * 100))
        client.lset(f"{shard}:17-0", 0, b"y" * 100)
        with pytest.raises(MalformedInput, match="its digest"):
            await log.get_snapshot()
        client.delete(f"{shard}:17-0")
        with pytest.raises(MalformedInput, match="a chunk"):
            await log.get_snapshot()
        client.set(shard, b"nonsense")
        with pytest.raises(MalformedInput, match="damaged"):
            await log.get_snapshot()
    finally:
        client.close()
        await log.close()


async def test_foreign_entries_have_no_body_and_no_number(server: Engine) -> None:
    log, client = valkey_log(server.port, "foreign"), redis.Redis(port=server.port)
    try:
        client.xadd("ingero:{foreign}:log", {"n": "9" * 30, "other": "field"})
        [found] = await log.read_after(BEGINNING, 0.0)
        assert (found.number, found.body) == (0, b"")
    finally:
        client.close()
        await log.close()


async def test_an_engine_that_is_away_says_so_and_is_found_again(tmp_path: Path) -> None:
    with engine(tmp_path) as server:
        log = valkey_log(server.port, "away")
        try:
            await log.append([b"one"], None)
            server.kill()
            with pytest.raises(Unavailable, match="cannot be reached"):
                await log.append([b"two"], None)
            with pytest.raises(Unavailable):
                await log.read_after(BEGINNING, 0.1)
            server.start_again()
            await log.append([b"three"], None)
            assert [each.body for each in await log.read_after(BEGINNING, 0.0)] == [b"three"]
        finally:
            await log.close()


async def test_user_and_password_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    wrong = tmp_path / "wrong"
    wrong.write_text("other")
    wrong.chmod(0o600)
    acl = ("--user", *"fleet on >s3cret ~ingero:* +@all".split(), "--user", "default", "off")
    with engine(tmp_path / "engine", *acl) as server:
        log = valkey_log(server.port, "x", user="fleet", password_file=secret)
        try:
            await log.append([b"one"], None)
        finally:
            await log.close()
        for password_file in (None, wrong):
            log = valkey_log(server.port, "x", user="fleet", password_file=password_file)
            try:
                with pytest.raises((AuthError, Unavailable), match=r"refuses us|cannot be used"):
                    await log.append([b"one"], None)
            finally:
                await log.close()


async def test_tls_with_an_authority_of_its_own(tmp_path: Path) -> None:
    port, authority = free_port(), Authority.make(tmp_path / "ca")
    pair = authority.issue("127.0.0.1")
    options = (
        "--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no",
        "--tls-cert-file", str(pair.cert), "--tls-key-file", str(pair.key),
        "--tls-ca-cert-file", str(authority.cert),
    )  # fmt: skip
    with engine(tmp_path / "engine", *options, port=port):
        address = parse_log_address(f"valkeys://127.0.0.1:{port}")
        log = ValkeyLog(address, "x", tls=ClientTls(ca=authority.cert))
        strange = ValkeyLog(address, "x")
        try:
            await log.append([b"one"], None)
            with pytest.raises(Unavailable, match="certificate"):
                await strange.append([b"one"], None)
        finally:
            await log.close()
            await strange.close()
