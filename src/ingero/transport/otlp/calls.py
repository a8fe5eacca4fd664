"""gRPC calls under way: how many each sender may have, and whose message is read next."""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import grpc

from ingero.errors import MalformedPush

MAX_UNFINISHED_MESSAGES: Final = 64
MESSAGE_S: Final = 10.0  # from the call to the end of its message
STALLED_S: Final = 0.25  # the same while other calls wait
LOOK_S: Final = 0.05  # between two looks at who takes too long
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
        self._addresses: dict[str, int] = {}  # a Counter takes five times as long
        self._connections: dict[str, int] = {}

    def enter(self, peer: Peer, context: Any) -> bool:
        """Count a call until it ends, or return False for one too many."""
        calls = self._addresses.get(peer.address, 0)
        on_connection = self._connections.get(peer.connection, 0)
        if on_connection >= CALLS_OF_CONNECTION and calls >= self._of_address:
            return False
        self._addresses[peer.address] = calls + 1
        self._connections[peer.connection] = on_connection + 1
        context.add_done_callback(lambda _: self._leave(peer))
        return True

    def _leave(self, peer: Peer) -> None:
        for counts, key in (
            (self._addresses, peer.address),
            (self._connections, peer.connection),
        ):
            if counts[key] > 1:
                counts[key] -= 1
            else:
                del counts[key]


Turn = asyncio.Future[None]
Reading = asyncio.Task[Any]


@dataclass(slots=True)
class Waiting:
    """Waiting calls, served in turn: by address, and within an address by connection."""

    _addresses: OrderedDict[str, OrderedDict[str, deque[Turn]]] = field(default_factory=OrderedDict)

    def __bool__(self) -> bool:
        return bool(self._addresses)

    def add(self, peer: Peer) -> Turn:
        """Return a future that is done when it is this peer's turn."""
        turn: Turn = asyncio.get_running_loop().create_future()
        connections = self._addresses.setdefault(peer.address, OrderedDict())
        connections.setdefault(peer.connection, deque()).append(turn)
        return turn

    def call_next(self) -> bool:
        """Let the next waiting call go on; return False if none waits."""
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


class Deadlines:
    """Ends tasks that take too long. One timer looks after all, since one for each costs 8 us."""

    def __init__(self) -> None:
        self._due_s: dict[Reading, float] = {}
        self._cancelled: set[Reading] = set()
        self._is_watching = False

    def cancel_at(self, task: Reading, due_s: float) -> None:
        """Cancel this task at the first look after `due_s`, unless it has left by then."""
        self._due_s[task] = due_s
        if not self._is_watching:
            self._is_watching = True
            asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def leave(self, task: Reading) -> bool:
        """Forget a task, and return whether it took too long."""
        self._due_s.pop(task, None)
        if task not in self._cancelled:
            return False
        self._cancelled.remove(task)
        return True

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for task in [task for task, due_s in self._due_s.items() if due_s <= now_s]:
            del self._due_s[task]
            self._cancelled.add(task)
            task.cancel()
        self._is_watching = bool(self._due_s)
        if self._is_watching:
            loop.call_later(LOOK_S, self._look)


class MessageReader:
    """Reads the messages of calls, a bounded number at once.

    gRPC buffers a message in full once it is asked for. Calls beyond the limit wait for their
    turn; while any waits, the others have less time to finish their message.
    """

    def __init__(self, max_at_once: int = MAX_UNFINISHED_MESSAGES) -> None:
        self._free = max_at_once
        self._waiting = Waiting()
        self._deadlines = Deadlines()
        self._unhurried: dict[Reading, float] = {}  # since when each call reads

    async def read(self, context: Any, peer: Peer) -> bytes:
        """Return the message of a call; raise TimeoutError or MalformedPush."""
        task = asyncio.current_task()
        assert task is not None  # a coroutine of asyncio always runs in one
        already_cancelled = task.cancelling()
        self._deadlines.cancel_at(task, asyncio.get_running_loop().time() + MESSAGE_S)
        try:
            message = await self._read_in_turn(context, peer, task)
        except asyncio.CancelledError:
            if self._deadlines.leave(task) and task.uncancel() <= already_cancelled:
                raise TimeoutError from None
            raise
        finally:
            self._deadlines.leave(task)
        if not isinstance(message, bytes):
            raise MalformedPush("the call has no message")
        return message

    async def _read_in_turn(self, context: Any, peer: Peer, task: Reading) -> Any:
        if self._free:
            self._free -= 1
        else:
            await self._turn_of(peer)
        self._unhurried[task] = asyncio.get_running_loop().time()
        if self._waiting:
            self._hurry_all()
        try:
            return await context.read()
        except grpc.aio.InternalError:  # wrongly compressed, or the sender went away
            raise MalformedPush("the message cannot be read") from None
        finally:
            self._unhurried.pop(task, None)
            self._give_back()

    async def _turn_of(self, peer: Peer) -> None:
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
        for task, since_s in self._unhurried.items():
            self._deadlines.cancel_at(task, since_s + STALLED_S)
        self._unhurried.clear()
