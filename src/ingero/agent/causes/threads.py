"""Threads of a process as the kernel counts and shows them, from /proc."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero.core.causes.profile import Doing

PROC: Final = Path("/proc")
MAX_THREADS: Final = 512
# Threads that carry the training loop: the main one, and those that run PyTorch's backward pass.
_DRIVERS: Final = "pt_autograd"
# Numbers of system calls by machine: futex, and those that read, sleep or wait for a child.
_SYSCALLS: Final = {
    "x86_64": (202, {0: Doing.READS, 17: Doing.READS, 19: Doing.READS, 295: Doing.READS,
                     35: Doing.SLEEPS, 230: Doing.SLEEPS, 61: Doing.CHILD, 247: Doing.CHILD,
                     74: Doing.DISK, 75: Doing.DISK}),
    "aarch64": (98, {63: Doing.READS, 67: Doing.READS, 65: Doing.READS, 69: Doing.READS,
                     101: Doing.SLEEPS, 115: Doing.SLEEPS, 260: Doing.CHILD, 95: Doing.CHILD,
                     82: Doing.DISK, 83: Doing.DISK}),
}  # fmt: skip
_FUTEX, _CALLS = _SYSCALLS.get(os.uname().machine, (-1, {}))


@dataclass(frozen=True, slots=True)
class ThreadCounts:
    """What the kernel counted of the threads that carry the training loop."""

    run_ns: int = 0
    wait_ns: int = 0
    involuntary: int = 0
    major_faults: int = 0
    disk_ticks: int = 0  # 0 where delays are not accounted


@dataclass(frozen=True, slots=True)
class ThreadState:
    """One thread at one moment; `is_timed` is a wait for a futex that ends by itself."""

    doing: Doing
    is_timed: bool = False


def read(path: str) -> bytes:
    """Return a file of /proc; empty when the process is gone or may not be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(file)


def read_all(path: str, most: int) -> bytes:
    """Return a longer file of /proc, up to `most` bytes; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a kernel file
            return file.read(most)
    except OSError:
        return b""


def thread_ids(pid: int) -> list[int]:
    """Return the threads of a process, at most MAX_THREADS."""
    try:
        names = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - read often, no Path objects wanted
    except OSError:
        return []
    return sorted(int(name) for name in names)[:MAX_THREADS]


def comm_of(pid: int, tid: int | None = None) -> str:
    """Return the name of a process or thread; empty when it is gone."""
    path = f"/proc/{pid}/comm" if tid is None else f"/proc/{pid}/task/{tid}/comm"
    return read(path).decode(errors="replace").strip()


def driving_threads(pid: int) -> list[int]:
    """Return the threads that carry the training loop: the main one and the backward pass."""
    return [tid for tid in thread_ids(pid) if tid == pid or comm_of(pid, tid).startswith(_DRIVERS)]


def count_threads(pid: int, tids: Sequence[int]) -> ThreadCounts | None:
    """Return the kernel's counters of some threads so far; None when the threads are gone."""
    total, is_there = [0] * 5, False
    for tid in tids:
        folder = f"/proc/{pid}/task/{tid}"
        times = read(f"{folder}/schedstat").split()
        fields = read(f"{folder}/stat").rpartition(b")")[2].split()
        if len(times) < 2 or len(fields) < 40:
            continue
        is_there = True
        values = (int(times[0]), int(times[1]), _involuntary(folder), int(fields[9]))
        total = [one + more for one, more in zip(total, (*values, int(fields[39])), strict=True)]
    return ThreadCounts(*total) if is_there else None


def _involuntary(folder: str) -> int:
    _, found, rest = read(f"{folder}/status").partition(b"nonvoluntary_ctxt_switches:")
    return int(rest.split()[0]) if found else 0


def see_thread(pid: int, tid: int) -> ThreadState | None:
    """Return what a thread does now; None when it is gone.

    Without the right to read its system call, all that is known of a sleeping thread is that it
    waits.
    """
    folder = f"/proc/{pid}/task/{tid}"
    fields = read(f"{folder}/stat").rpartition(b")")[2].split()
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    if fields[0] == b"R":
        return ThreadState(Doing.RUNS)
    call = read(f"{folder}/syscall").split()
    if call and call[0].lstrip(b"-").isdigit():
        number = int(call[0])
        if number == _FUTEX:
            return ThreadState(Doing.LOCK, len(call) > 4 and int(call[4], 16) != 0)
        if number in _CALLS:
            return ThreadState(_CALLS[number])
    return ThreadState(Doing.DISK if fields[0] == b"D" else Doing.WAITS)


def children_of(pid: int) -> list[int]:
    """Return the child processes of a process, such as the workers of a data loader."""
    found: list[int] = []
    for tid in driving_threads(pid)[:1]:
        found += map(int, read(f"/proc/{pid}/task/{tid}/children").split())
    return found
