"""`make bench-export`: Perfetto export of a million events, against stdlib json and end to end."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.merge import make
from bench.table import finish, judge, print_table
from ingero.contract.events import op_name
from ingero.contract.timeline.json_writer import JsonTimeline
from ingero.contract.timeline.model import SliceChunk, TimelineNode
from ingero.contract.timeline.packet_writer import PacketTimeline
from ingero.contract.timeline.perfetto import CATEGORY, json_slices, packet_slices

EVENTS = 1_000_000
PIECE = 25_000
# Prints the output of the command and its peak in KiB. `getrusage` of a child would include this
# process, from which it is forked.
MEASURED = """
import re, sys
from pathlib import Path
from ingero.__main__ import main
main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def chunks() -> list[SliceChunk]:
    rng = np.random.default_rng(7)
    ts = 1_775_000_000_000_000_000 + np.cumsum(rng.integers(500, 1500, EVENTS))
    columns = [
        ts,
        rng.integers(0, 400, EVENTS),
        rng.choice([1, 4], EVENTS),
        rng.integers(1, 5, EVENTS),
    ]
    columns += [
        np.full(EVENTS, 4242),
        4242 + np.arange(EVENTS) % 8,
        np.zeros(EVENTS),
        np.zeros(EVENTS),
    ]
    columns += [np.zeros(EVENTS), np.arange(EVENTS)]
    whole = [np.ascontiguousarray(column, np.int64) for column in columns]
    return [
        SliceChunk(*(column[i : i + PIECE] for column in whole)) for i in range(0, EVENTS, PIECE)
    ]


def stdlib_json(parts: list[SliceChunk]) -> int:
    size = 0
    for part in parts:
        fields = (part.ts_ns, part.dur_ns, part.source, part.op, part.pid)
        elements = [
            {
                "name": op_name(source, op), "cat": CATEGORY[source], "ph": "X",
                "ts": ts // 1000, "dur": dur // 1000, "pid": 1, "tid": pid,
            }
            for ts, dur, source, op, pid in zip(
                *(column.tolist() for column in fields), strict=True
            )
        ]  # fmt: skip
        size += len(json.dumps(elements))
    return size


def timed(work: Callable[[], int]) -> tuple[float, int]:
    begin = time.perf_counter()
    size = work()
    return time.perf_counter() - begin, size


def main() -> None:
    parts = chunks()
    nodes = [TimelineNode("node-0")]
    reference_s, reference_bytes = timed(lambda: stdlib_json(parts))
    text = JsonTimeline(nodes)
    json_s, json_bytes = timed(lambda: sum(len(text.slices(part)) for part in parts))
    native = PacketTimeline(nodes)
    native_s, native_bytes = timed(lambda: sum(len(native.slices(part)) for part in parts))
    rows = [
        ("stdlib json", reference_s, reference_bytes / 1e6, 1.0),
        ("perfetto (JSON)", json_s, json_bytes / 1e6, reference_s / json_s),
        ("perfetto-proto", native_s, native_bytes / 1e6, reference_s / native_s),
    ]
    print_table(f"encode stage, {EVENTS:,} events", ("encoder", "seconds", "MB", "ratio"), rows)
    whole = end_to_end()
    print_table(
        "the whole command, from the database", ("format", "seconds", "MB", "peak RSS MB"), whole
    )
    compiled = (
        json_slices.__module__ != "ingero.contract.timeline.perfetto"
        and packet_slices.__module__ != "ingero.contract.timeline.perfetto"
    )
    requirements = [
        ("compiled encoders in use", compiled, str(compiled)),
        (
            "native packets at least 10x stdlib json",
            reference_s / native_s >= 10,
            f"{reference_s / native_s:.1f}x",
        ),
        ("JSON at least 3x stdlib json", reference_s / json_s >= 3, f"{reference_s / json_s:.1f}x"),
    ]
    requirements.append(
        (
            "memory under 150 MB",
            max(row[3] for row in whole) < 150,
            f"{max(row[3] for row in whole):.0f} MB",
        )
    )
    finish(judge(requirements))


def end_to_end() -> list[tuple[str, float, float, float]]:
    """Run the whole command as users run it, in its own process."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node-0.db"
        make(path, "node-0", EVENTS)
        for kind in ("perfetto", "perfetto-proto"):
            output = Path(folder) / kind
            begin = time.perf_counter()
            command = [
                sys.executable,
                "-c",
                MEASURED,
                "export",
                "--format",
                kind,
                "-d",
                str(path),
                "-o",
                str(output),
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds = time.perf_counter() - begin
            rows.append((kind, seconds, output.stat().st_size / 1e6, int(done.stdout) / 1024))
    return rows


if __name__ == "__main__":
    main()
