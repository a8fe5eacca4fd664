"""The time that each process spent in each operation, on a screen and as JSON."""

from collections.abc import Mapping, Sequence

from ingero.cli.show.table import print_json, printable, render_table
from ingero.contract.events import Source, op_name
from ingero.core.durations import readable_duration
from ingero.core.recording.operations import OpFigures
from ingero.storage.trace.query import Process

_HEADS = ("node", "pid", "process", "op", "count", "p50", "p99", "avg", "max")


def print_process_times(
    operations: Sequence[OpFigures], processes: Mapping[tuple[str, int], Process], as_json: bool
) -> None:
    """Print operations by process, and which processes share a GPU."""
    if as_json:
        print_json([_as_json(one, _name(one, processes)) for one in operations])
        return
    if not operations:
        print("no events in this part of the trace; widen --since, or record with `ingero trace`")
        return
    print(render_table(_HEADS, [_row(one, _name(one, processes)) for one in operations]))
    gpu = {(one.node, one.pid) for one in operations if one.key[0] in (Source.CUDA, Source.DRIVER)}
    for node in sorted({node for node, _ in gpu}):
        pids = sorted(pid for where, pid in gpu if where == node)
        if len(pids) > 1:
            where = f" on {printable(node)}" if node else ""
            print(
                f"\n{len(pids)} processes use the GPU{where}: {', '.join(map(str, pids))}; "
                "they share its time"
            )


def _name(one: OpFigures, processes: Mapping[tuple[str, int], Process]) -> str:
    process = processes.get((one.node, one.pid))
    return process.name if process else ""


def _as_json(one: OpFigures, name: str) -> dict[str, str | int | None]:
    return {
        "node": one.node, "pid": one.pid, "process": name, "op": op_name(*one.key),
        "count": one.count, "p50_ns": one.p50_ns, "p99_ns": one.p99_ns,
        "avg_ns": int(one.mean_ns), "max_ns": one.max_ns,
    }  # fmt: skip


def _row(one: OpFigures, name: str) -> tuple[str | int, ...]:
    times = (one.p50_ns, one.p99_ns, int(one.mean_ns), one.max_ns)
    shown = ("-" if value is None else readable_duration(value) for value in times)
    return (one.node, one.pid, name, op_name(*one.key), one.count, *shown)
