"""Scenario 12 through Fleet itself: replicas on one log in this process, and pushes in turns.

Own times are pushed to the replicas as agents do. Each replica puts what it received on the log and
follows what all received; what the first one says counts.
"""

import asyncio

import numpy as np
from tests.support.replicas import Replicas

from bench.detection.detectors import Outcome
from bench.detection.world import World
from ingero.contract.measurements.own_time import OwnTime
from ingero.contract.measurements.ranks import RankReport, encode_rank
from ingero.contract.otlp.values import MetricsRequest, ResourceMetrics
from ingero.contract.types import Identity
from ingero.contract.verdict import Verdict, VerdictState


def run_on_log(world: World) -> Outcome:
    """Push a world to its replicas second by second and return the outcome."""
    return asyncio.run(_Pushes(world).run())


class _Pushes:
    """Pushes of one world: one request per fleet and replica, with a resource per rank."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.own, self.idle = np.exp(world.log_own) * 1e3, world.idle() * 1e3
        self.identities = [self._identity(column) for column in range(world.log_own.shape[1])]
        self.outcome = Outcome()
        self.open: set[tuple[str, VerdictState]] = set()

    async def run(self) -> Outcome:
        replicas = Replicas(*(f"replica{each}" for each in range(self.world.replicas)))
        await replicas.until_ready()
        for second in range(len(self.own)):
            self._push(replicas, second)
            await replicas.seconds(1)
            shared = replicas.replica("replica0").shared
            self._note([v for _, v in shared.judgement.verdicts.current()], second)
        assert len(replicas.digests()) == 1, "all replicas have the same state"
        for verdict in (v for _, v in shared.judgement.verdicts.current()):
            if verdict.node and verdict.state is VerdictState.STRAGGLER:
                self.outcome.verdicts[self._column(verdict)] = verdict
        return self.outcome

    def _push(self, replicas: Replicas, second: int) -> None:
        to, own = self.world.route(second), self.own[second]
        for replica in range(self.world.replicas):
            for fleet in range(self.world.fleets):
                who = np.flatnonzero((to == replica) & (self.world.fleet == fleet) & ~np.isnan(own))
                request = MetricsRequest(tuple(self._report(c, second) for c in who.tolist()))
                if len(who):
                    replicas.push(f"replica{replica}", request, f"fleet{fleet}")

    def _identity(self, column: int) -> Identity:
        fleet, rank = divmod(column, self.world.size)
        return Identity(node=f"node{rank}", cluster=f"fleet{fleet}", job=f"job{fleet}", rank=rank)

    def _report(self, column: int, second: int) -> ResourceMetrics:
        own_ms, idle_ms = float(self.own[second, column]), float(self.idle[second, column])
        time = OwnTime(step=second, own_ms=own_ms, idle_ms=idle_ms)
        return encode_rank(RankReport(self.identities[column], (time,), ()))

    def _column(self, verdict: Verdict) -> int:
        fleet = int((verdict.job or "").removeprefix("job"))
        return fleet * self.world.size + (verdict.rank or 0)

    def _note(self, current: list[Verdict], second: int) -> None:
        """Note what is new; a verdict that was there a second ago is not."""
        before, self.open = self.open, {(each.episode, each.state) for each in current}
        for verdict in current:
            if (verdict.episode, verdict.state) not in before:
                self.outcome.note(verdict, second, self._column)
