"""Requests the Flight Recorder dump of a running PyTorch process through the pipe it opened.

The job is not changed: it must have been started with the name of the pipe in its environment. The
pipe is opened without blocking, since the pipe of a dead process would block forever. Paths are
those of the process, resolved through its own root, so containers need nothing special.
"""

import asyncio
import errno
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ingero.agent.processes.discover import process_ids, user_of
from ingero.agent.processes.info import read_environ
from ingero.errors import ForeignFile
from ingero.files import open_regular

PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_DUMP_PREFIX = "/tmp/nccl_trace_rank_"  # noqa: S108 - PyTorch's default, only read
MAX_DUMP_BYTES = 256 << 20
MAX_RANK_DIGITS = 9
MAX_TARGETS_PER_USER = 64
POLL_S = 0.1
SETTLED_POLLS = 3  # polls in a row without growth before a dump counts as complete


class DumpOutcome(StrEnum):
    """The outcome of a request."""

    WRITTEN = "written"
    NO_READER = "no_reader"  # the pipe exists, but no process reads it
    NO_PIPE = "no_pipe"
    BUSY = "busy"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class DumpTarget:
    """The pipe and the dump file of one rank."""

    pid: int
    rank: int
    pipe: Path
    dump: Path


@dataclass(frozen=True, slots=True)
class DumpReply:
    """The content of a dump, or why there is none."""

    target: DumpTarget
    outcome: DumpOutcome
    data: bytes = b""
    detail: str = ""


def find_target(pid: int, proc: Path = Path("/proc")) -> DumpTarget | None:
    """Find the pipe of a process from its environment; None when it has none."""
    variables = read_environ(pid, proc)
    # a rank set by the program itself appears only in the name of the open pipe
    if not _is_rank(variables.get("RANK", "")):
        variables["RANK"] = _rank_by_open_pipe(
            variables.get(PIPE_VARIABLE, ""), proc / str(pid) / "fd"
        )
    return target_of(pid, variables, proc / str(pid) / "root")


def _rank_by_open_pipe(prefix: str, descriptors: Path) -> str:
    try:
        opened = [str(descriptor.readlink()) for descriptor in descriptors.iterdir()]
    except OSError:
        return ""
    named = (
        link[len(prefix) : -len(".pipe")]
        for link in opened
        if link.startswith(prefix) and link.endswith(".pipe")
    )
    return next((rank for rank in named if _is_rank(rank)), "") if prefix else ""


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_RANK_DIGITS


def target_of(pid: int, variables: Mapping[str, str], root: Path) -> DumpTarget | None:
    """Find the pipe from environment variables; `root` is the root folder of the process."""
    prefix, rank = variables.get(PIPE_VARIABLE), variables.get("RANK", "")
    if not prefix or not _is_rank(rank):
        return None
    dump_prefix = next(
        (variables[name] for name in DUMP_VARIABLES if variables.get(name)), DEFAULT_DUMP_PREFIX
    )
    cwd = root.parent / "cwd"

    def seen(path: str) -> Path:
        return root / path.lstrip("/") if path.startswith("/") else cwd / path

    return DumpTarget(pid, int(rank), seen(f"{prefix}{rank}.pipe"), seen(f"{dump_prefix}{rank}"))


def find_targets(pids: Iterable[int] | None = None, proc: Path = Path("/proc")) -> list[DumpTarget]:
    """Find every process that can write a dump, by rank; searches all processes by default.

    The first process of a family opened the pipe. Each user has up to 64 of them.
    """
    if pids is None:
        pids = process_ids(str(proc))
    found: dict[Path, DumpTarget] = {}
    users: Counter[int] = Counter()
    for pid in sorted(pids):
        target = find_target(pid, proc)
        if target is None or target.pipe in found:  # children inherit the environment
            continue
        uid = user_of(pid)
        if users[uid] < MAX_TARGETS_PER_USER and _stamp(target.pipe) is not None:
            users[uid] += 1
            found[target.pipe] = target
    return sorted(found.values(), key=lambda target: target.rank)


async def request_dump(target: DumpTarget, timeout_s: float) -> DumpReply:
    """Request a dump and wait until it has been rewritten and stopped growing."""
    before = _stamp(target.dump)
    outcome, detail = _write(target)
    if outcome is not DumpOutcome.WRITTEN:
        return DumpReply(target, outcome, detail=detail)
    deadline = time.monotonic() + timeout_s
    last, settled = before, 0
    while time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        now = _stamp(target.dump)
        settled = settled + 1 if now == last and now not in (None, before) else 0
        last = now
        if settled >= SETTLED_POLLS:
            return _read(target)
    return DumpReply(
        target, DumpOutcome.TIMED_OUT, detail=f"nothing new in {target.dump} after {timeout_s:g} s"
    )


async def request_dumps(targets: Iterable[DumpTarget], timeout_s: float) -> list[DumpReply]:
    """Request all dumps at once, so that they describe about the same moment."""
    return list(await asyncio.gather(*(request_dump(target, timeout_s) for target in targets)))


def _is_own(target: DumpTarget, status: os.stat_result) -> bool:
    """Return whether a file belongs to the user of the process that names it.

    We may be root: a process must not have us write to or read what it could not.
    """
    return status.st_uid == user_of(target.pid) or os.geteuid() != 0


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _write(target: DumpTarget) -> tuple[DumpOutcome, str]:
    pipe = target.pipe
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return (
                DumpOutcome.NO_READER,
                f"no process reads {pipe}: it ended, or started before this pipe existed",
            )
        if error.errno == errno.ENOENT:
            return DumpOutcome.NO_PIPE, f"{pipe} does not exist"
        return DumpOutcome.REFUSED, f"{pipe}: {error.strerror}"
    try:
        status = os.fstat(fd)
        if not stat.S_ISFIFO(status.st_mode) or not _is_own(target, status):
            return DumpOutcome.REFUSED, f"{pipe} is not a pipe of process {target.pid}"
        os.write(fd, b"1\n")
    except BlockingIOError:
        return DumpOutcome.BUSY, f"{pipe} is full: its process does not read it"
    except BrokenPipeError:
        return DumpOutcome.NO_READER, f"{pipe}: its reader has closed it"
    finally:
        os.close(fd)
    return DumpOutcome.WRITTEN, ""


def _read(target: DumpTarget) -> DumpReply:
    try:
        fd, status = open_regular(str(target.dump))
        with os.fdopen(fd, "rb") as file:
            if not _is_own(target, status) or status.st_size > MAX_DUMP_BYTES:
                detail = f"{target.dump} is not of process {target.pid}, or too large for a dump"
                return DumpReply(target, DumpOutcome.REFUSED, detail=detail)
            return DumpReply(target, DumpOutcome.WRITTEN, data=file.read(MAX_DUMP_BYTES))
    except (OSError, ForeignFile) as error:
        detail = (
            str(error) if isinstance(error, ForeignFile) else f"{target.dump}: {error.strerror}"
        )
        return DumpReply(target, DumpOutcome.REFUSED, detail=detail)
