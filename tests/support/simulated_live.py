"""Simulated jobs through agent and Fleet, second by second, by a hand-driven clock.

What `replayed_rings` does with recorded rings, this does with the records of `simulated_job`.
"""

import asyncio
from dataclasses import dataclass, replace

import numpy as np
from tests.support.replayed_rings import Said, drive
from tests.support.simulated_job import EPOCH_NS, SimulatedJob

from ingero.agent.push.collective_feed import RankBatch
from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.collectives.columns import Collectives, Recorder
from ingero.core.verdict.policy import VerdictPolicy
from ingero.fleet.verdicts import VerdictService

EPOCH_S = EPOCH_NS // 10**9


class SimulatedFeed:
    """The ranks of one node as a feed of `LiveCollectives`: records appear when they end."""

    def __init__(self, node: str, columns: Collectives, ranks: range, world_size: int) -> None:
        self.lost = 0
        self.problem = ""
        self.now_s = 0.0
        self._world_size = world_size
        self._rows: dict[int, Collectives] = {}
        self._due_s: dict[int, np.ndarray] = {}
        self._next = dict.fromkeys(ranks, 0)
        for rank in ranks:
            mine = columns.take(columns.who == rank)
            mine = mine.take(np.argsort(mine.end_ns, kind="stable"))
            who = Recorder("job", node, rank)
            self._rows[rank] = replace(mine, who=np.zeros_like(mine.who), recorders=(who,))
            self._due_s[rank] = self._rows[rank].end_ns / 1e9

    def poll(self) -> list[RankBatch]:
        batches = []
        for rank, rows in self._rows.items():
            first, self._next[rank] = (
                self._next[rank],
                int(np.searchsorted(self._due_s[rank], self.now_s, side="right")),
            )
            if self._next[rank] > first:
                part = rows.take(np.arange(first, self._next[rank]))
                batches.append(self._batch(rank, part))
        return batches

    def _batch(self, rank: int, part: Collectives) -> RankBatch:
        return RankBatch(
            key=rank,
            job="job",
            rank=rank,
            local_rank=rank,
            world_size=self._world_size,
            collectives=part,
            pick=lambda rows: to_objects(part.take(rows)),
        )

    def close(self) -> None:
        """Nothing is open."""


def to_objects(columns: Collectives) -> list[CollectiveRecord]:
    """Return rows as records."""
    columns_of = {
        name: getattr(columns, name).tolist()
        for name in (
            "who", "comm", "seq", "op", "rank", "nranks", "peer", "size_bytes", "start_ns",
            "end_ns", "gpu_duration_ns", "stream",
        )
    }  # fmt: skip
    found = []
    for row in range(len(columns)):
        value = {name: values[row] for name, values in columns_of.items()}
        who = columns.recorders[value.pop("who")]
        optional = {
            name: None if value.pop(name) < 0 else columns_of[name][row]
            for name in ("seq", "peer", "gpu_duration_ns", "stream")
        }
        found.append(
            CollectiveRecord(
                job=who.job,
                node=who.node,
                global_rank=who.global_rank,
                datatype="float32",
                reduce_op=None,
                source=CollectiveSource.PLUGIN,
                **(value | optional | {"op": columns.ops[value["op"]]}),
            )
        )
    return found


@dataclass(slots=True)
class LiveRun:
    """What was said about a simulated job; seconds are those since it began."""

    said: list[Said]
    service: VerdictService

    def named(self) -> list[tuple[float, Verdict]]:
        """Return who was called a straggler, with the second."""
        return [
            (each.at_s - EPOCH_S, each.verdict)
            for each in self.said
            if each.verdict.state is VerdictState.STRAGGLER and each.verdict.rank is not None
        ]


def watch(job: SimulatedJob, *, nodes: int = 1, policy: VerdictPolicy | None = None) -> LiveRun:
    """Run a simulated job through agents of `nodes` nodes and Fleet."""
    ranks = len(job.columns.recorders)
    per_node = -(-ranks // nodes)
    feeds = {
        f"node-{number}": SimulatedFeed(
            f"node-{number}",
            job.columns,
            range(number * per_node, min((number + 1) * per_node, ranks)),
            ranks,
        )
        for number in range(nodes)
    }
    service = VerdictService(policy=policy)
    last_s = int(job.columns.end_ns.max()) // 10**9 + 1
    _, said, _ = asyncio.run(drive(feeds, service, (EPOCH_S, last_s), {}, is_encoded=False))
    return LiveRun(said, service)
