"""F129: a process that may not be watched on return is not, not even for a moment."""

import sys
from pathlib import Path

import numpy as np
import pytest

from ingero.agent.ebpf.attach import ProbeMode, ProcessProbes
from ingero.agent.ebpf.functions import FUNCTIONS
from ingero.agent.ebpf.layout import MODE_ENTRY, SLOT
from ingero.agent.ebpf.loader.elf import Site
from ingero.agent.ebpf.loader.links import Link, Probe, ProbeStyle
from ingero.agent.ebpf.slots import Recording
from ingero.agent.processes.discover import Library, MappedLibrary

NUMBERS = {FUNCTIONS[number].name: number for number in range(len(FUNCTIONS))}
HOT, COLD = NUMBERS["cudaLaunchKernel"], NUMBERS["cudaMalloc"]


class Table:
    def __init__(self) -> None:
        self.rows = np.zeros(8, SLOT)
        self._next = 0

    def take(self, pid: int, recording: Recording) -> int:
        self._next += 1
        return self._next

    def modes(self) -> set[int]:
        return set(self.rows["mode"][1 : self._next + 1].tolist())


class Programs:
    """Remembers what was watched how, at the very moment links came and went."""

    def __init__(self, style: ProbeStyle, table: Table) -> None:
        self.style, self._table = style, table
        self.seen: list[tuple[str, set[int], int]] = []

    def attach(self, path: str, probes: list[Probe], returns: list[Probe], pid: int) -> Link:
        self.seen.append(("attached", self._table.modes(), len(returns)))
        return Watched(self, self._table)

    def closed(self) -> None:
        self.seen.append(("closed", self._table.modes(), 0))


class Watched(Link):
    def __init__(self, programs: Programs, table: Table) -> None:
        super().__init__([])
        self._programs, self._table = programs, table

    def close(self) -> None:
        self._programs.closed()


@pytest.mark.parametrize("style", [ProbeStyle.SESSION, ProbeStyle.MULTI])
def test_returns_are_never_watched_where_a_filter_would_kill(style: ProbeStyle) -> None:
    """On kernels 6.11 to 6.13 a probed return is a system call, for which seccomp kills."""
    table = Table()
    programs = Programs(style, table)
    path = str(Path(sys.executable).resolve())
    library = MappedLibrary(Library.CUDART, path, path, "fe:00", 1)
    sites = {number: (Site("f", 64 * number, b"\x55" * 16),) for number in (HOT, COLD)}
    process = ProcessProbes(1, 1, entry_only=True)
    process.add(library, sites, table, programs, {number: Recording() for number in sites})  # type: ignore[arg-type]
    process.set_mode(HOT, ProbeMode.DETACHED, table, programs)  # type: ignore[arg-type]
    process.set_mode(HOT, ProbeMode.ENTRY, table, programs)  # type: ignore[arg-type]
    assert programs.seen == [
        ("attached", {MODE_ENTRY}, 0),
        ("attached", {MODE_ENTRY}, 0),
        ("closed", {MODE_ENTRY}, 0),
        ("attached", {MODE_ENTRY}, 0),
    ]
