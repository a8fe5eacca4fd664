"""The time that each process spent in each operation, on a screen and as JSON."""

from ingero.cli.show.table import print_json, printable, render_table
from ingero.core.durations import human_duration
from ingero.storage.trace.query import ProcessTime


def print_process_times(times: list[ProcessTime], as_json: bool) -> None:
    """Print operations by process, and which processes share a GPU."""
    if as_json:
        keys = ("node", "pid", "process", "op", "count", "avg_ns", "max_ns")
        values = ((t.node, t.pid, t.name, t.op, t.count, t.avg_ns, t.max_ns) for t in times)
        print_json([dict(zip(keys, row, strict=True)) for row in values])
        return
    if not times:
        print("no events in this part of the trace; widen --since, or record with `ingero trace`")
        return
    rows = [
        (t.node, t.pid, t.name, t.op, t.count, human_duration(t.avg_ns), human_duration(t.max_ns))
        for t in times
    ]
    print(render_table(("node", "pid", "process", "op", "count", "avg", "max"), rows))
    gpu = {(t.node, t.pid) for t in times if t.is_gpu}
    for node in sorted({node for node, _ in gpu}):
        pids = sorted(pid for where, pid in gpu if where == node)
        if len(pids) > 1:
            where = f" on {printable(node)}" if node else ""
            print(
                f"\n{len(pids)} processes use the GPU{where}: {', '.join(map(str, pids))}; "
                "they share its time"
            )
