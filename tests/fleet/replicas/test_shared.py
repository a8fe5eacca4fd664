"""What operators change and what is sent to others, in a Fleet of several replicas (F058)."""

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.alert_sink import alert_sink
from tests.support.pushes import loopback_config
from tests.support.replicas import Replicas, push_scores, run_job

from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.values import LogsRequest
from ingero.contract.replicas import entries
from ingero.contract.silence import LiftRequest, Silence
from ingero.errors import ConfigError, ForeignFile, Unavailable
from ingero.fleet.replicas.snapshot import decode_snapshot, encode_snapshot, install

TICKS = 1000
QUICK: dict[str, Any] = {"processors": {"ingero": {"verdict": {"warmup_samples": 20}}}}


class Sink:
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def offer(self, kind: Any, body: bytes, encoding: Encoding, taken: Any) -> None:
        self.bodies.append(body)


async def shared(world: Replicas, name: str, entry: entries.Entry) -> None:
    """Change something at one replica."""
    changing = asyncio.create_task(world.replica(name).share(entry))
    await asyncio.sleep(0)
    await world.flush()
    await changing


async def test_silences_and_limits_hold_in_all_replicas() -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    silence = Silence(target="n1", since=world.now_s, until=world.now_s + 60, why="repair")
    await shared(world, "b", entries.SilenceBegun(silence))
    for service in world.services.values():
        assert service.verdicts.silences.active(world.now_s) == [silence]
    await shared(world, "a", entries.SilenceLifted(LiftRequest(target="n1")))
    assert world.services["b"].verdicts.silences.active(world.now_s) == []
    policy = world.services["a"].processor.policy
    await world.flush()
    changing = asyncio.create_task(world.services["b"]._set_limits(replace(policy, k=3.0)))
    await asyncio.sleep(0)
    await world.flush()
    await changing
    assert {each.processor.policy.k for each in world.services.values()} == {3.0}


async def test_a_replica_that_is_not_ready_changes_nothing() -> None:
    world = Replicas("a")
    with pytest.raises(Unavailable, match="not ready"):
        await world.replica("a").share(entries.SilenceLifted(LiftRequest(target="n1")))


async def test_verdict_records_are_sent_once_and_by_the_next_one_when_the_first_is_gone() -> None:
    world = Replicas("a", "b", "c", **QUICK)
    sinks = {name: Sink() for name in "abc"}
    for name, service in world.services.items():
        service.receiver.sinks = {LogsRequest: (sinks[name],)}
    await world.until_ready()
    await run_job(world, 70)
    assert sinks["a"].bodies
    assert sinks["b"].bodies == sinks["c"].bodies == []
    assert all(world.replica(name).shared.owed == {} for name in "abc")
    sent = len(sinks["a"].bodies)
    world.replica("a").send_record = lambda body, done: True  # it dies while it sends
    for name in "bc":
        assert world.replica(name).shared.owed == {}
    for service in world.services.values():
        service.replica.shared.owe(b"a verdict")  # type: ignore[union-attr]
    await world.seconds(2)
    del world.services["a"]
    await world.seconds(4)
    assert sinks["b"].bodies == []  # the first may have sent it just before
    await world.seconds(5)
    assert sinks["b"].bodies == [b"a verdict"]
    assert (len(sinks["a"].bodies), sinks["c"].bodies) == (sent, [])
    await world.seconds(10)
    assert sinks["b"].bodies == [b"a verdict"]


async def test_a_snapshot_is_the_state_and_a_damaged_one_changes_nothing() -> None:
    world = Replicas("a", **QUICK)
    await world.until_ready()
    await run_job(world, 70)
    state = world.replica("a").shared
    content = encode_snapshot(state)
    other = Replicas("b", **QUICK)
    empty = other.replica("b").shared
    for damaged in (
        b"", content[:-10], zlib.compress(b"\x80"), zlib.compress(zlib.decompress(content)[:-40]),
    ):  # fmt: skip
        with pytest.raises(ForeignFile):
            decode_snapshot(damaged, 1000)
    install(decode_snapshot(content, 10_000), empty)
    assert empty.digest() == state.digest()
    assert encode_snapshot(empty) == content
    current = state.judgement.verdicts.current()
    assert empty.judgement.verdicts.current() == current != []
    assert empty.judgement.episodes.episodes.keys() == state.judgement.episodes.episodes.keys()


