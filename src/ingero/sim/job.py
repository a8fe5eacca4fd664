"""A simulated training job of many ranks, as the NCCL plugin of each node would record it.

Every node computes the whole job from the same seed, so that all of them agree on every step
without talking to each other. A step has a few gradient buckets: each rank computes, then all of
them wait for the last one in an all-reduce, as in data-parallel training.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingero.agent.push.collective_feed import RankBatch
from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.core.collectives.columns import from_records
from ingero.files import replace_file

JOB: Final = "llama-pretrain"
COMM: Final = 0x64A11
BUCKETS: Final = (24 << 20, 96 << 20, 96 << 20, 48 << 20)  # bytes of each all-reduce
COMPUTE_S: Final = 0.100  # of one rank before each of them
TRANSFER_S: Final = 0.012
ENQUEUE_S: Final = 0.0005  # a host enqueues ahead of its GPU
NOISE: Final = 0.01

Floats = NDArray[np.float64]


class SlowSpell(msgspec.Struct, frozen=True):
    """The GPU of a rank needs `excess` more time between two Unix times."""

    rank: int
    excess: float
    from_s: float
    until_s: float = math.inf


def write_job_control(path: Path, spells: list[SlowSpell]) -> None:
    """Say who is slow and when; the file is replaced atomically.

    Changes lie a little ahead, so that all nodes have read the file before they apply.
    """
    replace_file(path, msgspec.msgpack.encode(spells))


def read_job(path: Path) -> list[SlowSpell]:
    """Return who is slow and when; nobody while there is no file."""
    if not path.exists():
        return []
    return msgspec.msgpack.decode(path.read_bytes(), type=list[SlowSpell])


@dataclass(frozen=True, slots=True)
class JobStep:
    """One step, in seconds: when each bucket was ready on each rank, and its all-reduce over."""

    enqueued_s: list[float]  # by bucket
    arrived_s: list[Floats]  # by bucket, of all ranks
    ended_s: list[float]  # by bucket


class SimulatedJob:
    """The steps of a job; `control` returns who is slow."""

    def __init__(
        self, ranks: int, began_s: float, seed: int, control: Callable[[], list[SlowSpell]]
    ) -> None:
        self._ranks, self._seed, self._control = ranks, seed, control
        self._ended_s = began_s
        self._number = 0

    def steps_until(self, now_s: float) -> list[tuple[int, JobStep]]:
        """Return the steps that ended since the last call, with their numbers."""
        spells = self._control()
        steps = []
        while (step := self._step(spells)).ended_s[-1] <= now_s:
            steps.append((self._number, step))
            self._number, self._ended_s = self._number + 1, step.ended_s[-1]
        return steps

    def _step(self, spells: list[SlowSpell]) -> JobStep:
        """Return the next step. Its noise follows from its number, on every node."""
        chance = np.random.default_rng((self._seed, self._number))
        compute = COMPUTE_S * (1 + NOISE * chance.standard_normal((len(BUCKETS), self._ranks)))
        for spell in spells:
            if 0 <= spell.rank < self._ranks and spell.from_s <= self._ended_s < spell.until_s:
                compute[:, spell.rank] *= 1 + spell.excess
        begin_s, step = self._ended_s, JobStep([], [], [])
        for of_ranks in compute:
            step.enqueued_s.append(begin_s + ENQUEUE_S)
            step.arrived_s.append(begin_s + of_ranks)
            begin_s = float(step.arrived_s[-1].max()) + TRANSFER_S
            step.ended_s.append(begin_s)
        return step


class JobFeed:
    """The ranks of one node, as `LiveCollectives` reads them."""

    def __init__(
        self,
        job: SimulatedJob,
        node: str,
        ranks: Sequence[int],
        world: int,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.lost = 0
        self.problem = ""
        self._now_s = now_s
        self._job, self._node, self._ranks, self._world = job, node, ranks, world

    def poll(self) -> list[RankBatch]:
        """Return the collectives of the steps that ended since the last poll."""
        steps = self._job.steps_until(self._now_s())
        if not steps:
            return []
        return [self._batch(local, rank, steps) for local, rank in enumerate(self._ranks)]

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _batch(self, local: int, rank: int, steps: Sequence[tuple[int, JobStep]]) -> RankBatch:
        records = [
            self._record(rank, number * len(BUCKETS) + bucket, step, bucket)
            for number, step in steps
            for bucket in range(len(BUCKETS))
        ]
        return RankBatch(
            key=rank,
            job=JOB,
            rank=rank,
            local_rank=local,
            world_size=self._world,
            collectives=from_records(records),
            pick=lambda rows: [records[row] for row in rows.tolist()],
        )

    def _record(self, rank: int, seq: int, step: JobStep, bucket: int) -> CollectiveRecord:
        end_ns = int(step.ended_s[bucket] * 1e9)
        return CollectiveRecord(
            job=JOB,
            node=self._node,
            global_rank=rank,
            comm=COMM,
            seq=seq,
            op="AllReduce",
            rank=rank,
            nranks=self._world,
            peer=None,
            datatype="bfloat16",
            reduce_op="sum",
            size_bytes=BUCKETS[bucket],
            start_ns=int(step.enqueued_s[bucket] * 1e9),
            end_ns=end_ns,
            gpu_duration_ns=end_ns - int(step.arrived_s[bucket][rank] * 1e9),
            stream=1,
            source=CollectiveSource.PLUGIN,
        )
