"""Scenarios 6 and 14 on recordings: GPU-timed records, and the dumps of a stopped job."""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

import numpy as np
from tests.support.recorded_jobs import Job, record

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import Answer
from ingero.core.blame.hang import blame_hang
from ingero.core.blame.records import blame_records
from ingero.core.blame.wait_graph import Pending, ProcessGroup, RankProgress
from ingero.core.collectives.columns import from_records

Truth = tuple[set[int], bool]  # ranks to blame, and whether "not sure" is right
Ask = Callable[[int, np.random.Generator], tuple[Answer | None, Truth, CauseClass]]
MAX_RECORDED = 64  # ranks: larger jobs have more records than a benchmark should simulate
JOBS = {3: 12, 8: 12, 64: 3}
NONE: Set[int] = frozenset()


@dataclass
class Asked:
    """How many jobs got the right answer: ranks, class, and doubt only where it is right."""

    jobs: int = 0
    right: int = 0
    wrong: int = 0  # innocent ranks that were blamed
    not_sure: int = 0

    def as_json(self) -> dict[str, int]:
        return {
            "jobs": self.jobs,
            "right": self.right,
            "wrong": self.wrong,
            "not_sure": self.not_sure,
        }


def recorded_cases(size: int) -> Iterator[tuple[int, str, Ask]]:
    """Yield (scenario, variant, question) for a job size."""
    if 8 <= size <= MAX_RECORDED:  # a single communicator cannot be compared
        yield 6, "records: one NIC at half speed", _slow_nic
        yield 6, "records: one slow pair", _slow_pair
        yield 6, "records: links as ever, one rank +10%", _slow_rank
    yield 14, "dumps: a host stops (lock, GIL)", _host_stops
    yield 14, "dumps: a GPU fails", _gpu_fails
    yield 14, "dumps: a mismatched call", _mismatch
    yield 14, "dumps: one rank is gone", _one_gone
    if size >= 8:
        yield 14, "dumps: two ranks are gone", _two_gone
    yield 14, "dumps: everybody waits in the same transfer", _dead_link


def ask(question: Ask, size: int, seed: int) -> Asked:
    """Ask a question about several jobs of a size."""
    asked, rng = Asked(), np.random.default_rng(seed)
    for _ in range(JOBS.get(size, 2)):
        answer, (ranks, unsure), cause = question(size, rng)
        named = set() if answer is None else {c.rank for c in answer.culprits}
        doubts = answer is not None and answer.not_sure is not None
        asked.jobs += 1
        asked.right += (
            named == ranks and doubts == unsure and answer is not None and answer.cause is cause
        )
        asked.wrong += len(named - ranks)
        asked.not_sure += doubts
    return asked


def _job(size: int, rng: np.random.Generator, **fault: object) -> Answer:
    job = Job(
        dp=size // 2,
        steps=40,
        compute_s=0.002,
        skew_s=5.0,
        seed=int(rng.integers(1 << 31)),
        **fault,
    )  # type: ignore[arg-type]  # fields of Job
    return blame_records(from_records(record(job)), True, "nccl-plugin", job.world)


def _slow_nic(size: int, rng: np.random.Generator) -> tuple[Answer, Truth, CauseClass]:
    rank = int(rng.integers(size))
    return _job(size, rng, slow_link={rank: 2.0}), ({rank}, False), CauseClass.NETWORK