async def test_entries_of_strangers_are_counted_and_skipped_by_all() -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    push_scores(world)
    await world.seconds(1)
    wrong = [
        b"nonsense",
        entries.encode_entry(entries.Rows("x", "train", b"123")),
        entries.encode_entry(entries.Rows("x", "two\nlines", b"")),
        entries.encode_entry(entries.Measured("x", 1, b"no zlib")),
        entries.encode_entry(entries.Measured("x", 2, entries.pack_bodies([("c", b"\xff")]))),
    ]
    await world.log.append(wrong, None)
    await world.seconds(2)
    assert [world.replica(name).shared.malformed for name in "ab"] == [len(wrong)] * 2
    assert len(world.digests()) == 1


async def test_measurements_that_are_appended_twice_count_once() -> None:
    world = Replicas("a")
    await world.until_ready()
    append, lost = world.log.append, []

    async def lose_the_reply(bodies: Any, tick: Any) -> float:
        now_s = await append(bodies, tick)
        if not lost and any(b"measured" in body for body in bodies):
            lost.append(True)
            raise Unavailable("the reply was lost")
        return now_s

    world.log.append = lose_the_reply  # type: ignore[method-assign]
    await run_job(world, 3, slow=False)
    assert lost
    assert world.services["a"].verdicts.counters.own_times == 3 * 8


def test_files_for_what_the_log_keeps_are_refused() -> None:
    log = {"url": "valkey://127.0.0.1:1"}
    for key in ("state_dir", "silences_file"):
        with pytest.raises(ConfigError, match="the replicas keep this state together"):
            loopback_config(cluster_log=log, processors={"ingero": {"verdict": {key: "/tmp/x"}}})
    assert loopback_config(cluster_log="valkey://h").cluster_log.url == "valkey://h"


async def test_an_alert_is_sent_by_one_replica_and_by_the_next_one_when_it_is_gone() -> None:
    async with alert_sink() as sink:
        target = {"webhook": {"url": sink.url, "max_per_minute": 60}}
        world = Replicas("a", "b", **QUICK, alerts={"targets": target})
        await world.until_ready()
        await run_job(world, 70)
        services = {name: service.judgement.alerts for name, service in world.services.items()}
        first, second = services["a"], services["b"]
        assert first is not None
        assert second is not None
        assert [len(each.queues["webhook"]) for each in (first, second)] == [1, 1]
        await second.deliver(world.now_s)
        assert sink.requests == []
        await first.deliver(world.now_s)
        assert len(sink.requests) == 1
        await world.seconds(1)
        assert len(second.queues["webhook"]) == 0  # it was told
        for _ in range(12):  # the alert ends, and its sender is gone
            if len(second.queues["webhook"]) == 0:
                await run_job(world, 10, slow=False)
        assert [len(each.queues["webhook"]) for each in (first, second)] == [1, 1]
        del world.services["a"]
        await world.seconds(8)
        await second.deliver(world.now_s)
        assert len(sink.requests) == 2
        for each in (first, second):
            await each.stop()


async def test_each_record_is_sent_once_while_senders_die_with_records_in_their_hands() -> None:
    world = Replicas("a", "b", "c")
    sent: Counter[bytes] = Counter()
    owed: set[bytes] = set()

    def deliver(body: bytes, done: Callable[[], None]) -> bool:
        sent[body] += 1
        done()
        return True

    def join(name: str) -> None:
        """Let every tick leave a record, and send what this replica may send."""
        replica = world.replica(name)
        on_tick = replica.shared._on_tick

        def tick(at_s: float) -> None:
            on_tick(at_s)
            body = b"%d" % round(at_s * 1e3)
            owed.add(body)
            replica.shared.owe(body)

        replica.shared._on_tick = tick
        replica.send_record = deliver

    for name in "abc":
        join(name)
    await world.until_ready()
    for second in range(TICKS):
        sender = min(world.services)
        if second % 50 == 10:  # it takes records, and dies before it sends them
            world.replica(sender).send_record = lambda body, done: True
        if second % 50 == 11:
            del world.services[sender]
            killed = sender
        if second % 50 == 30:
            world.add(killed)
            join(killed)
        await world.seconds(1)
    await world.seconds(10)
    assert len(owed) >= TICKS
    missing = sorted(owed - sent.keys())[:-1]  # the last one may be just being sent
    assert missing == []
    assert set(sent.values()) == {1}
