"""Seconds of a CPU: what work costs, whatever else a machine does meanwhile."""

import os
from pathlib import Path


def cpu_s(pid: int) -> float:
    """What a running process has had so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_cpu_s() -> float:
    """What processes started here had until they ended, their own children included."""
    spent = os.times()
    return spent.children_user + spent.children_system
