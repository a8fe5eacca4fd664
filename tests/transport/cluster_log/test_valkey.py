"""The cluster log in a real engine, and the same log in memory: one behaviour (F058)."""

import asyncio
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from tests.support.compiler import compile_c
from tests.support.memory_log import MemoryLog
from tests.support.peers import free_port
from tests.support.tls_files import Authority
from tests.support.valkey import Engine, engine

from ingero.errors import AuthError, MalformedInput, Unavailable
from ingero.transport.cluster_log.address import parse_log_address
from ingero.transport.cluster_log.port import BEGINNING, ClusterLog, Snapshot
from ingero.transport.cluster_log.valkey import CHUNK_BYTES, ValkeyLog
from ingero.transport.tls import ClientTls

CLOCK = Path(__file__).parents[2] / "e2e" / "skewed_clock.c"


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


class Skewed:
    """A log whose engine's clock can be set, in memory or on a real engine."""

    def __init__(self, log: ClusterLog, set_skew_s: Callable[[float], None]) -> None:
        self.log, self.set_skew_s = log, set_skew_s


@pytest.fixture(params=["memory", "valkey"])
def skewed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Skewed]:
    if request.param == "memory":
        memory = MemoryLog(time.time)
        yield Skewed(memory, lambda value: setattr(memory, "skew_s", value))
        return
    library = compile_c(CLOCK, tmp_path / "clock.so", "-shared", "-fPIC", "-fno-sanitize=undefined")
    skew = tmp_path / "skew"
    skew.write_bytes(bytes(8))

    def set_skew_s(value: float) -> None:
        with skew.open("r+b") as file:
            file.write(struct.pack("<q", int(value * 1e9)))

    preloaded = {"LD_PRELOAD": str(library), "SKEW_FILE": str(skew)}
    with engine(tmp_path / "engine", environment=preloaded) as running:
        yield Skewed(valkey_log(running.port, "clock"), set_skew_s)


async def test_the_time_of_the_log_goes_on_where_the_clock_of_the_engine_steps_back(
    skewed: Skewed,
) -> None:
    """Else nobody would be missed, nothing trimmed and nothing ticked until it is there again."""
    log, times = skewed.log, []
    for skew_s in (0, 3, -3600, -3598, -3596, 60):
        skewed.set_skew_s(skew_s)
        times.append(await log.append([b"entry"], b"tick") - time.time())
    assert times == pytest.approx([0, 3, 3, 4.8, 6.6, 60], abs=0.5)
    found = await log.read_after(BEGINNING, 0.0)
    assert [each.body for each in found if each.at_s < time.time() + 20] == [
        *[b"entry"] * 2, b"tick", *[b"entry"] * 2, b"tick", b"entry", b"tick",
    ]  # fmt: skip
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)
    await log.close()


async def test_a_log_of_an_engine_whose_clock_is_behind_goes_on(server: Engine) -> None:
    """After a fail-over, or where an earlier version wrote the log."""
    ahead_ms = int((time.time() + 100) * 1e3)
    with redis.Redis(port=server.port) as client:
        client.xadd("ingero:{ahead}:log", {"n": 1, "e": b"first"}, id=f"{ahead_ms}-5")
        client.set("ingero:{ahead}:seq", 1)
    log = valkey_log(server.port, "ahead")
    now_s = await log.append([b"second"], None)
    assert now_s == ahead_ms / 1e3
    found = await log.read_after(f"{ahead_ms}-5", 0.0)
    assert [(each.number, each.body) for each in found] == [(2, b"second")]
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
