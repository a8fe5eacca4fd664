"""Sample trace databases: three nodes of one training job, one of them slowed by a backup.

A fourth file holds the three merged: 600 events, 6 chains, 9 stacks. The same seed gives the same
rows. The events are simulated; statistics, aggregates and causal chains come from the code that
handles a real recording. As in a recording, every event is counted and some become rows.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ingero.contract.events import PAGE_ALLOC, SCHED_SWITCH
from ingero.core.chains.evidence import SystemSample
from ingero.core.chains.neighbours import Host
from ingero.core.chains.replay import replay
from ingero.core.recording.aggregate import aggregate, aggregate_with_durations
from ingero.core.recording.event_columns import EventColumns
from ingero.core.recording.histogram import FLOORS_NS
from ingero.core.recording.latency import percentile
from ingero.core.recording.operations import is_timed, to_buckets
from ingero.core.recording.stacks import encode_frames, stack_hash
from ingero.errors import StoreError
from ingero.sim.sample_script import NODES, START_NS, NodeTrace, make_traces
from ingero.storage.merge.merge import merge
from ingero.storage.trace.chains import CHAIN_COLUMNS, UPSERT_HISTORY, chain_row, history_row
from ingero.storage.trace.database import (
    ADD_DURATIONS,
    COLLECTIVE_COLUMNS,
    EVENT_COLUMNS,
    Row,
    TraceDb,
    collective_row,
    insert_sql,
    upsert_aggregates_sql,
)
from ingero.storage.trace.schema import FIVE_SECONDS_NS, MINUTE_NS

MERGED_NAME = "sample-cluster.db"
ROWS = 200  # that are kept per node; the others are counted


def write_samples(directory: Path, seed: int = 1, rows: int | None = ROWS) -> list[Path]:
    """Write `sample-gpu-node-0N.db` and `sample-cluster.db`, and return their paths.

    `rows` is the number of events that each node keeps; None means nearly all of them.
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
                _write(path, trace, rows)
            merge(written[:-1], written[-1])
            return [path.rename(directory / path.name) for path in written]
    except OSError as error:
        raise StoreError(f"samples cannot be written to {directory}: {error.strerror}") from None


def _write(path: Path, trace: NodeTrace, rows: int | None) -> None:
    with TraceDb(path, trace.node) as db:
        if not db.write(_node_batch(trace, rows)):
            raise StoreError(f"{path} could not be written: {db.state}")


def _node_batch(trace: NodeTrace, rows: int | None) -> list[tuple[str, list[Row]]]:
    events = trace.events
    keep = _kept(events, rows)
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
    if rows is not None:
        batch.append((ADD_DURATIONS, list(_duration_rows(trace.node, events))))
    return batch


def _kept(
    events: EventColumns, rows: int | None
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return which events become rows: as many of each operation as its share, but each rare one.

    Page allocations are only counted.
    """
    wanted = ~events.is_op(*PAGE_ALLOC)
    if rows is None:
        return wanted
    kinds = events.source.astype(np.int64) * 1000 + events.op
    found, counts = np.unique(kinds[wanted], return_counts=True)
    rare = counts <= rows // 10
    left = rows - int(counts[rare].sum())
    shares = left * counts[~rare] / counts[~rare].sum()
    quota = np.floor(shares).astype(int)
    quota[np.argsort(quota - shares, kind="stable")[: left - int(quota.sum())]] += 1
    keep = np.isin(kinds, found[rare]) & wanted
    for kind, number in zip(found[~rare], quota, strict=True):
        positions = np.flatnonzero(kinds == kind)
        keep[positions[np.linspace(0, len(positions) - 1, number).round().astype(int)]] = True
    return keep


def _duration_rows(node: str, events: EventColumns) -> Iterator[Row]:
    """Yield how many calls of each operation and minute took how long, as the recorder counts."""
    none = np.zeros(len(events), bool)
    rows, counts = aggregate_with_durations(events, none, MINUTE_NS)
    for (minute, source, op, pid, *_), taken in zip(rows, counts, strict=True):
        if is_timed((source, op)):
            for (floor_ns, ceiling_ns), count in to_buckets(taken, FLOORS_NS).items():
                yield node, minute, source, op, pid, floor_ns, ceiling_ns, count


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
