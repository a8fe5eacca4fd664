"""The verdict engine on a world: pushes second by second, received by one Fleet or two."""

import numpy as np

from bench.detection.detectors import Outcome
from bench.detection.replicated import run_on_log
from bench.detection.world import World
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.members import Member
from ingero.core.verdict.own_times import SampleBatch, make_batch

START_S = 1_000_000.0


def run_verdict(world: World, usd: float = 1.0, seed: int = 0) -> Outcome:
    """Feed the engine second by second and return its outcome."""
    if world.is_on_log:
        return run_on_log(world)
    fleets = [_Fleet(world, usd, seed + replica) for replica in range(world.replicas)]
    outcome, rng = Outcome(), np.random.default_rng(seed)
    phase = rng.integers(world.push_s, size=world.log_own.shape[1])
    for second in range(len(world.log_own)):
        pushing = (second + phase) % world.push_s == world.push_s - 1
        to = world.route(second)
        for replica, fleet in enumerate(fleets):
            if world.failover_s is not None and replica == 0 and second >= world.failover_s:
                continue  # it is dead
            fleet.second(second, np.flatnonzero(pushing & (to == replica)), outcome)
    for fleet in fleets:
        fleet.finish(outcome)
    return outcome


class _Fleet:
    """One Fleet: its engine, and which column of the world each verdict is about."""

    def __init__(self, world: World, usd: float, seed: int) -> None:
        self.world, self.usd, self.rng = world, usd, np.random.default_rng(seed)
        self.own, self.idle, self.span = np.exp(world.log_own), world.idle(), world.span()
        self.late: list[tuple[int, SampleBatch]] = []
        self.column_of: dict[tuple[str, str, str, int], int] = {}
        self._start(0)

    def second(self, second: int, who: np.ndarray, outcome: Outcome) -> None:
        """Take what these columns push, and note the verdicts."""
        now_s = START_S + second
        if second == self.world.restart_s:
            self._start(second)
        for column, place in self.world.moves.get(second, {}).items():
            self.members[column] = self._register(column, place, second)
        for _, batch in [entry for entry in self.late if entry[0] == second]:
            self.engine.observe(batch, now_s)
        self.late = [entry for entry in self.late if entry[0] > second]
        batch = self._batch(who, second)
        if batch is not None:
            self._deliver(batch, second)
        for verdict in self.engine.tick(now_s):
            outcome.note(verdict, second, self._column)

    def finish(self, outcome: Outcome) -> None:
        """Take the latest figures of open episodes."""
        for verdict in self.engine.current():
            if verdict.node and verdict.state is VerdictState.STRAGGLER:
                outcome.verdicts[self._column(verdict)] = verdict

    def _start(self, second: int) -> None:
        self.engine = VerdictEngine()
        size, columns = self.world.size, range(self.world.log_own.shape[1])
        self.members = np.array(
            [self._register(c, (f"node{c % size}", c % size), second) for c in columns]
        )

    def _register(self, column: int, place: tuple[str, int], second: int) -> int:
        world, fleet = self.world, column // self.world.size
        member = Member(
            cluster=f"fleet{fleet}",
            node=place[0],
            rank=place[1],
            job=f"job{fleet}",
            role=world.roles[column] if world.roles else "",
            gpu_model=world.models[column] if world.models else "",
            usd_per_gpu_hour=self.usd,
        )
        self.column_of[member.key] = column
        index = self.engine.register(member, START_S + second)
        assert index is not None
        return index

    def _batch(self, who: np.ndarray, second: int) -> SampleBatch | None:
        steps = np.arange(max(0, second - self.world.push_s + 1), second + 1)
        values = self.own[steps][:, who]
        row, column = np.nonzero(~np.isnan(values))
        if not len(row):
            return None
        idle, span = self.idle[steps][:, who], self.span[steps][:, who]
        return make_batch(
            self.members[who[column]],
            values[row, column],
            steps[row],
            idle_s=idle[row, column],
            span_s=span[row, column],
        )

    def _deliver(self, batch: SampleBatch, second: int) -> None:
        """Drop, delay and repeat some batches, and add batches under another rank's name."""
        world, now_s = self.world, START_S + second
        if world.loss or world.disorder:
            fate = self.rng.random(len(batch))
            lost, tardy = (
                fate < world.loss,
                (fate >= world.loss) & (fate < world.loss + world.disorder),
            )
            twice = fate > 1 - world.disorder
            for mask, delay in ((tardy, 2), (twice, 1)):
                if mask.any():
                    self.late.append((second + delay, _rows(batch, mask)))
            batch = _rows(batch, ~(lost | tardy))
        self.engine.observe(batch, now_s)
        if world.spoofed:
            fake = _rows(batch, np.isin(batch.member, self.members[world.spoofed]))
            typical = np.full(len(fake), np.median(batch.own_s))
            self.engine.observe(make_batch(fake.member, typical, fake.step), now_s)

    def _column(self, verdict: Verdict) -> int:
        job = verdict.job or ""
        rank = -1 if verdict.rank is None else verdict.rank
        return self.column_of[(job.replace("job", "fleet"), job, verdict.node, rank)]


def _rows(batch: SampleBatch, mask: np.ndarray) -> SampleBatch:
    return make_batch(
        batch.member[mask],
        batch.own_s[mask],
        batch.step[mask],
        idle_s=batch.idle_s[mask],
        span_s=batch.span_s[mask],
    )
