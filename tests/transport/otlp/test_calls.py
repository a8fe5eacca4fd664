"""Calls of strangers that never end: the calls of others take turns with them."""

import asyncio
from collections.abc import Callable

import pytest

from ingero.errors import MalformedPush
from ingero.transport.otlp import calls
from ingero.transport.otlp.calls import (
    CALLS_OF_CONNECTION,
    CallsUnderWay,
    Deadlines,
    MessageReader,
    Peer,
)

STRANGER, OTHER = Peer("10.0.0.1", "10.0.0.1:1"), Peer("10.0.0.2", "10.0.0.2:1")


class Call:
    """A call whose message arrives when the test says so."""

    def __init__(self, message: bytes | None = None) -> None:
        self.message: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        if message is not None:
            self.message.set_result(message)
        self.ended: list[Callable[[object], None]] = []

    async def read(self) -> bytes | None:
        return await self.message

    def add_done_callback(self, ended: Callable[[object], None]) -> None:
        self.ended.append(ended)

    def end(self) -> None:
        self.ended.pop()(self)


async def stalled(reader: MessageReader, calls: int, *peers: Peer) -> list[asyncio.Task[bytes]]:
    tasks = [asyncio.create_task(reader.read(Call(), peer)) for _ in range(calls) for peer in peers]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize("honest", [OTHER, Peer("10.0.0.1", "10.0.0.1:9")])
async def test_a_message_waits_for_one_turn_only(honest: Peer) -> None:
    """Ten thousand stalled calls on ten connections used to be served before it: 40 s.

    Nor do connections count where another address has many.
    """
    reader = MessageReader(max_at_once=2)
    connections = 3 if honest.address == "10.0.0.1" else 100
    peers = [Peer("10.0.0.1", f"10.0.0.1:{port}") for port in range(connections)]
    strangers = await stalled(reader, 300 // connections, *peers)
    began_s = asyncio.get_running_loop().time()
    assert await reader.read(Call(b"push"), honest) == b"push"
    assert asyncio.get_running_loop().time() - began_s < 3.0
    assert sum(task.done() for task in strangers) < 20
    for task in strangers:
        task.cancel()
    await asyncio.gather(*strangers, return_exceptions=True)
    assert await reader.read(Call(b"again"), honest) == b"again", "no place was lost"
    assert (reader._free, bool(reader._waiting)) == (2, False)


async def test_a_turn_that_comes_while_its_call_gives_up_goes_to_the_next() -> None:
    reader = MessageReader(max_at_once=1)
    first = Call()
    reading = asyncio.create_task(reader.read(first, OTHER))
    (waiting,) = await stalled(reader, 1, STRANGER)
    await asyncio.sleep(0)
    last = asyncio.create_task(reader.read(Call(b"last"), OTHER))
    await asyncio.sleep(0)
    first.message.set_result(b"first")
    await reading
    waiting.cancel()
    assert await last == b"last"
    assert reader._free == 1


@pytest.mark.parametrize("others", [0, 1], ids=["reading", "waiting for its turn"])
async def test_a_message_that_does_not_come_ends_its_call(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    monkeypatch.setattr(calls, "MESSAGE_S", 0.1)
    monkeypatch.setattr(calls, "STALLED_S", 0.1)
    reader = MessageReader(max_at_once=1)
    for task in [*await stalled(reader, others, OTHER), *await stalled(reader, 1, STRANGER)]:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 5.0)
        assert not task.cancelling(), "the call goes on and is answered"
    assert await reader.read(Call(b"next"), OTHER) == b"next"
    assert reader._free == 1


async def test_a_call_that_its_sender_cancels_is_not_answered() -> None:
    reader = MessageReader(max_at_once=1)
    (reading,) = await stalled(reader, 1, STRANGER)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert reader._free == 1


async def test_one_timer_serves_all_messages_and_ends_with_the_last_one() -> None:
    deadlines = Deadlines()
    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(asyncio.sleep(60.0)) for _ in range(3)]
    for late, task in enumerate(tasks):
        deadlines.cancel_at(task, loop.time() + 0.1 * late)
    assert not deadlines.leave(tasks[2])
    await asyncio.wait(tasks[:2], timeout=5.0)
    assert [task.cancelled() for task in tasks] == [True, True, False]
    assert [deadlines.leave(task) for task in tasks] == [True, True, False]
    assert not deadlines._is_watching
    tasks[2].cancel()


async def test_a_call_without_a_message_is_malformed() -> None:
    call = Call()
    call.message.set_result(None)
    with pytest.raises(MalformedPush):
        await MessageReader().read(call, OTHER)


async def test_replies_that_nobody_reads_are_limited_by_address() -> None:
    under_way = CallsUnderWay(of_address=20)
    unread = [Call() for _ in range(30)]
    entered = [under_way.enter(STRANGER, call) for call in unread]
    assert entered == [True] * 20 + [False] * 10
    neighbour = Peer(STRANGER.address, "10.0.0.1:2")
    few = [Call() for _ in range(CALLS_OF_CONNECTION + 1)]
    entered = [under_way.enter(neighbour, call) for call in few]
    assert entered == [True] * CALLS_OF_CONNECTION + [False]
    assert under_way.enter(OTHER, Call())
    for call in (*unread[:20], *few[:-1]):
        call.end()
    assert under_way.enter(STRANGER, Call())
    assert (len(under_way._addresses), len(under_way._connections)) == (2, 2)
