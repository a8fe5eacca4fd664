"""Processes by /proc: their CPU time, their children, and which of them are the ranks of a job."""

import os
from contextlib import suppress
from pathlib import Path


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; empty for a process that ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_s(pid: int) -> float:
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def children_of(parent: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (fields := stat_fields(pid)) and int(fields[1]) == parent]


def rank_processes(launcher: int) -> dict[int, int]:
    """Return the process of every rank below the launcher, by its environment."""
    found, parents = {}, {launcher}
    for entry in sorted(Path("/proc").iterdir(), key=lambda each: (len(each.name), each.name)):
        if not entry.name.isdigit() or not (fields := stat_fields(int(entry.name))):
            continue
        if int(fields[1]) in parents:
            parents.add(int(entry.name))
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                ranks = [each[5:] for each in variables if each.startswith(b"RANK=")]
                if ranks:
                    found.setdefault(int(ranks[0]), int(entry.name))
    return found
