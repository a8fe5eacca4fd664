"""The load of a soak: events for Echo that are counted, and own times of ranks for Fleet."""

import asyncio
import math
import random
import time
from dataclasses import dataclass, field

import aiohttp
from tests.soak.agents import CLUSTER, node_name
from tests.soak.ledger import BATCH, Ledger, body_of, digest_of, points_of
from tests.support.echo_process import TOKEN

from ingero.contract import names
from ingero.contract.measurements.own_time import OwnTime
from ingero.contract.measurements.ranks import RankReport, encode_rank
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.types import Identity

PRODUCERS = 4
BATCHES_PER_S = 2.0  # of each producer
RANKS = 32
STEP_S = 1.0
OWN_MS = 500.0
NOISE = 0.005
SLOWDOWN = 1.15
TIMEOUT = aiohttp.ClientTimeout(10)
ERRORS = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass
class Producers:
    """Send batches to Echo, each with the same bytes until it is acknowledged."""

    url: str
    ledger: Ledger = field(default_factory=Ledger)
    retries: int = 0
    refused: dict[int, int] = field(default_factory=dict)  # by status
    stopping: bool = False
    _flood: tuple[str, int] = ("", 0)  # padding, and requests that still carry it
    _first_ns: int = field(default_factory=time.time_ns)
    _next: int = 0

    @property
    def events(self) -> int:
        """The number of acknowledged events."""
        return BATCH * len(self.ledger.acknowledged)

    @property
    def refusals(self) -> int:
        """The number of requests that Echo answered with an error."""
        return sum(self.refused.values())

    async def flood(self, padding: str, size_bytes: int) -> None:
        """Send padded requests without a pause, until Echo refuses one or so much was sent."""
        before = self.refusals
        self._flood = (padding, size_bytes // (BATCH * len(padding)))
        while self._flood[1] > 0 and self.refusals == before and not self.stopping:
            await asyncio.sleep(0.1)
        self._flood = ("", 0)

    async def run(self) -> None:
        """Send until `stopping`."""
        headers = {"Content-Type": names.PROTOBUF_TYPE, "Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(headers=headers, timeout=TIMEOUT) as session:
            await asyncio.gather(*(self._produce(session) for _ in range(PRODUCERS)))

    async def _produce(self, session: aiohttp.ClientSession) -> None:
        while not self.stopping:
            batch, self._next = self._next, self._next + 1
            points = points_of(batch, self._first_ns)
            padding, left = self._flood
            self._flood = (padding, left - 1)
            body = body_of(batch, points, padding if left > 0 else "")
            while not await self._send(session, body):
                if self.stopping:
                    return
                self.retries += 1
                await asyncio.sleep(0.5)
            self.ledger.acknowledged[batch] = digest_of(points)
            await asyncio.sleep(0.0 if left > 0 else 1 / BATCHES_PER_S)

    async def _send(self, session: aiohttp.ClientSession, body: bytes) -> bool:
        try:
            async with session.post(f"{self.url}/v1/metrics", data=body) as reply:
                await reply.read()
                if reply.status != 200:
                    self.refused[reply.status] = self.refused.get(reply.status, 0) + 1
                return reply.status == 200
        except ERRORS:
            return False


@dataclass
class Ranks:
    """Push the own time of one step per second for each rank of a job, one rank on each node."""

    url: str
    slow_node: str | None = None
    failed: int = 0
    stopping: bool = False
    _chance: random.Random = field(default_factory=lambda: random.Random(1))

    async def run(self) -> None:
        """Push until `stopping`; steps that Fleet could not take are gone, as with real agents."""
        headers = {"Content-Type": names.PROTOBUF_TYPE}
        step = 0
        async with aiohttp.ClientSession(headers=headers, timeout=TIMEOUT) as session:
            while not self.stopping:
                next_s = time.monotonic() + STEP_S
                await asyncio.gather(*(self._push(session, rank, step) for rank in range(RANKS)))
                step += 1
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))

    async def _push(self, session: aiohttp.ClientSession, rank: int, step: int) -> None:
        node = node_name(rank)
        own_ms = OWN_MS * math.exp(self._chance.gauss(0.0, NOISE))
        own_ms *= SLOWDOWN if node == self.slow_node else 1.0
        who = Identity(node=node, cluster=CLUSTER, job="soak", rank=rank, world_size=RANKS)
        times = (OwnTime(step=step, own_ms=own_ms, end_ns=time.time_ns()),)
        body = encode_protobuf(MetricsRequest((encode_rank(RankReport(who, times, ())),)))
        url = f"{self.url}/v1/metrics?cluster_id={CLUSTER}"
        try:
            async with session.post(url, data=body) as reply:
                await reply.read()
                self.failed += reply.status != 200
        except ERRORS:
            self.failed += 1
