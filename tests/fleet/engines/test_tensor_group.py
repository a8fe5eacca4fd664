"""A slow rank inside the tensor group of an inference engine, by the collectives of its workers."""

import asyncio
from typing import Any

from tests.support.job_shapes import MB, WORLD, Call, Host, Item, Kernel, Shape, Sync
from tests.support.replayed_rings import drive
from tests.support.simulated_job import Fault, simulate
from tests.support.simulated_live import EPOCH_S, SimulatedFeed

from ingero.agent.push.collective_feed import RankBatch
from ingero.agent.push.engines import EngineFeed
from ingero.contract.verdict import VerdictState
from ingero.fleet.verdicts import VerdictService

RANKS, LAYERS = 4, 8


def decode_steps() -> Shape:
    """Decode steps of a tensor-parallel engine: two all-reduces per layer, then a token is read."""
    members = tuple(range(RANKS))

    def program(rank: int, step: int) -> list[Item]:
        layer: list[Item] = [
            Kernel(0.001, 0.0002),
            Call("AllReduce", 2 * MB, WORLD, members, feeds_compute=True),
        ]
        return [Host(0.001), *layer * (2 * LAYERS), Sync()]

    return Shape(RANKS, program)


class Workers(SimulatedFeed):
    """Rings of processes that say no job, as those of engines do."""

    def _batch(self, rank: int, part: Any) -> RankBatch:
        batch = super()._batch(rank, part)
        return RankBatch(
            key=rank, pid=100 + rank, job=None, rank=rank, local_rank=rank,
            world_size=batch.world_size, collectives=part, pick=batch.pick,
        )  # fmt: skip


class Driven(EngineFeed):
    """The feed of the agent, whose clock the test drives."""

    def __init__(self, workers: Workers) -> None:
        super().__init__(workers, lambda pid: "llama:8000" if pid >= 100 else None)
        self._workers = workers

    @property
    def now_s(self) -> float:
        return self._workers.now_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self._workers.now_s = now_s


def test_the_rank_for_which_its_tensor_group_waits_is_named_with_the_engine() -> None:
    pace_s = simulate(decode_steps(), 60).pace_s(20)
    first, steps = int(50 / pace_s), int(65 / pace_s)
    job = simulate(decode_steps(), steps, [Fault(2, gpu=0.25, first=first)])
    service = VerdictService()
    feeds = {"gpu-1": Driven(Workers("gpu-1", job.columns, range(RANKS), RANKS))}
    last_s = int(job.columns.end_ns.max()) // 10**9 + 1
    _, said, _ = asyncio.run(drive(feeds, service, (EPOCH_S, last_s), {}, is_encoded=False))
    named = {
        (each.verdict.node, each.verdict.rank, each.verdict.job)
        for each in said
        if each.verdict.state is VerdictState.STRAGGLER
    }
    assert named == {("gpu-1", 2, "llama:8000")}
