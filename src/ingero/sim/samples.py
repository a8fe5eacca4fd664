"""Sample trace databases: three nodes of one training job, one of them slowed by a backup.

A fourth file holds the three merged. The same seed gives the same rows. The events are simulated;
statistics, aggregates and causal chains come from the code that handles a real recording.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.events import OFF_CPU_PREEMPTED, PAGE_ALLOC, SCHED_SWITCH, find_op
from ingero.core.chains.evidence import SystemSample
from ingero.core.chains.neighbours import Host
from ingero.core.chains.replay import replay
from ingero.core.recording.aggregate import aggregate
from ingero.core.recording.event_columns import EventColumns, columns_from_rows
from ingero.core.recording.latency import percentile
from ingero.core.recording.stacks import Frame, encode_frames, stack_hash
from ingero.errors import StoreError
from ingero.storage.merge.merge import merge
from ingero.storage.trace.chains import CHAIN_COLUMNS, UPSERT_HISTORY, chain_row, history_row
from ingero.storage.trace.database import (
    COLLECTIVE_COLUMNS,
    EVENT_COLUMNS,
    Row,
    TraceDb,
    collective_row,
    insert_sql,
    upsert_aggregates_sql,
)
from ingero.storage.trace.schema import FIVE_SECONDS_NS, MINUTE_NS

START_NS = 1_768_478_400_000_000_000  # 2026-01-15 12:00:00 UTC
NODES = ("gpu-node-01", "gpu-node-02", "gpu-node-03")
MERGED_NAME = "sample-cluster.db"
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


def write_samples(directory: Path, seed: int = 1) -> list[Path]:
    """Write `sample-gpu-node-0N.db` and `sample-cluster.db`, and return their paths.

    The files appear when all of them are complete. Existing files are not overwritten.
    """
    names = [*(f"sample-{node}.db" for node in NODES), MERGED_NAME]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        taken = [directory / name for name in names if (directory / name).exists()]
        if taken:
            raise StoreError(f"{taken[0]} already exists; name an empty folder or remove it")
        with tempfile.TemporaryDirectory(prefix=".samples-", dir=directory) as folder:
            written = [Path(folder) / name for name in names]
            for trace, path in zip(make_traces(seed), written, strict=False):
                _write(path, trace)
            merge(written[:-1], written[-1])
            return [path.rename(directory / path.name) for path in written]
    except OSError as error:
        raise StoreError(f"samples cannot be written to {directory}: {error.strerror}") from None


def make_traces(seed: int = 1) -> list[NodeTrace]:
    """Return the recordings of the three nodes."""
    rng = np.random.default_rng(seed)
    late_ns = [0] * STEPS
    for step in BACKUP_STEPS:
        late_ns[step] = int(rng.integers(35, 60)) * MS
    return [_make_node(node, rank, late_ns, rng) for rank, node in enumerate(NODES)]


def _make_node(node: str, rank: int, late_ns: list[int], rng: np.random.Generator) -> NodeTrace:
    pid, writer = 1880 + 100 * rank, 812 + rank
    script = _Script(pid, pid + 6, writer, 7000 + rank, rng)
    collectives = []
    begins_ns = START_NS + rank * 37 * US
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
    names = {pid: "python3", pid + 6: "python3", writer: "rsync" if rank == 0 else "logrotate"}
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

    def __init__(
        self, pid: int, loader: int, writer: int, cgroup: int, rng: np.random.Generator
    ) -> None:
        self.pid, self.loader, self.writer, self.cgroup, self.rng = pid, loader, writer, cgroup, rng
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
                _LAUNCH_STACKS[launch],
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
                _ALLOC_STACKS[number // 4 % 2],
                arg0=2**21,
            )
            for part in range(2 if slow else 0):
                self._preempted(at_ns + 7 * MS + (30 + 400 * part) * US, 380 * US)
        if is_starved:
            self._write_backup(at_ns)
        if late_ns:
            self._preempted(at_ns + 9 * MS, late_ns)
        waits_ns = int(self.rng.normal(84, 2) * MS)
        self._call("cudaStreamSync", at_ns + 10 * MS + late_ns, waits_ns, _SYNC_STACK, arg0=0x7F10)
        self._add("mm_page_alloc", at_ns + 2 * MS, 0, self.loader, arg0=2**16)
        if number % 9 == 0:
            self._sample(at_ns, is_starved)

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

    def _preempted(self, begins_ns: int, off_ns: int) -> None:
        self._add(
            "sched_switch",
            begins_ns + off_ns,
            off_ns,
            self.pid,
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


def _write(path: Path, trace: NodeTrace) -> None:
    with TraceDb(path, trace.node) as db:
        if not db.write(_node_batch(trace)):
            raise StoreError(f"{path} could not be written: {db.state}")


def _node_batch(trace: NodeTrace) -> list[tuple[str, list[Row]]]:
    events = trace.events
    keep = ~events.is_op(*PAGE_ALLOC)
    chains = replay(events, trace.samples, Host(8, trace.names))
    stacks = {stack_hash(stack): encode_frames(stack) for stack in trace.stacks if stack}
    ends_ns = int(events.timestamp.max())
    named: list[Row] = [(pid, name, ends_ns) for pid, name in trace.names.items()]
    batch: list[tuple[str, list[Row]]] = [
        (insert_sql("events", EVENT_COLUMNS), _event_rows(trace, keep)),
        (
            insert_sql("stack_traces", ("hash", "ips", "frames")),
            [(key, *text) for key, text in stacks.items()],
        ),
        (
            insert_sql("causal_chains", CHAIN_COLUMNS),
            [chain_row(trace.node, at_ns, chain) for at_ns, chain in chains],
        ),
        (UPSERT_HISTORY, [history_row(trace.node, at_ns, chain) for at_ns, chain in chains]),
        (
            insert_sql("system_snapshots", _SNAPSHOT_COLUMNS),
            [_snapshot_row(sample) for sample in trace.samples],
        ),
        (insert_sql("sessions", _SESSION_COLUMNS), [_session_row(trace, ends_ns)]),
        (insert_sql("process_names", ("pid", "name", "seen_at")), named),
        (
            insert_sql("processes", ("node", "pid", "start_time", "name", "seen_at")),
            [(trace.node, pid, 0, name, ends_ns) for pid, name in trace.names.items()],
        ),
        (
            insert_sql("cgroup_metadata", ("cgroup_id", "cgroup_path")),
            [(7000 + trace.rank, f"/user.slice/training-{trace.rank}.scope")],
        ),
        (insert_sql("cgroup_schedstat", _SCHEDSTAT_COLUMNS), [_schedstat_row(trace)]),
        (
            insert_sql("collectives", COLLECTIVE_COLUMNS),
            [collective_row(record, trace.pid) for record in trace.collectives],
        ),
    ]
    for table, bucket_ns in (
        ("event_aggregates", MINUTE_NS),
        ("event_aggregates_5s", FIVE_SECONDS_NS),
    ):
        batch.append((upsert_aggregates_sql(table), list(aggregate(events, keep, bucket_ns))))
    return batch


_SNAPSHOT_COLUMNS = ("timestamp", "cpu_pct", "mem_pct", "mem_avail", "swap_mb", "load_avg")
_SCHEDSTAT_COLUMNS = (
    "cgroup_id",
    "p99_off_cpu",
    "total_off_cpu",
    "event_count",
    "window_start",
    "window_end",
)
_SESSION_COLUMNS = (
    "started_at", "stopped_at", "gpu_model", "cpu_model", "cpu_cores", "mem_total", "kernel",
    "ingero_ver", "pid_filter", "flags", "node", "rank", "local_rank", "world_size",
)  # fmt: skip


def _snapshot_row(sample: SystemSample) -> Row:
    return (
        sample.timestamp_ns, sample.cpu_pct, sample.mem_pct, sample.mem_avail_mb, sample.swap_mb,
        sample.load_avg,
    )  # fmt: skip


def _schedstat_row(trace: NodeTrace) -> Row:
    waits = np.sort(trace.events.duration[trace.events.is_op(*SCHED_SWITCH)])
    times = trace.events.timestamp
    window = int(times.min()), int(times.max())
    return 7000 + trace.rank, percentile(waits, 0.99), int(waits.sum()), len(waits), *window


def _session_row(trace: NodeTrace, ends_ns: int) -> Row:
    return (
        START_NS, ends_ns, "simulated", "simulated", 8, 15_785, "simulated", "sample",
        str(trace.pid), "record,sample", trace.node, trace.rank, 0, len(NODES),
    )  # fmt: skip


def _event_rows(
    trace: NodeTrace, keep: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> list[Row]:
    order = [
        int(index) for index in np.argsort(trace.events.timestamp, kind="stable") if keep[index]
    ]
    events = trace.events
    rows: list[Row] = []
    for number, index in enumerate(order, start=1):
        pid = int(events.pid[index])
        stack = trace.stacks[index]
        is_training = pid == trace.pid
        rows.append(
            (
                f"{trace.node}:{number}", int(events.timestamp[index]), pid, int(events.tid[index]),
                int(events.source[index]), int(events.op[index]), int(events.duration[index]), 0,
                int(events.arg0[index]), int(events.arg1[index]), int(events.ret_code[index]),
                stack_hash(stack) if stack else 0, trace.node, trace.rank if is_training else None,
                0 if is_training else None, len(NODES) if is_training else None, trace.names[pid],
                int(events.cgroup_id[index]),
            )
        )  # fmt: skip
    return rows
