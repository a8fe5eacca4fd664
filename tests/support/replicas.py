"""A Fleet of several replicas in one process, on one log and a clock driven by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
from tests.support.memory_log import MemoryLog
from tests.support.pushes import health, loopback_config
from tests.support.verdict_pushes import own_time_push

from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.verdict import Verdict
from ingero.fleet.app import FleetService
from ingero.fleet.replicas.replica import FLUSH_S, Replica

START_S = 1_700_000_000.0


class Replicas:
    """The replicas by name; one that is removed from `services` is dead."""

    def __init__(self, *names: str, **changes: Any) -> None:
        self.now_s = START_S
        self.log = MemoryLog(lambda: self.now_s)
        self.changes = changes
        self.services: dict[str, FleetService] = {}
        for name in names:
            self.add(name)

    def add(self, name: str, **changes: Any) -> FleetService:
        """Start a replica, which has yet to catch up."""
        settings = {"cluster_log": {"replica": name}, **self.changes, **changes}
        config = loopback_config(**settings)
        service = self.services[name] = FleetService(config, cluster_log=self.log)
        replica = self.replica(name)
        replica.clock = lambda: self.now_s
        replica._ticked_at_s = self.now_s
        return service

    def replica(self, name: str) -> Replica:
        """Return the replica that a service is."""
        found = self.services[name].replica
        assert found is not None
        return found

    def push(self, name: str, request: MetricsRequest, cluster: str = "train") -> None:
        """Push to one of the replicas, as its receiver does."""
        intake = self.services[name].intake
        body = encode_protobuf(request)
        wall_ns = int(self.now_s * 1e9)
        intake.push(body, Encoding.PROTOBUF, cluster, self.now_s, wall_ns)

    def score(self, name: str, node: str, score: float) -> None:
        """Push a health score."""
        self.push(name, health(node, score, sent_ns=int(self.now_s * 1e9)))

    async def flush(self) -> None:
        """Let a quarter of a second pass: every replica appends, then all read."""
        self.now_s += FLUSH_S
        for service in self.services.values():
            assert service.replica is not None
            await service.replica.flush()
            service.replica._send_owed()
        await self.read()

    async def read(self) -> None:
        """Let every replica read to the end."""
        for service in list(self.services.values()):
            assert service.replica is not None
            while True:
                before = service.replica.counters.applied
                try:
                    await service.replica.read(0.0)
                except Exception:
                    if not self.log.is_away:
                        raise
                    break
                if service.replica.counters.applied == before and not service.replica._must_join:
                    break

    async def seconds(self, count: int) -> None:
        """Let time pass."""
        for _ in range(count):
            for _ in range(4):
                await self.flush()
            for service in self.services.values():
                service.tick(self.now_s)

    async def until_ready(self) -> None:
        """Let time pass until every replica takes pushes."""
        for _ in range(20):
            await self.seconds(1)
            if all(self.replica(name).is_ready for name in self.services):
                return
        raise AssertionError({name: self.replica(name).why_not for name in self.services})

    def digests(self) -> set[bytes]:
        """Return the digests of all replicas: one where they are equal."""
        return {self.replica(name).shared.digest() for name in self.services}


NODES = 8
SLOW_FROM = 50  # seconds after the start of the world


def push_scores(world: Replicas, second: int = 0) -> None:
    """Every node pushes, each time to another replica."""
    names = sorted(world.services)
    for node in range(NODES):
        world.score(names[(node + second) % len(names)], f"n{node}", 0.9 + node / 1000)


async def run_job(world: Replicas, seconds: int, slow: bool = True) -> list[tuple[str, Verdict]]:
    """Push scores and own times in turns to all replicas; rank 5 becomes slow after a while."""
    for _ in range(seconds):
        second = round(world.now_s - START_S)
        rng = np.random.default_rng(second)
        names = sorted(world.services)
        push_scores(world, second)
        for rank in range(NODES):
            factor = 1.2 if slow and rank == 5 and second >= SLOW_FROM else 1.0
            own = 500 * factor * float(np.exp(rng.normal(0, 0.005)))
            request = own_time_push(f"n{rank}", rank, second, own)
            world.push(names[(rank + second) % len(names)], request, "train")
        await world.seconds(1)
    return world.replica(sorted(world.services)[0]).shared.judgement.verdicts.current()


def spoil(world: Replicas, name: str) -> None:
    """Change the smoothed threshold of one replica, which later pushes do not repair."""
    cluster = world.services[name].processor.clusters["train"]
    cluster.threshold = replace(cluster.threshold, ema=0.2)
