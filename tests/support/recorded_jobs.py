"""Synthetic jobs with a known culprit: a small event simulation that writes real records.

Times are in seconds, and every rank has its own clock offset. GPU work runs when the GPU is free
and the host has enqueued it. The members of a collective leave it together: the transfer time after
the last one entered.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ingero.contract.collective import CollectiveRecord, CollectiveSource


@dataclass(kw_only=True)
class Job:
    tp: int = 2
    pp: int = 1
    dp: int = 4
    steps: int = 60
    micro: int = 2
    compute_s: float = 0.005
    noise: float = 0.005
    chronic: float = 0.003  # healthy ranks differ by this for ever
    slow_gpu: dict[int, float] = field(default_factory=dict)  # rank: share of extra GPU work
    slow_host: dict[int, float] = field(default_factory=dict)  # rank: seconds asleep each step
    every: int = 1  # host sleeps in every n-th step only
    stage_factor: dict[int, float] = field(default_factory=dict)
    imbalance: float = 0.0  # spread of the work per rank and step, drawn anew
    # (kind, index): factor on its transfers
    slow_comm: dict[tuple[str, int], float] = field(default_factory=dict)
    # rank: factor on every transfer it takes part in
    slow_link: dict[int, float] = field(default_factory=dict)
    skew_s: float = 0.0
    seed: int = 1
    unnumbered: bool = False  # sends and receives carry no sequence number
    run_ahead: bool = False  # the host never waits for the GPU
    node_of: Callable[[int], str | None] = lambda rank: None

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp

    def where(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica and tensor index; tensor ranks are adjacent, stages furthest apart."""
        return rank // (self.tp * self.dp), rank // self.tp % self.dp, rank % self.tp


class _Run:
    def __init__(self, job: Job) -> None:
        self.job, self.rng = job, np.random.default_rng(job.seed)
        world = job.world
        self.gpu, self.host = np.zeros(world), np.zeros(world)
        self.offset = self.rng.uniform(-job.skew_s, job.skew_s, world) + 1_700_000_000
        self.level = np.exp(self.rng.normal(0, job.chronic, world))
        self.seq: dict[tuple[str, int], int] = {}
        self.records: list[CollectiveRecord] = []
        self.uneven = np.ones(world)

    def groups(self, kind: str) -> list[list[int]]:
        at = [self.job.where(r) for r in range(self.job.world)]
        key = {"tp": lambda a: a[:2], "dp": lambda a: (a[0], a[2]), "pp": lambda a: a[1:]}[kind]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(at):
            found.setdefault(key(place), []).append(rank)
        return list(found.values())

    def compute(self, rank: int) -> None:
        job = self.job
        stage = job.where(rank)[0]
        work = job.compute_s * (1 + job.slow_gpu.get(rank, 0.0)) * job.stage_factor.get(stage, 1.0)
        work *= self.level[rank] * self.uneven[rank] * np.exp(self.rng.normal(0, job.noise))
        self.host[rank] += 40e-6
        self.gpu[rank] = max(self.gpu[rank], self.host[rank]) + work

    def meet(
        self, kind: str, index: int, members: list[int], op: str, size: int, transfer_s: float
    ) -> None:
        """One collective (or one send with its receive) of a communicator."""
        job = self.job
        factor = job.slow_comm.get((kind, index), 1.0) * max(
            job.slow_link.get(m, 1.0) for m in members
        )
        enqueued = {}
        for m in members:
            self.host[m] += 20e-6
            enqueued[m] = self.host[m]
        entry = {m: max(self.gpu[m], enqueued[m]) for m in members}
        end = max(entry.values()) + transfer_s * factor * np.exp(self.rng.normal(0, 0.01))
        whole = self.groups(kind)[index]
        seq = self.seq[kind, index] = self.seq.get((kind, index), -1) + 1
        number = None if op == "p2p" and job.unnumbered else seq
        for m in members:
            self.gpu[m] = end
            is_send = op == "p2p" and m == members[0]
            name = ("Send" if is_send else "Recv") if op == "p2p" else op
            other = members[1] if is_send else members[0]
            start, stop, began = (
                round((t + self.offset[m]) * 1e9) for t in (enqueued[m], end, entry[m])
            )
            self.records.append(
                CollectiveRecord(
                    job=None,
                    node=job.node_of(m),
                    global_rank=m,
                    comm=hash_of(kind, index),
                    seq=number,
                    op=name,
                    rank=whole.index(m),
                    nranks=len(whole),
                    peer=whole.index(other) if op == "p2p" else None,
                    datatype="bfloat16",
                    reduce_op=None,
                    size_bytes=size,
                    start_ns=start,
                    end_ns=stop,
                    gpu_duration_ns=stop - began,
                    stream=None,
                    source=CollectiveSource.PLUGIN,
                )
            )

    def step(self, number: int) -> None:
        job = self.job
        self.uneven = (
            np.exp(self.rng.normal(0, job.imbalance, job.world)) if job.imbalance else self.uneven
        )
        for rank, asleep in job.slow_host.items():
            if number % job.every == 0:
                self.host[rank] += asleep
        stages = [[r for r in range(job.world) if job.where(r)[0] == s] for s in range(job.pp)]
        for _ in range(job.micro):
            for stage in range(job.pp):
                if stage:
                    for index, line in enumerate(self.groups("pp")):
                        self.meet(
                            "pp", index, [line[stage - 1], line[stage]], "p2p", 1 << 20, 80e-6
                        )
                for rank in stages[stage]:
                    self.compute(rank)
                for index, group in enumerate(self.groups("tp")):
                    if len(group) > 1 and job.where(group[0])[0] == stage:
                        self.meet("tp", index, group, "AllReduce", 1 << 20, 100e-6)
        for index, group in enumerate(self.groups("dp")):
            if len(group) > 1:
                self.meet("dp", index, group, "AllReduce", 4 << 20, 300e-6)
        if not job.run_ahead:
            self.host = np.maximum(self.host, self.gpu + 30e-6)


def hash_of(kind: str, index: int) -> int:
    """A communicator hash that tells kinds and indices apart."""
    return (0xA5A5 << 48) | ({"tp": 1, "dp": 2, "pp": 3}[kind] << 32) | index


def record(job: Job) -> list[CollectiveRecord]:
    """All records of the job, rank by rank."""
    run = _Run(job)
    for number in range(job.steps):
        run.step(number)
    return sorted(run.records, key=lambda r: (r.global_rank, r.end_ns))
