"""What the cgroups of a process did to it: CPU quota, memory and I/O pressure; v1 and v2."""

from dataclasses import dataclass
from pathlib import Path

from ingero.agent.causes.threads import PROC, read
from ingero.agent.processes.info import cgroup_root

MAX_DEPTH = 16  # of a cgroup below the root
V1_CPU = Path("/sys/fs/cgroup/cpu")


@dataclass(frozen=True, slots=True)
class CgroupCounts:
    """Totals since the cgroups were made; None where the kernel does not count."""

    throttled_ns: int = 0
    throttled_periods: int = 0
    periods: int = 0
    memory_stall_us: int | None = None
    io_stall_us: int | None = None


def cgroup_paths(pid: int) -> dict[str, str]:
    """Return the path of a process by controller; that of v2 has an empty name."""
    found = {}
    for line in read(f"/proc/{pid}/cgroup").decode(errors="replace").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(","):
            found[name] = path
    return found


def count_cgroups(pid: int, root: Path | None = None, v1: Path = V1_CPU) -> CgroupCounts:
    """Return the totals of the cgroup of a process; its strictest ancestor gives the quota."""
    paths, root = cgroup_paths(pid), root or cgroup_root(PROC)
    quotas = [_quota(folder) for folder in _lineage(root, paths.get(""))]
    quotas += [_quota(folder) for folder in _lineage(v1, paths.get("cpu"))]
    throttled = max(quotas, default=(0, 0, 0))
    own = next(iter(_lineage(root, paths.get(""))), None)
    return CgroupCounts(
        *throttled,
        memory_stall_us=_stall_us(own, "memory.pressure"),
        io_stall_us=_stall_us(own, "io.pressure"),
    )


def _lineage(root: Path, path: str | None) -> list[Path]:
    """Return the folders from a cgroup up to, but without, the root."""
    parts = [part for part in (path or "").split("/") if part and part != ".."][:MAX_DEPTH]
    return [root.joinpath(*parts[:depth]) for depth in range(len(parts), 0, -1)]


def _quota(folder: Path) -> tuple[int, int, int]:
    """Return throttled nanoseconds, throttled periods and all periods."""
    fields = {}
    for line in read(str(folder / "cpu.stat")).decode(errors="replace").splitlines():
        name, _, value = line.partition(" ")
        fields[name] = int(value) if value.isdigit() else 0
    throttled_ns = fields.get("throttled_usec", 0) * 1000 or fields.get("throttled_time", 0)
    return throttled_ns, fields.get("nr_throttled", 0), fields.get("nr_periods", 0)


def _stall_us(folder: Path | None, name: str) -> int | None:
    if folder is None:
        return None
    text = read(str(folder / name)).decode(errors="replace")
    _, found, rest = text.partition("total=")
    total = rest.split()[0] if found and rest.split() else ""
    return int(total) if total.isdigit() else None
