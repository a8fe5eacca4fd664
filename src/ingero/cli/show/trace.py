"""A running trace as tables, and its records as JSON lines."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingero.agent.recording.app import TraceView
from ingero.agent.recording.recorder import MAX_LOOKUPS, Resolver, TracedEvents, unresolved
from ingero.cli.show.chains import fix_lines, tagged
from ingero.cli.show.table import coloured, printable
from ingero.cli.show.wrap import screen_columns
from ingero.contract.events import Source, op_name, source_name
from ingero.contract.timestamps import rfc3339_ns
from ingero.core.chains.evidence import SystemSample
from ingero.core.durations import human_duration, readable_duration
from ingero.core.recording.latency import OpSummary
from ingero.core.recording.stacks import Frame
from ingero.storage.trace.database import RecordingState

BAR_CELLS = 20
MAX_ROWS = 12  # per section, so that the tables fit on a terminal
_SECTIONS = (
    ("CUDA runtime", (Source.CUDA, Source.GRAPH)),
    ("CUDA driver", (Source.DRIVER,)),
    ("Host", (Source.HOST,)),
    ("Block I/O", (Source.IO,)),
    ("TCP", (Source.TCP,)),
    ("Network", (Source.NET,)),
)
_HEADS = ("OPERATION", "PROCESS", "COUNT", "P50", "P95", "P99", "MAX", "WALL%", "SPIKES")


def render_view(view: TraceView) -> str:
    """Return the tables of one screen."""
    lines = [*_system_lines(view.sample)]
    for title, sources in _SECTIONS:
        ops = [op for op in view.operations if op.key[0] in sources and op.count][:MAX_ROWS]
        if ops:
            lines += ["", coloured(title, "1"), *_table(ops, view)]
    lines += ["", *_footer(view)]
    for chain in view.chains:
        lines += ["", tagged(chain.severity, f" {printable(chain.summary)}")]
        lines += fix_lines(chain.recommendations)
    return "\n".join(lines)


def _system_lines(sample: SystemSample | None) -> Iterator[str]:
    if sample is None:
        yield "system: first sample in a second"
        return
    swap = f"  swap {sample.swap_mb} MB!" if sample.swap_mb else ""
    cpu, memory = _bar(sample.cpu_pct), _bar(sample.mem_pct)
    yield f"CPU {cpu}  memory {memory}  load {sample.load_avg:.1f}{swap}"


def _bar(percent: float) -> str:
    filled = round(percent / 100 * BAR_CELLS)
    text = f"[{'█' * filled}{'·' * (BAR_CELLS - filled)}] {percent:3.0f}%"
    return coloured(f"{text}!", "31") if percent > 90 else text


def _table(ops: list[OpSummary], view: TraceView) -> list[str]:
    rows = [_HEADS, *(_row(op, view) for op in ops)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADS))]
    columns = screen_columns()
    lines = [
        "  "
        + "  ".join(
            c.ljust(w) if i < 2 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [line[:columns].rstrip() for line in lines]


def _row(op: OpSummary, view: TraceView) -> tuple[str, ...]:
    name = printable(view.processes.get(op.pid, ""))[:16]
    share = 100 * op.total_ns / (view.wall_s * 1e9) if view.wall_s else 0.0
    spikes = f"{op.anomalies}!" if op.anomalies else ""
    if op.period:
        spikes += f" every ~{op.period}"
    is_timed = op.p50_ns > 0  # calls may be counted without being timed: unknown is not zero
    times = (
        readable_duration(ns) if is_timed else "-"
        for ns in (op.p50_ns, op.p95_ns, op.p99_ns, op.max_ns)
    )
    return (
        op_name(*op.key),
        f"{name} {op.pid}".strip(),
        str(op.count),
        *times,
        f"{share:.1f}",
        spikes,
    )


def _footer(view: TraceView) -> Iterator[str]:
    lost = sum(view.losses.values())
    parts = [
        f"{view.wall_s:.0f} s", f"{view.events:,} records", f"{view.anomalies:,} unusual",
        f"{view.collectives:,} collectives", f"{lost:,} lost",
    ]  # fmt: skip
    if view.state is not None:
        parts.append(f"{view.stored:,} rows, {view.state}")
    yield "  ".join(parts)
    if lost:
        yield "  lost: " + " ".join(
            f"{place}={count}" for place, count in view.losses.items() if count
        )
    if view.events and lost > 0.05 * (view.events + lost):
        yield coloured(
            "  more than 5% of the records were lost: counts are right, single events are missing",
            "33",
        )
    if view.state in (RecordingState.DISK_FULL, RecordingState.FAILED):
        yield coloured(
            f"  not recording ({view.state}): make room; {view.failed_rows:,} rows lost so far",
            "31",
        )
    if view.dropped_rows:
        yield f"  the disk is too slow: {view.dropped_rows:,} rows dropped"
    yield from (f"  off: {printable(note)}" for note in view.notes)


def event_lines(
    traced: TracedEvents,
    unusual: NDArray[np.bool_],
    names: dict[int, str],
    resolve: Resolver = unresolved,
) -> Iterator[str]:
    """Yield one JSON object per record.

    Only a few stacks are resolved at a time, since reading another process takes time.
    """
    events = traced.columns
    lookups = 0
    for index in range(len(events)):
        source, op, pid = int(events.source[index]), int(events.op[index]), int(events.pid[index])
        duration_ns, at_ns = int(events.duration[index]), int(events.timestamp[index])
        comm = traced.comm[index].decode(errors="replace")
        addresses = traced.stacks.get(int(traced.stack[index]), ())
        lookups += bool(addresses)
        look = resolve if lookups <= MAX_LOOKUPS else unresolved
        stack = look(pid, int(events.tid[index]), addresses) if addresses else ()
        line: dict[str, Any] = {
            "timestamp": rfc3339_ns(at_ns), "pid": pid, "tid": int(events.tid[index]),
            "process_name": comm or names.get(pid, ""),
            "source": source_name(source), "op": op_name(source, op),
            "duration_ns": duration_ns, "duration": human_duration(duration_ns),
            "gpu_id": max(int(traced.gpu_id[index]), 0),
            "args": [int(events.arg0[index]), int(events.arg1[index])],
            "return_code": int(events.ret_code[index]), "cgroup_id": int(events.cgroup_id[index]),
            "anomaly": bool(unusual[index]), "stack": [_frame(frame) for frame in stack],
        }  # fmt: skip
        yield json.dumps(line)


def _frame(frame: Frame) -> dict[str, str | int]:
    """Return the known parts of a frame, with its address only when it has no name."""
    values: dict[str, str | int] = {
        "ip": "" if frame.symbol or not frame.ip else hex(frame.ip),
        "symbol": frame.symbol, "file": frame.file, "line": frame.line,
        "py_file": frame.py_file, "py_func": frame.py_func, "py_line": frame.py_line,
    }  # fmt: skip
    return {key: value for key, value in values.items() if value}


def heartbeat_line(view: TraceView, now_ns: int) -> str:
    """Return the state of the recording as one JSON line."""
    return json.dumps(
        {
            "type": "heartbeat", "timestamp": rfc3339_ns(now_ns), "wall_s": round(view.wall_s, 3),
            "events": view.events, "stored": view.stored, "collectives": view.collectives,
            "anomalies": view.anomalies, "losses": dict(view.losses),
            "dropped_rows": view.dropped_rows, "failed_rows": view.failed_rows,
            "state": view.state, "off": list(view.notes),
            "chains": [chain.name for chain in view.chains],
        }
    )  # fmt: skip
