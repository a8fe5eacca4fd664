"""The script of the sample recordings: what each of three nodes does, step by step."""

from dataclasses import dataclass

import numpy as np

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.events import OFF_CPU_PREEMPTED, find_op
from ingero.core.chains.evidence import SystemSample
from ingero.core.recording.event_columns import EventColumns, columns_from_rows
from ingero.core.recording.stacks import Frame

START_NS = 1_768_478_400_000_000_000  # 2026-01-15 12:00:00 UTC
NODES = ("gpu-node-01", "gpu-node-02", "gpu-node-03")
STEPS = 160
STEP_NS = 110_000_000
BACKUP_STEPS = range(60, 120)  # when the backup runs on the first node
US, MS = 1_000, 1_000_000
COMM = 0x5EED_0000_C0FF_EE01

_LAUNCH_STACKS = [
    (
        Frame(symbol="cuLaunchKernel", file="libcuda.so.1"),
        Frame(py_file="train.py", py_func=function, py_line=line),
    )
    for function, line in (
        ("forward", 47),
        ("attention", 81),
        ("mlp", 102),
        ("loss", 131),
        ("backward", 140),
    )
]
_ALLOC_STACKS = [
    (
        Frame(symbol="cuMemAlloc_v2", file="libcuda.so.1"),
        Frame(py_file="train.py", py_func="forward", py_line=47),
    ),
    (
        Frame(symbol="cuMemAlloc_v2", file="libcuda.so.1"),
        Frame(py_file="data.py", py_func="collate", py_line=18),
    ),
]
_PREFETCH_STACK = (
    Frame(symbol="cuMemAlloc_v2", file="libcuda.so.1"),
    Frame(py_file="data.py", py_func="prefetch", py_line=33),
)
_SYNC_STACK = (
    Frame(symbol="cudaStreamSynchronize", file="libcudart.so.13"),
    Frame(py_file="train.py", py_func="step", py_line=152),
)


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """The recording of one node."""

    node: str
    rank: int
    pid: int
    events: EventColumns
    stacks: list[tuple[Frame, ...] | None]  # per event
    samples: list[SystemSample]
    collectives: list[CollectiveRecord]
    names: dict[int, str]


def make_traces(seed: int = 1) -> list[NodeTrace]:
    """Return the recordings of the three nodes."""
    rng = np.random.default_rng(seed)
    late_ns = [0] * STEPS
    for step in BACKUP_STEPS:
        late_ns[step] = int(rng.integers(35, 60)) * MS
    return [_make_node(node, rank, late_ns, rng) for rank, node in enumerate(NODES)]


def _make_node(node: str, rank: int, late_ns: list[int], rng: np.random.Generator) -> NodeTrace:
    pid, writer = 1880 + 100 * rank, 812 + rank
    script = _Script(rank, pid, writer, rng)
    names = {pid: "python3", pid + 6: "python3", writer: "rsync" if rank == 0 else "logrotate"}
    collectives = []
    begins_ns = START_NS + rank * 37 * US
    if rank == 0:
        names |= script.run_beside(begins_ns)
    for step in range(STEPS):
        own_late_ns = late_ns[step] if rank == 0 else 0
        waits_ns = late_ns[step] if rank else 0
        is_starved = rank == 0 and step in BACKUP_STEPS
        is_disturbed = rank > 0 and 80 <= step < 90  # a short, mild disturbance by a cron job
        script.step(step, begins_ns, is_starved, is_disturbed, own_late_ns)
        entry_ns = begins_ns + 12 * MS + own_late_ns
        collectives.append(_all_reduce(node, rank, step, entry_ns, 9 * MS + waits_ns))
        begins_ns += STEP_NS + late_ns[step]
    events = columns_from_rows(script.rows)
    return NodeTrace(node, rank, pid, events, script.stacks, script.samples, collectives, names)


def _all_reduce(
    node: str, rank: int, step: int, start_ns: int, duration_ns: int
) -> CollectiveRecord:
    return CollectiveRecord(
        job="sample", node=node, global_rank=rank, comm=COMM, seq=step + 1, op="AllReduce",
        rank=rank, nranks=len(NODES), peer=None, datatype="bfloat16", reduce_op="sum",
        size_bytes=64 * 2**20, start_ns=start_ns, end_ns=start_ns + duration_ns,
        gpu_duration_ns=duration_ns - 40 * US, stream=0x7F10, source=CollectiveSource.PLUGIN,
    )  # fmt: skip


