"""Commands of the reference agent beside ours, where its program is given (INGERO_REFERENCE=path).

The same databases, one after the other in the same run. Part of `make bench-peers`.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.merge import EVENTS, NODES, make
from bench.table import print_table

VARIABLE = "INGERO_REFERENCE"


def measured(command: list[str]) -> tuple[float, float] | None:
    """Return seconds and megabytes of a command; None where it fails."""
    began_s = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    took_s = time.perf_counter() - began_s
    return None if child.returncode else (took_s, _peak_mb(usage))


def _peak_mb(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / 1024


def commands(program: list[str], sources: list[Path], folder: Path) -> dict[str, list[str]]:
    """Return the commands that both have, by what they do."""
    merged = folder / "merged.db"
    return {
        "start (version)": [*program, "version"],
        f"merge {NODES} x {EVENTS:,} events": [
            *program, "merge", *map(str, sources), "-o", str(merged),
        ],
        f"Perfetto JSON of {NODES * EVENTS:,} events": [
            *program, "export", "--format", "perfetto", "-d", str(merged),
            "-o", str(folder / "trace.json"),
        ],
    }  # fmt: skip


def compare() -> None:
    """Print what each command takes, or how to give the program of the reference."""
    reference = os.environ.get(VARIABLE)
    if not reference:
        print(f"\nno commands of the reference: {VARIABLE} names its program, if you have it")
        return
    programs = {"reference": [reference], "ours": [str(Path(sys.executable).parent / "ingero")]}
    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory() as temporary:
        sources = [Path(temporary) / f"node-{number}.db" for number in range(NODES)]
        for path in sources:
            make(path, path.stem)
        for name, program in programs.items():
            folder = Path(temporary) / name
            folder.mkdir()
            for what, command in commands(program, sources, folder).items():
                found = measured(command)
                rows.append((what, name, *(found or ("failed", ""))))
    print_table("commands", ("command", "whose", "seconds", "peak MB"), sorted(rows, key=str))
