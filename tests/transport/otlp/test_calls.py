"""Calls of strangers that never end: the calls of others take turns with them."""

import asyncio
from collections.abc import Callable

import pytest

from ingero.errors import MalformedPush
from ingero.transport.otlp.calls import CALLS_OF_CONNECTION, CallsUnderWay, MessageReader, Peer

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


async def test_a_call_without_a_message_is_malformed() -> None:
    call = Call()
    call.message.set_result(None)
    with pytest.raises(MalformedPush):
        await MessageReader().read(call, OTHER)


async def test_replies_that_nobody_reads_are_limited_by_address() -> None:
    calls = CallsUnderWay(of_address=20)
    unread = [Call() for _ in range(30)]
    entered = [calls.enter(STRANGER, call) for call in unread]
    assert entered == [True] * 20 + [False] * 10
    neighbour = Peer(STRANGER.address, "10.0.0.1:2")
    few = [Call() for _ in range(CALLS_OF_CONNECTION + 1)]
    assert [calls.enter(neighbour, call) for call in few] == [True] * CALLS_OF_CONNECTION + [False]
    assert calls.enter(OTHER, Call())
    for call in (*unread[:20], *few[:-1]):
        call.end()
    assert calls.enter(STRANGER, Call())
    assert (len(calls._addresses), len(calls._connections)) == (2, 2)