class _Script:
    """Collects the events of one training step after another."""

    def __init__(self, rank: int, pid: int, writer: int, rng: np.random.Generator) -> None:
        self.rank, self.pid, self.writer, self.rng = rank, pid, writer, rng
        self.loader, self.cgroup = pid + 6, 7000 + rank
        self.rows: list[tuple[int, ...]] = []
        self.stacks: list[tuple[Frame, ...] | None] = []
        self.samples: list[SystemSample] = []

    def step(
        self, number: int, at_ns: int, is_starved: bool, is_disturbed: bool, late_ns: int
    ) -> None:
        """Add one step: copies, launches, sometimes an allocation, and the wait at its end."""
        self._call("cudaMemcpyAsync", at_ns, 28 * US, arg0=8 * 2**20, arg1=1)
        for launch in range(5):
            slow = is_starved and launch == number % 5
            begins_ns = at_ns + (1 + launch) * MS
            self._call(
                "cuLaunchKernel",
                begins_ns,
                840 * US if slow else 13 * US,
                self._stack(_LAUNCH_STACKS[launch]),
                arg0=0x7F00 + launch,
            )
            if slow:
                self._preempted(begins_ns + 20 * US, 720 * US)
        if number % 4 == 0:
            slow = is_starved or is_disturbed
            self._call(
                "cuMemAlloc",
                at_ns + 7 * MS,
                (930 if slow else 180) * US,
                self._stack(_ALLOC_STACKS[number // 4 % 2], is_slow=slow),
                arg0=2**21,
            )
            for part in range(2 if slow else 0):
                self._preempted(at_ns + 7 * MS + (30 + 400 * part) * US, 380 * US)
        if is_starved:
            self._write_backup(at_ns)
        if late_ns:
            self._preempted(at_ns + 9 * MS, late_ns)
        waits_ns = int(self.rng.normal(84, 2) * MS)
        self._call(
            "cudaStreamSync",
            at_ns + 10 * MS + late_ns,
            waits_ns,
            self._stack(_SYNC_STACK),
            arg0=0x7F10,
        )
        self._add("mm_page_alloc", at_ns + 2 * MS, 0, self.loader, arg0=2**16)
        if number % 9 == 0:
            self._sample(at_ns, is_starved)

    def run_beside(self, begins_ns: int) -> dict[int, str]:
        """Add three small processes with slow calls of their own; return their names."""
        evaluation, uploader, tokenizer = self.pid + 10, self.pid + 20, self.pid + 30
        for turn in range(30):
            slow = turn % 5 == 4
            took_ns = 4 * MS if slow else 200 * US
            for number, (op, pid) in enumerate(
                (
                    ("cudaLaunchKernel", evaluation),
                    ("cuMemcpyAsync", uploader),
                    ("cudaMalloc", tokenizer),
                )
            ):
                at_ns = begins_ns + (60 * turn + 20 * number) * MS
                self._add(op, at_ns, took_ns, pid)
                if slow:
                    self._disturb(pid, at_ns, number)
        return {evaluation: "evaluate", uploader: "upload", tokenizer: "tokenize"}

    def _disturb(self, pid: int, at_ns: int, kind: int) -> None:
        """Add what makes a call of a small process slow: lost CPU, lost packets or a slow disk."""
        if kind == 0:
            self._preempted(at_ns + 1 * MS, 2 * MS, pid)
        elif kind == 1:
            self._add("tcp_retransmit", at_ns + 1 * MS, 0, pid)
        else:
            self._add("block_read", at_ns + 3 * MS, 2 * MS, pid, arg0=256, arg1=88_000_000)

    def _stack(
        self, stack: tuple[Frame, ...], *, is_slow: bool = False
    ) -> tuple[Frame, ...] | None:
        """Return the stack that is kept: of all calls on the slow node, elsewhere of slow ones."""
        if self.rank == 0:
            return stack
        return (_ALLOC_STACKS[0], _PREFETCH_STACK)[self.rank - 1] if is_slow else None

    def _call(
        self,
        op: str,
        at_ns: int,
        typical_ns: int,
        stack: tuple[Frame, ...] | None = None,
        **more: int,
    ) -> None:
        duration_ns = int(typical_ns * self.rng.uniform(0.9, 1.1))
        self._add(op, at_ns, duration_ns, self.pid, stack, **more)

    def _preempted(self, begins_ns: int, off_ns: int, pid: int | None = None) -> None:
        self._add(
            "sched_switch",
            begins_ns + off_ns,
            off_ns,
            pid or self.pid,
            arg1=self.writer,
            ret=OFF_CPU_PREEMPTED,
        )

    def _write_backup(self, at_ns: int) -> None:
        for request in range(10):
            took_ns = int(self.rng.uniform(3, 9) * MS)
            ends_ns = at_ns + request * MS + took_ns
            self._add(
                "block_write", ends_ns, took_ns, self.writer, arg0=1024, arg1=139_000_000 + request
            )

    def _add(
        self, op: str, at_ns: int, duration_ns: int, pid: int,
        stack: tuple[Frame, ...] | None = None, *, arg0: int = 0, arg1: int = 0, ret: int = 0,
    ) -> None:  # fmt: skip
        key = find_op(op)
        assert key is not None
        cgroup = 1 if pid == self.writer else self.cgroup
        self.rows.append((at_ns, pid, pid, *key, duration_ns, arg0, arg1, ret, cgroup))
        self.stacks.append(stack)

    def _sample(self, at_ns: int, is_starved: bool) -> None:
        cpu = self.rng.uniform(96, 99) if is_starved else self.rng.uniform(25, 40)
        load = 11.8 if is_starved else 2.1
        self.samples.append(SystemSample(at_ns, float(cpu), 41.0, 9300, 0, load))
