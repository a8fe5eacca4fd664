"""Inference engines on this node: the process that works, and the one above it with the port.

A process that maps libcuda, or whose name is that of a known engine, is where the search begins. It
goes up to the parent that listens, because engines rename their children and replace their command
lines.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ingero.agent.causes.threads import read_all
from ingero.agent.engines.names import CommandLine, may_be_asked, read_command_line
from ingero.agent.engines.ports import Listening, listening_ports
from ingero.agent.processes.discover import (
    mapped_pages,
    parent_of,
    process_ids,
    running_since,
)
from ingero.agent.processes.maps import read_maps

GENERATIONS: Final = 8  # between a worker and the process with the port
MAX_COMMAND: Final = 1 << 16
# CUDA reserves address space of this size, so that the mappings of smaller processes are not read
CUDA_PAGES: Final = (4 << 30) // 4096
MAX_REMEMBERED: Final = 4096
MAX_CANDIDATES: Final = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process that listens and may be an engine, with the ports that may be asked."""

    pid: int
    start_time: int
    ports: tuple[Listening, ...]
    line: CommandLine
    uses_gpu: bool


class EngineFinder:
    """Looks for engines; remembers which processes map libcuda, because that is slow to read."""

    def __init__(self) -> None:
        self._cuda: dict[int, tuple[int, int, bool]] = {}  # start, pages, whether it maps libcuda

    def find(self) -> list[Candidate]:
        """Return the processes that may be engines, each once, at most MAX_CANDIDATES."""
        found: dict[int, Candidate] = {}
        seen: dict[int, tuple[int, int, bool]] = {}
        for pid in process_ids():
            started = running_since(pid)
            if started is None:
                continue
            line = command_line_of(pid)
            uses_gpu = self._maps_cuda(pid, started, seen)
            if (line.kind is None and not uses_gpu) or len(found) >= MAX_CANDIDATES:
                continue
            candidate = _listener_above(pid, uses_gpu)
            if candidate is not None:
                before = found.get(candidate.pid)
                if before is None or uses_gpu:
                    found[candidate.pid] = candidate
        self._cuda = dict(list(seen.items())[:MAX_REMEMBERED])
        return list(found.values())

    def _maps_cuda(self, pid: int, started: int, seen: dict[int, tuple[int, int, bool]]) -> bool:
        pages = mapped_pages(pid) or 0
        if pages < CUDA_PAGES:
            return False
        known = self._cuda.get(pid)
        if known is not None and known[:2] == (started, pages):
            seen[pid] = known
        else:
            seen[pid] = (started, pages, "/libcuda.so" in read_maps(pid))
        return seen[pid][2]


def command_line_of(pid: int) -> CommandLine:
    """Return what the command line of a process says; nothing when it is gone."""
    return read_command_line(arguments_of(pid))


def arguments_of(pid: int) -> list[str]:
    """Return the arguments of a process."""
    text = read_all(f"/proc/{pid}/cmdline", MAX_COMMAND).rstrip(b"\0 ")
    return [each.decode(errors="replace") for each in text.split(b"\0")] if text else []


def _listener_above(pid: int, uses_gpu: bool) -> Candidate | None:
    """Return the first process from `pid` upwards that is a known server or listens for it."""
    for each in _upwards(pid):
        line = command_line_of(each)
        if line.kind is not None and not line.is_server:
            continue  # a renamed child; its ports are for its siblings
        ports = tuple(port for port in listening_ports(each) if may_be_asked(port.port, line))
        started = running_since(each)
        if ports and started is not None:
            # the port of the command line is asked first
            ordered = sorted(ports, key=lambda one: (one.port != line.port, one))
            return Candidate(each, started, tuple(ordered), line, uses_gpu)
    return None


def _upwards(pid: int) -> Iterator[int]:
    current: int | None = pid
    for _ in range(GENERATIONS):
        if current is None or current <= 1:
            return
        yield current
        current = parent_of(current)
