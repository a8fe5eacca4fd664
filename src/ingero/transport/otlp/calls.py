"""gRPC calls under way: how many each sender may have, and whose message is read next."""

import asyncio
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import grpc

from ingero.errors import MalformedPush

MAX_UNFINISHED_MESSAGES: Final = 64
MESSAGE_S: Final = 10.0  # from the call to the end of its message
STALLED_S: Final = 0.25  # the same while other calls wait
# A call whose reply is not read stays, at 5 to 10 KB. So that nobody else is locked out, every
# connection may have a few calls, whatever others at the same address do.
MAX_CALLS_OF_ADDRESS: Final = 1024
CALLS_OF_CONNECTION: Final = 8


class Peer(NamedTuple):
    """Where a call comes from."""

    address: str
    connection: str


class CallsUnderWay:
    """Counts calls until their reply was read or their connection has ended."""

    def __init__(self, of_address: int = MAX_CALLS_OF_ADDRESS) -> None:
        self._of_address = of_address
        self._addresses: Counter[str] = Counter()
        self._connections: Counter[str] = Counter()

    def enter(self, peer: Peer, context: Any) -> bool:
        """Count a call until it ends, or return False for one too many."""
        is_busy = self._connections[peer.connection] >= CALLS_OF_CONNECTION
        if is_busy and self._addresses[peer.address] >= self._of_address:
            return False
        self._addresses[peer.address] += 1
        self._connections[peer.connection] += 1
        context.add_done_callback(lambda _: self._leave(peer))
        return True

    def _leave(self, peer: Peer) -> None:
        for counts, key in (
            (self._addresses, peer.address),
            (self._connections, peer.connection),
        ):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]


Turn = asyncio.Future[None]


@dataclass(slots=True)
class Waiting:
    """Those who wait, served in turn: address by address, and of each connection by connection."""

    _addresses: OrderedDict[str, OrderedDict[str, deque[Turn]]] = field(default_factory=OrderedDict)

    def __bool__(self) -> bool:
        return bool(self._addresses)

    def add(self, peer: Peer) -> Turn:
        """Return what is done once it is this peer's turn."""
        turn: Turn = asyncio.get_running_loop().create_future()
        connections = self._addresses.setdefault(peer.address, OrderedDict())
        connections.setdefault(peer.connection, deque()).append(turn)
        return turn

    def call_next(self) -> bool:
        """Let one who still waits go on; return False if nobody does."""
        while self._addresses:
            address, connections = self._addresses.popitem(last=False)
            connection, turns = connections.popitem(last=False)
            turn = turns.popleft()
            if turns:
                connections[connection] = turns
            if connections:
                self._addresses[address] = connections
            if not turn.done():
                turn.set_result(None)
                return True
        return False


class MessageReader:
    """Reads the messages of calls, a bounded number at once.

    gRPC buffers a message in full once it is asked for. Calls beyond the limit wait for their
    turn; while any waits, the others have less time to finish their message.
    """

    def __init__(self, max_at_once: int = MAX_UNFINISHED_MESSAGES) -> None:
        self._free = max_at_once
        self._waiting = Waiting()
        self._unhurried: dict[asyncio.Timeout, float] = {}  # since when each call reads

    async def read(self, context: Any, peer: Peer) -> bytes:
        """Return the message of a call; raise TimeoutError or MalformedPush."""
        async with asyncio.timeout(MESSAGE_S) as deadline:
            await self._take(peer)
            self._unhurried[deadline] = asyncio.get_running_loop().time()
            if self._waiting:
                self._hurry_all()
            try:
                message = await context.read()
            except grpc.aio.InternalError:  # wrongly compressed, or the sender went away
                raise MalformedPush("the message cannot be read") from None
            finally:
                self._unhurried.pop(deadline, None)
                self._give_back()
        if not isinstance(message, bytes):
            raise MalformedPush("the call has no message")
        return message

    async def _take(self, peer: Peer) -> None:
        if self._free:
            self._free -= 1
            return
        self._hurry_all()
        turn = self._waiting.add(peer)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came while it gave up
                self._give_back()
            raise

    def _give_back(self) -> None:
        if not self._waiting.call_next():
            self._free += 1

    def _hurry_all(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for deadline, since_s in self._unhurried.items():
            deadline.reschedule(max(now_s, since_s + STALLED_S))
        self._unhurried.clear()