def _slow_pair(size: int, rng: np.random.Generator) -> tuple[Answer, Truth, CauseClass]:
    pair = int(rng.integers(size // 2))
    return (
        _job(size, rng, slow_comm={("tp", pair): 6.0}),
        ({2 * pair, 2 * pair + 1}, False),  # the link is named by its two ends
        CauseClass.NETWORK,
    )


def _slow_rank(size: int, rng: np.random.Generator) -> tuple[Answer, Truth, CauseClass]:
    rank = int(rng.integers(size))
    return _job(size, rng, slow_gpu={rank: 0.10}), ({rank}, False), CauseClass.COMPUTE


class _Stopped:
    """A job that stopped in step `at`, of tensor pairs and data-parallel groups.

    Each group runs one collective per step.
    """

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size, self.tp, self.at = size, 2 if size % 2 == 0 else 1, int(rng.integers(5, 5000))
        pairs = range(size // self.tp) if self.tp > 1 else range(0)
        self.groups = {
            f"tp{i}": _group(f"tp{i}", range(i * self.tp, (i + 1) * self.tp)) for i in pairs
        }
        self.groups |= {f"dp{i}": _group(f"dp{i}", range(i, size, self.tp)) for i in range(self.tp)}

    def progress(self, hosts: Set[int] = NONE, gpus: Set[int] = NONE) -> dict[int, RankProgress]:
        """Return the progress of a rank.

        Stopped hosts enqueued nothing of the step; failed GPUs completed nothing of the one before.
        """
        return {rank: self._rank(rank, hosts, gpus) for rank in range(self.size)}

    def _rank(self, rank: int, hosts: Set[int], gpus: Set[int]) -> RankProgress:
        mine = [name for name, group in self.groups.items() if rank in group.members]
        before = self.at - 1
        enqueued, completed = dict.fromkeys(mine, before), dict.fromkeys(mine, before)
        pending = []
        if rank in gpus:
            completed = dict.fromkeys(mine, before - 1)
            pending += [
                Pending(name, before, "AllReduce", "", None, 90 + i) for i, name in enumerate(mine)
            ]
        if rank not in hosts:
            for place, name in enumerate(mine):
                enqueued[name] = self.at
                free = name.startswith("tp") and not set(self.groups[name].members) & (hosts | gpus)
                if free:
                    completed[name] = self.at
                else:
                    pending.append(Pending(name, self.at, "AllReduce", "", None, 100 + place))
        return RankProgress(rank, enqueued, completed, tuple(pending), 102, None)

    def ask(self, ranks: dict[int, RankProgress]) -> Answer | None:
        return blame_hang(list(ranks.values()), self.groups, self.size, timed=False)


def _group(name: str, members: range) -> ProcessGroup:
    return ProcessGroup(name, name, tuple(members))


def _host_stops(size: int, rng: np.random.Generator) -> tuple[Answer | None, Truth, CauseClass]:
    job, rank = _Stopped(size, rng), int(rng.integers(size))
    return job.ask(job.progress(hosts={rank})), ({rank}, False), CauseClass.HANG


def _gpu_fails(size: int, rng: np.random.Generator) -> tuple[Answer | None, Truth, CauseClass]:
    job, rank = _Stopped(size, rng), int(rng.integers(size))
    return job.ask(job.progress(gpus={rank})), ({rank}, False), CauseClass.HANG


def _mismatch(size: int, rng: np.random.Generator) -> tuple[Answer | None, Truth, CauseClass]:
    job, rank = _Stopped(size, rng), int(rng.integers(size))
    ranks = job.progress()
    odd = ranks[rank]
    calls = tuple(Pending(p.group, p.seq, "AllGather", "", None, p.created_ns) for p in odd.pending)
    ranks[rank] = RankProgress(rank, odd.enqueued, odd.completed, calls, odd.last_ns, None)
    return job.ask(ranks), ({rank}, False), CauseClass.HANG


def _one_gone(size: int, rng: np.random.Generator) -> tuple[Answer | None, Truth, CauseClass]:
    job, rank = _Stopped(size, rng), int(rng.integers(size))
    ranks = job.progress(hosts={rank})
    del ranks[rank]
    return job.ask(ranks), ({rank}, False), CauseClass.HANG


def _two_gone(size: int, rng: np.random.Generator) -> tuple[Answer | None, Truth, CauseClass]:
    """Return a job that waits for two ranks without dumps; which stopped first is unknown."""
    job, line = _Stopped(size, rng), np.arange(0, size, 2)
    gone = {int(r) for r in rng.choice(line, 2, replace=False)}
    ranks = job.progress(hosts=gone)
    return job.ask({r: p for r, p in ranks.items() if r not in gone}), (gone, True), CauseClass.HANG


def _dead_link(size: int, rng: np.random.Generator) -> tuple[Answer | None, Truth, CauseClass]:
    job = _Stopped(size, rng)
    return job.ask(job.progress()), (set(), True), CauseClass.NETWORK
