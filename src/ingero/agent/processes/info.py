"""Name, rank and container of a traced process, from /proc; empty values when it is gone."""

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingero.agent.host.identity import container_id, parse_cgroup_path
from ingero.agent.processes.discover import start_time
from ingero.core.chains.neighbours import Neighbour

PROC = Path("/proc")
CGROUP_ROOT = Path("/sys/fs/cgroup")
MAX_ENVIRON_BYTES = 1 << 20
MAX_PROCESSES = 4096
FLAGS_FIELD = 6  # of /proc/PID/stat, counted after the name
PF_KTHREAD = 0x00200000
MAX_JOB_BYTES = 253  # as every identity that is pushed
# set by launchers, best first; agent/nccl/ring.c reads the same variables
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# how manifests name the downward API's metadata.name
POD_VARIABLES = ("POD_NAME", "K8S_POD_NAME", "KUBERNETES_POD_NAME", "MY_POD_NAME")
_IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"  # set by the kubelet in every container
# `python [options] -m ingero…`, or the path of one of its scripts
_OURS = re.compile(
    rb"[^\0]*python[0-9.]*\0(-[^mc\0][^\0]*\0)*"
    rb"(-m\0ingero[.\0]|([^\0-][^\0]*/)?ingero(-fleet|-echo)?\0)"
)
_POD = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
# torchrun without an id sets "none"
JOB_VARIABLES = (
    "INGERO_JOB_ID",
    "SLURM_JOB_ID",
    "TORCHELASTIC_RUN_ID",
)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process. Ranks are None when the job did not set them: None is not rank 0."""

    pid: int
    start_time: int
    name: str
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    job: str | None = None
    cgroup_id: int = 0
    cgroup_path: str = ""
    uid: int | None = None
    is_kernel: bool = False
    is_ours: bool = False

    @property
    def container_id(self) -> str:
        return container_id(self.cgroup_path)


def read_process(pid: int, proc: Path = PROC) -> ProcessInfo:
    """Read a process now."""
    folder = proc / str(pid)
    environ = read_environ(pid, proc)
    path = parse_cgroup_path(_read_bytes(folder / "cgroup").decode(errors="replace"))
    return ProcessInfo(
        pid=pid,
        start_time=start_time(pid) or 0,
        name=_read_bytes(folder / "comm").decode(errors="replace").strip(),
        rank=_first_number(environ, RANK_VARIABLES),
        local_rank=_first_number(environ, LOCAL_RANK_VARIABLES),
        world_size=_first_number(environ, WORLD_SIZE_VARIABLES),
        job=_job(environ),
        cgroup_id=_inode(cgroup_root(proc) / path.lstrip("/")) if path else 0,
        cgroup_path=path,
        uid=_owner(folder),
        is_kernel=_is_kernel_thread(folder),
        is_ours=_is_ours(_read_bytes(folder / "cmdline")),
    )


def cgroup_root(proc: Path = PROC) -> Path:
    """Return where the cgroup2 hierarchy is mounted, to which the kernel's cgroup ids belong.

    It may be mounted elsewhere beside cgroup v1 hierarchies.
    """
    for line in _read_bytes(proc / "mounts").decode(errors="replace").split("\n"):
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return Path(fields[1])
    return CGROUP_ROOT


def read_environ(pid: int, proc: Path = PROC) -> dict[str, str]:
    """Return the first megabyte of the environment that a process was started with.

    It is empty when the process is gone or may not be read.
    """
    return parse_environ(_read_bytes(proc / str(pid) / "environ"))


def parse_environ(block: bytes) -> dict[str, str]:
    """Parse a NUL-separated environment; the first of two equal names counts, as for getenv."""
    found: dict[str, str] = {}
    for entry in block.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals:
            found.setdefault(name.decode(errors="replace"), value.decode(errors="replace"))
    return found


def pod_of(pid: int, proc: Path = PROC) -> str:
    """Return the name of the pod that a process runs in; empty where it is not known.

    In a pod the host name is that of the pod, except where it shares the network of its node.
    """
    environ = read_environ(pid, proc)
    names = [environ.get(name, "") for name in POD_VARIABLES]
    if _IN_KUBERNETES in environ and environ.get("HOSTNAME") != os.uname().nodename:
        names.append(environ.get("HOSTNAME", ""))
    return next((name for name in names if _POD.fullmatch(name)), "")


class ProcessCache:
    """Processes of this recording, each read once."""

    def __init__(self, read: Callable[[int], ProcessInfo] = read_process) -> None:
        self._read = read
        self._known: OrderedDict[int, ProcessInfo] = OrderedDict()
        self._stale: set[int] = set()
        self.fresh: list[ProcessInfo] = []

    def get(self, pid: int) -> ProcessInfo:
        """Return a process from the cache.

        A new pid, or one marked stale, is read from /proc and added to `fresh`.
        """
        info = self._known.get(pid)
        if info is not None and pid not in self._stale:
            return info
        self._stale.discard(pid)
        now = self._read(pid)
        if info is not None and not now.name:
            return info  # it is gone: late events still belong to the cached process
        self._known[pid] = now
        self.fresh.append(now)
        if len(self._known) > MAX_PROCESSES:
            self._stale.discard(self._known.popitem(last=False)[0])
        return now

    def mark_stale(self, pid: int) -> None:
        """Read the process again next time: it ran another program, or its pid may be reused."""
        if pid in self._known:
            self._stale.add(pid)

    def neighbours(self) -> dict[int, Neighbour]:
        """Return what advice needs to know of each process, by pid."""
        return {
            pid: Neighbour(info.name, info.uid, info.is_kernel, info.cgroup_path, info.is_ours)
            for pid, info in self._known.items()
            if info.name
        }

    def names(self) -> dict[int, str]:
        """Return process names by pid."""
        return {pid: info.name for pid, info in self._known.items() if info.name}


def _is_ours(command_line: bytes) -> bool:
    """Return whether Python runs Ingero there; such a process is named `python`."""
    return bool(_OURS.match(command_line))


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None


def _is_kernel_thread(folder: Path) -> bool:
    """Return whether the kernel says so in the flags of the process."""
    fields = _read_bytes(folder / "stat").rpartition(b")")[2].split()
    return len(fields) > FLAGS_FIELD and bool(int(fields[FLAGS_FIELD]) & PF_KTHREAD)


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_ENVIRON_BYTES)
    except OSError:
        return b""


def _first_number(environ: Mapping[str, str], names: Sequence[str]) -> int | None:
    values = (environ.get(name, "") for name in names)
    return next(
        (int(text) for text in values if text.isascii() and text.isdigit() and len(text) <= 9), None
    )


def _job(environ: Mapping[str, str]) -> str | None:
    """Return the id of the job; one that is too long or holds control characters is unknown."""
    values = (environ.get(name, "") for name in JOB_VARIABLES)
    job = next((value for value in values if value not in ("", "none")), "")
    is_usable = job.isprintable() and len(job.encode()) <= MAX_JOB_BYTES
    return job if job and is_usable else None


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - a container's path may not be visible here
    except OSError:
        return 0
