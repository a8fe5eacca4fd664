"""Inference engines on this node: the process that works, and the one above it with the port.

A process that maps libcuda, or whose name is that of a known engine, is where the search begins. It
goes up to the parent that listens, because engines rename their children and replace their command
lines.
"""

import mmap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ingero.agent.causes.threads import read_all
from ingero.agent.engines.names import CommandLine, may_be_asked, read_command_line
from ingero.agent.engines.ports import Listening, PortTable
from ingero.agent.processes.discover import (
    mapped_pages,
    parent_of,
    process_ids,
    running_since,
    user_of,
)
from ingero.agent.processes.maps import read_maps

GENERATIONS: Final = 8  # between a worker and the process with the port
MAX_COMMAND: Final = 1 << 16
# CUDA reserves address space of this size, so that the mappings of smaller processes are not read
CUDA_BYTES: Final = 4 << 30
LOOKS: Final = 3  # at a new process, before it is looked at rarely
RARE: Final = 11  # rounds between two looks at an old process
MAX_CANDIDATES: Final = 64  # of one round; the others are looked at in the next ones
MAX_OF_USER: Final = 16  # candidates of one user in one round
MAX_PORTS: Final = 8  # of one process that are asked


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process that listens and may be an engine, with the ports that may be asked."""

    pid: int
    start_time: int
    ports: tuple[Listening, ...]
    line: CommandLine
    uses_gpu: bool
    user: int = -1


class EngineFinder:
    """Looks for engines.

    A process that turned out to be no engine a few times is looked at only about once a minute, so
    that a node with thousands of processes costs little. Which processes map libcuda is remembered.
    """

    def __init__(self) -> None:
        self._cuda: dict[int, tuple[int, int, bool]] = {}  # start, pages, whether it maps libcuda
        self._round = 0
        self._due: dict[int, tuple[int, int]] = {}  # how often it was none, and the next round
        self._shown: dict[int, int] = {}  # the last round in which a process was a candidate
        self.denied: set[int] = set()  # servers whose ports may not be found, of this round

    def find(self) -> list[Candidate]:
        """Return the processes that may be engines, each once, at most MAX_CANDIDATES.

        Those that were not among them for longest come first, so that all have their turn.
        """
        self._round += 1
        found: dict[int, Candidate] = {}
        alive, ports, users = set(process_ids()), PortTable(), Counter[int]()
        self._forget(alive)
        for pid in sorted(alive, key=lambda pid: self._shown.get(pid, 0)):
            if self._due.get(pid, (0, 0))[1] > self._round:
                continue
            if len(found) >= MAX_CANDIDATES:
                break
            if users[user_of(pid)] >= MAX_OF_USER:
                continue
            candidate = self._look(pid, ports)
            if candidate is None:
                self._note_none(pid)
                continue
            self._shown[pid] = self._round
            users[candidate.user] += candidate.pid not in found
            if candidate.pid not in found or candidate.uses_gpu:
                found[candidate.pid] = candidate
        self.denied = {pid for pid in ports.denied if command_line_of(pid).is_server}
        return list(found.values())

    def _look(self, pid: int, ports: PortTable) -> Candidate | None:
        started = running_since(pid)
        if started is None:
            return None
        uses_gpu = self._maps_cuda(pid, started)
        if not uses_gpu and command_line_of(pid).kind is None:
            return None
        return _listener_above(pid, uses_gpu, ports)

    def _note_none(self, pid: int) -> None:
        times = self._due.get(pid, (0, 0))[0] + 1
        is_old = times >= LOOKS and command_line_of(pid).kind is None  # a server may still start
        self._due[pid] = (times, self._round + (RARE + pid % LOOKS if is_old else 1))

    def _forget(self, alive: set[int]) -> None:
        self._due = {pid: due for pid, due in self._due.items() if pid in alive}
        self._cuda = {pid: seen for pid, seen in self._cuda.items() if pid in alive}
        self._shown = {pid: seen for pid, seen in self._shown.items() if pid in alive}

    def _maps_cuda(self, pid: int, started: int) -> bool:
        pages = mapped_pages(pid) or 0
        if not may_use_cuda(pages):
            return False
        known = self._cuda.get(pid)
        if known is None or known[:2] != (started, pages):
            known = self._cuda[pid] = (started, pages, "/libcuda.so" in read_maps(pid))
        return known[2]


def command_line_of(pid: int) -> CommandLine:
    """Return what the command line of a process says; nothing when it is gone."""
    return read_command_line(arguments_of(pid))


def arguments_of(pid: int) -> list[str]:
    """Return the arguments of a process."""
    text = read_all(f"/proc/{pid}/cmdline", MAX_COMMAND).rstrip(b"\0 ")
    return [each.decode(errors="replace") for each in text.split(b"\0")] if text else []


def _listener_above(pid: int, uses_gpu: bool, ports: PortTable) -> Candidate | None:
    """Return the first process from `pid` upwards that is a known server or listens for it."""
    for each in upwards(pid):
        line = command_line_of(each)
        if line.kind is not None and not line.is_server:
            continue  # a renamed child; its ports are for its siblings
        asked = ports.of_process(each, lambda port, line=line: may_be_asked(port, line))  # type: ignore[misc]  # binds the line
        started = running_since(each)
        if asked and started is not None:
            # the port of the command line is asked first
            ordered = sorted(asked, key=lambda one: (one.port != line.port, one))
            asked_first = tuple(ordered[:MAX_PORTS])
            return Candidate(each, started, asked_first, line, uses_gpu, user_of(each))
    return None


def upwards(pid: int) -> Iterator[int]:
    """Yield a process and its ancestors, the nearest first."""
    current: int | None = pid
    for _ in range(GENERATIONS):
        if current is None or current <= 1:
            return
        yield current
        current = parent_of(current)


def may_use_cuda(pages: int) -> bool:
    """Return whether a process maps as many pages as one that uses a GPU."""
    return pages * mmap.PAGESIZE >= CUDA_BYTES
