"""A small simulator of training jobs: hosts enqueue, GPUs compute, collectives synchronise.

Every rank has one host thread, one compute stream and streams for communication. The host enqueues
in program order and runs ahead of its GPU until it waits for it. A collective begins on a rank when
its stream is free and the compute it depends on is done; it ends for all members together, after
the last has arrived and the transfer is over. Times of kernels and launches scatter.

`simulate(shape, steps, faults)` returns the records as columns, and the job's own step times.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from tests.support.job_shapes import WORLD, Call, Host, Join, Kernel, Limit, Shape, Sync

from ingero.core.collectives.columns import UNKNOWN, Collectives, Recorder, from_columns

EPOCH_NS = 1_700_000_000_000_000_000
BANDWIDTH = 60e9  # bytes per second of a transfer
LATENCY_S = 20e-6
PAIRWISE = ("Send", "Recv")
BLOCK = 20  # steps: flags are exchanged and hosts wait for their GPUs at least as often


@dataclass(frozen=True, slots=True)
class Fault:
    """What is slow from step `first` to `last`; a rank, or the link between two of them."""

    rank: int
    gpu: float = 0.0  # more GPU time, as a share
    launches: float = 0.0  # time of the host to launch that, as a share of it
    host_s: float = 0.0  # asleep at the beginning of a step
    every: int = 1  # only in every n-th step
    link: int | None = None  # transfers between `rank` and this one take `times` as long
    times: float = 1.0
    first: int = 0
    last: int = 1 << 30

    def hits(self, step: int) -> bool:
        """Whether the fault acts in this step."""
        return self.first <= step < self.last and step % self.every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Scatter of single kernels and launches, and rare pauses of a host.

    `step_gpu` and `step_host` scatter whole steps of one rank; `wander` moves the GPUs of all ranks
    together, from step to step, and `host_wander` their hosts.
    """

    gpu: float = 0.01
    host: float = 0.10
    hiccup_s: float = 0.002
    hiccups: float = 0.01  # per step and rank
    step_gpu: float = 0.0
    step_host: float = 0.0
    wander: float = 0.0
    host_wander: float = 0.0
    eager_sends: bool = False  # a send ends without its receiver
    early_ends: bool = False  # sends and receives are recorded without the wait for their data
    # Calls that are made together are one kernel, and its end is noted when the first is done.
    one_kernel: bool = False


