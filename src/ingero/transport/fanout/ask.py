"""One question to many nodes at once: replies in the order of the nodes, failures as values.

A reply stays encoded until it is its turn, so that memory holds compact bytes and never the rows of
all nodes as objects.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Self, TypeVar

import aiohttp
import msgspec

from ingero.contract.api_paths import NODE_TIME
from ingero.contract.node_api import TimeReply
from ingero.core.clocks.skew import ClockOffset, TimeSample, estimate_offset
from ingero.core.rowmerge import RowMerge
from ingero.transport.fanout.client import NodeClient, NodeReply, Question
from ingero.transport.fanout.failures import NOT_DECODABLE
from ingero.transport.fanout.nodes import FanoutPolicy

SKEW_SAMPLES: Final = 3
FRESH_NS: Final = 60_000_000_000  # a clock offset measured this recently is not measured again
AT_ONCE: Final = 128  # more at a time only fills memory: replies are printed in order anyway
Answer = TypeVar("Answer")
decode_time = msgspec.json.Decoder(TimeReply).decode


def decode_reply(
    reply: NodeReply, decode: Callable[[bytes], Answer], merge: RowMerge
) -> Answer | None:
    """Return the decoded answer, or record in `merge` why there is none and return None."""
    if reply.failure is not None:
        merge.fail(reply.address, reply.failure)
        return None
    try:
        return decode(reply.body)
    except NOT_DECODABLE as error:
        merge.fail(reply.address, f"its answer cannot be read: {error}")
        return None


class _Backlog:
    """The replies that wait for a slower node before them.

    While they exceed the limit, only the node whose reply is due next is still asked.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._next = 0
        self._bytes = 0
        self._changed = asyncio.Condition()

    async def room_for(self, position: int) -> None:
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._bytes < self._limit_bytes or position == self._next
            )

    def add(self, reply: NodeReply) -> None:
        self._bytes += len(reply.body)

    async def remove_first(self, reply: NodeReply) -> None:
        async with self._changed:
            self._next += 1
            self._bytes -= len(reply.body)
            self._changed.notify_all()


class Fanout:
    """Asks many nodes; connections stay open between questions unless only one will be asked."""

    def __init__(
        self,
        policy: FanoutPolicy,
        clock_ns: Callable[[], int] = time.time_ns,
        *,
        keep_open: bool = True,
    ) -> None:
        self.policy = policy
        self._client = NodeClient(policy, keep_open=keep_open)
        self._offsets: dict[str, ClockOffset] = {}
        self._measured_ns: dict[str, int] = {}
        self._connections = asyncio.Semaphore(AT_ONCE)
        self._names: dict[str, str] = {}  # by address
        self._addresses: dict[str, str] = {}  # by name, of the first node with that name
        self._unread: list[NodeReply] = []
        self._clock_ns = clock_ns

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def ask(
        self, nodes: Sequence[str], question: Question, *, measure_skew: bool = True
    ) -> AsyncIterator[NodeReply]:
        """Ask all nodes at once; yield replies in the order of `nodes`, each as soon as possible.

        A node's clock offset is measured after its answer, on the same connection: a second
        handshake would cost more than the three short requests, and the answer does not wait.
        """
        measurements: list[asyncio.Task[None]] = []
        backlog = _Backlog(self.policy.backlog_bytes)

        async def one(position: int, node: str) -> NodeReply:
            last_ns = self._measured_ns.get(node, 0)
            measures = measure_skew and self._clock_ns() > last_ns + FRESH_NS
            await self._connections.acquire()
            is_measuring = False
            try:
                await backlog.room_for(position)
                reply = await self._client.ask(node, question, is_last=not measures)
                backlog.add(reply)
                is_measuring = measures and reply.failure is None
            finally:
                if not is_measuring:
                    self._connections.release()
            if is_measuring:  # the connection counts until the measurement is done
                measurements.append(asyncio.create_task(self._measure(node)))
                measurements[-1].add_done_callback(lambda _: self._connections.release())
            return reply

        asked = deque(
            asyncio.create_task(one(position, node)) for position, node in enumerate(nodes)
        )
        try:
            while asked:
                reply = await asked[0]
                asked.popleft()  # drops the task and its reply: thousands would fill the memory
                await backlog.remove_first(reply)
                yield self._named(reply)
                del reply
            await asyncio.gather(*measurements)
        finally:
            self._unread = [task.result() for task in asked if task.done() and not task.cancelled()]
            running: list[asyncio.Task[Any]] = [*asked, *measurements]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def unread(self) -> list[NodeReply]:
        """Return the replies that had arrived out of turn when `ask` was left, in node order."""
        return [self._named(reply) for reply in self._unread]

    def offsets(self, nodes: Sequence[str]) -> dict[str, ClockOffset]:
        """Return the clock offsets measured so far, by node name, in the order of `nodes`."""
        measured = [node for node in nodes if node in self._offsets and node in self._names]
        return {self._names[node]: self._offsets[node] for node in measured}

    def _named(self, reply: NodeReply) -> NodeReply:
        """Append the address to the name of a node where an earlier node has the same name."""
        is_first = self._addresses.setdefault(reply.name, reply.address) == reply.address
        self._names[reply.address] = reply.name if is_first else f"{reply.name} ({reply.address})"
        return replace(reply, name=self._names[reply.address])

    async def _measure(self, node: str) -> None:
        """Measure a node's clock offset; a node that does not answer has none, without an error."""
        samples = []
        for number in range(SKEW_SAMPLES):
            sent = self._clock_ns()
            try:
                reply = await self._client.request(
                    node, Question(NODE_TIME), is_last=number == SKEW_SAMPLES - 1
                )
                received = self._clock_ns()
                samples.append(TimeSample(sent, received, decode_time(reply.body).timestamp_ns))
            except (aiohttp.ClientError, OSError, TimeoutError, ssl.SSLError, *NOT_DECODABLE):
                return
        self._offsets[node] = estimate_offset(samples)
        self._measured_ns[node] = received