class _Dice:
    """Scatter as factors; numbers are drawn in blocks, since one by one is slow."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self._drawn: list[float] = []

    def factor(self, size: float) -> float:
        if not self._drawn:
            self._drawn = self.chance.standard_normal(1 << 14).tolist()
        return math.exp(size * self._drawn.pop())


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """Records of all ranks, and `step_s` as [rank, step]: what the job itself would log."""

    columns: Collectives
    step_s: np.ndarray

    def pace_s(self, first: int, last: int | None = None) -> float:
        """Return the usual step from one to another, by the median of means over BLOCK steps.

        Hosts that run ahead of their GPUs wait for them now and then, so that one step says little.
        """
        steps = self.step_s[:, first:last].mean(axis=0)
        steps = steps[len(steps) % BLOCK :] if len(steps) >= BLOCK else steps
        return float(np.median(steps.reshape(-1, min(BLOCK, len(steps))).mean(axis=1)))

    def loss(self, first: int) -> float:
        """The loss from step `first` on against the steps before, as the job itself sees it."""
        return 1.0 - self.pace_s(5, first) / self.pace_s(first + 1)

    def seconds(self, step: int) -> float:
        """When a step began."""
        return float(self.step_s[:, :step].sum(axis=1).mean())


@dataclass(slots=True)
class _Rank:
    host: float = 0.0
    gpu: float = 0.0
    streams: dict[int, float] = field(default_factory=dict)
    counts: dict[tuple[int, ...], int] = field(default_factory=dict)
    began: list[float] = field(default_factory=list)
    launched: deque[float] = field(default_factory=lambda: deque(maxlen=256))  # ends of kernels


@dataclass(slots=True)
class _Pending:
    call: Call
    enqueued: dict[int, float] = field(default_factory=dict)
    arrived: dict[int, float] = field(default_factory=dict)
    end: float = np.nan
    spent: float = 0.0


def simulate(
    shape: Shape,
    steps: int,
    faults: Sequence[Fault] = (),
    *,
    noise: Noise | None = None,
    seed: int = 1,
    flag_every: int = 20,
    clock_s: float = 0.0,
) -> SimulatedJob:
    """Run a job; `clock_s` is how far the clocks of the ranks lie apart."""
    return _Engine(shape, steps, faults, noise or Noise(), seed, flag_every).run(clock_s)


class _Engine:
    """Ranks advance until they wait for a collective; it ends when its last member arrives."""

    def __init__(
        self,
        shape: Shape,
        steps: int,
        faults: Sequence[Fault],
        noise: Noise,
        seed: int,
        flag_every: int,
    ) -> None:
        self._shape, self._steps, self._faults, self._noise = shape, steps, faults, noise
        self._flag_every = flag_every
        self._dice = _Dice(seed)
        self._pace = self._wander(steps, 0.95, noise.wander * 0.3)
        still = np.ones(steps).tolist()
        self._launch = (
            self._wander(steps, 0.999, noise.host_wander * 0.045) if noise.host_wander else still
        )
        self._ranks = [_Rank() for _ in range(shape.ranks)]
        self._open: dict[tuple[int, ...], _Pending] = {}
        self._flag = Call("AllReduce", 8, WORLD, tuple(range(shape.ranks)), feeds_compute=True)
        self._rows: list[tuple[int, int, Call, _Pending]] = []  # rank, number of the call
        self._early: set[int] = set()  # rows whose ends are noted early

    def run(self, clock_s: float) -> SimulatedJob:
        programs = [self._program(rank) for rank in range(self._shape.ranks)]
        waits: list[list[_Pending]] = [[] for _ in programs]
        alive = set(range(len(programs)))
        while alive:
            moved = False
            for rank in sorted(alive):
                while all(call.end == call.end for call in waits[rank]):  # NaN is not
                    moved = True
                    try:
                        waits[rank] = next(programs[rank])
                    except StopIteration:
                        alive.discard(rank)
                        break
            assert moved, "the ranks of this shape wait for each other for ever"
        began = np.array([rank.began for rank in self._ranks])
        return SimulatedJob(self._columns(clock_s), np.diff(began, axis=1))

    def _program(self, number: int) -> Iterator[list[_Pending]]:
        rank = self._ranks[number]
        for step in range(self._steps):
            rank.began.append(rank.host)
            slow = self._pace[step] * self._dice.factor(self._noise.step_gpu)
            launches, more = self._launch[step] * self._dice.factor(self._noise.step_host), 0.0
            for fault in self._faults:
                if fault.rank == number and fault.hits(step):
                    slow *= 1 + fault.gpu
                    more += fault.gpu * fault.launches
                    if fault.host_s:
                        self._wait(rank)
                        rank.host += fault.host_s
            if self._dice.chance.random() < self._noise.hiccups:
                rank.host += self._noise.hiccup_s * self._dice.chance.exponential()
            if self._flag_every and step % self._flag_every == 0:
                yield from self._call(number, (self._flag,), step)
                self._wait(rank)
            for item in self._shape.program(number, step):
                if isinstance(item, Kernel):
                    self._kernel(rank, item, slow, launches, more)
                elif isinstance(item, Host):
                    rank.host += item.seconds * self._dice.factor(self._noise.host)
                elif isinstance(item, Limit):
                    if len(rank.launched) > item.kernels:
                        rank.host = max(rank.host, rank.launched[-1 - item.kernels])
                elif isinstance(item, Sync):
                    self._wait(rank)
                elif isinstance(item, Join):
                    rank.gpu = max(rank.gpu, rank.streams.get(item.stream, 0.0))
                else:
                    calls = item if isinstance(item, tuple) else (item,)
                    yield from self._call(number, calls, step)
        rank.began.append(rank.host)

    def _wander(self, steps: int, keep: float, size: float) -> list[float]:
        """Return the pace of all ranks in each step: it moves slowly, and returns."""
        pace, at = [], 0.0
        for move in (self._dice.chance.standard_normal(steps) * size).tolist():
            at = keep * at + move
            pace.append(math.exp(at))
        return pace

    def _kernel(self, rank: _Rank, item: Kernel, slow: float, launches: float, more: float) -> None:
        launch = (item.launch_s * launches + item.gpu_s * more) * self._dice.factor(
            self._noise.host
        )
        busy = item.gpu_s * slow * self._dice.factor(self._noise.gpu)
        began = max(rank.gpu, rank.host)
        rank.host += launch
        rank.gpu = max(began + busy, rank.host)
        rank.launched.append(rank.gpu)

    @staticmethod
    def _wait(rank: _Rank) -> None:
        rank.host = max(rank.host, rank.gpu, *rank.streams.values(), 0.0)

    def _call(self, number: int, calls: tuple[Call, ...], step: int) -> Iterator[list[_Pending]]:
        """Enqueue calls together, wait until each is over, and let compute wait where it must."""
        rank, opened = self._ranks[number], []
        for call in calls:
            pending = self._join(number, rank, call, opened[0] if opened else None)
            opened.append(pending)
            if len(pending.arrived) == (2 if call.op in PAIRWISE else len(call.members)):
                self._finish(pending, step)
        yield opened
        for call, pending in zip(calls, opened, strict=True):
            end = self._end(number, call, pending)
            rank.streams[call.stream] = max(rank.streams.get(call.stream, 0.0), end)
            if call.feeds_compute:
                rank.gpu = max(rank.gpu, end)

    def _end(self, number: int, call: Call, pending: _Pending) -> float:
        if self._noise.eager_sends and call.op == "Send":
            return pending.arrived[number] + pending.spent
        return pending.end

    def _join(
        self, number: int, rank: _Rank, call: Call, together: _Pending | None = None
    ) -> _Pending:
        peer = call.peer
        pair = (number, peer) if call.op == "Send" else (peer, number)
        name = (call.comm, *pair) if call.op in PAIRWISE else (call.comm,)
        nth = rank.counts[name] = rank.counts.get(name, -1) + 1
        pending = self._open.setdefault((*name, nth), _Pending(call))
        is_same = together is not None and self._noise.one_kernel
        rank.host += 1e-6 if is_same else 30e-6 * self._dice.factor(self._noise.host)
        pending.enqueued[number] = rank.host
        ready = max(rank.host + 5e-6, rank.streams.get(call.stream, 0.0))
        pending.arrived[number] = max(ready, rank.gpu) if call.needs_compute else ready
        if together is not None and is_same:
            pending.arrived[number] = together.arrived[number]
            self._early.add(len(self._rows))
        rank.streams[call.stream] = pending.arrived[number]
        self._rows.append((number, nth, call, pending))
        return pending

    def _finish(self, pending: _Pending, step: int) -> None:
        call, members = pending.call, tuple(pending.arrived)
        spent = LATENCY_S * np.log2(max(2, len(members))) + call.size_bytes / BANDWIDTH
        spent *= self._dice.factor(0.02)
        for fault in self._faults:
            ends = {fault.rank, fault.link}
            if fault.link is not None and fault.hits(step) and ends <= set(members):
                spent *= fault.times
        pending.end = max(pending.arrived.values()) + spent
        pending.spent = spent

    def _columns(self, clock_s: float) -> Collectives:
        rows = self._rows
        ops = sorted({call.op for _, _, call, _ in rows})
        who = np.array([rank for rank, *_ in rows])
        clock = EPOCH_NS + (np.linspace(0.0, clock_s, self._shape.ranks)[who] * 1e9).astype(int)
        end = np.array([self._end(rank, call, pending) for rank, _, call, pending in rows])
        early = np.array(sorted(self._early | {row - 1 for row in self._early}), np.intp)
        end[early] = [rows[row][3].arrived[rows[row][0]] + rows[row][3].spent for row in early]
        start = np.array([pending.enqueued[rank] for rank, _, _, pending in rows])
        arrived = np.array([pending.arrived[rank] for rank, _, _, pending in rows])
        is_pair = np.array([call.op in PAIRWISE for _, _, call, _ in rows])
        if self._noise.early_ends:
            spent = np.array([pending.spent for *_, pending in rows])
            end = np.where(is_pair, np.minimum(end, arrived + spent), end)
        peer = [call.members.index(call.peer) if call.peer >= 0 else -1 for _, _, call, _ in rows]
        return from_columns(
            {
                "who": who,
                "comm": [call.comm for _, _, call, _ in rows],
                "seq": np.where(is_pair, UNKNOWN, [nth for _, nth, _, _ in rows]),
                "op": [ops.index(call.op) for _, _, call, _ in rows],
                "rank": [call.members.index(rank) for rank, _, call, _ in rows],
                "nranks": [len(call.members) for _, _, call, _ in rows],
                "peer": peer,
                "size_bytes": [call.size_bytes for _, _, call, _ in rows],
                "stream": [call.stream for _, _, call, _ in rows],
                "source": np.zeros(len(who)),
                "start_ns": clock + (start * 1e9).astype(np.int64),
                "end_ns": clock + (end * 1e9).astype(np.int64),
                "gpu_duration_ns": ((end - arrived) * 1e9).astype(np.int64),
            },
            ops,
            tuple(Recorder("job", f"node-{rank}", rank) for rank in range(self._shape.ranks)),
        )
