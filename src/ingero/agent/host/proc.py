"""CPU and memory of this host, from /proc."""

from dataclasses import dataclass
from pathlib import Path

from ingero.errors import Unavailable

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU ticks since boot."""

    busy: int
    total: int


def read_cpu_times(proc: Path = PROC) -> CpuTimes:
    """Read the first line of /proc/stat; idle and iowait are not busy. Raises Unavailable."""
    try:
        fields = (proc / "stat").read_text().split("\n", 1)[0].split()
        numbers = [int(field) for field in fields[1:9]]  # guest time is part of user time already
    except (OSError, ValueError, IndexError):
        raise Unavailable(f"{proc / 'stat'} cannot be read") from None
    if fields[0] != "cpu" or len(numbers) < 5:
        raise Unavailable(f"{proc / 'stat'} does not start with the cpu line")
    total = sum(numbers)
    return CpuTimes(total - numbers[3] - numbers[4], total)


def cpu_availability(before: CpuTimes | None, now: CpuTimes) -> float:
    """Return the share of CPU time not used since `before`; 1.0 without a `before`."""
    if before is None or now.total <= before.total:
        return 1.0
    return min(max(1.0 - (now.busy - before.busy) / (now.total - before.total), 0.0), 1.0)


def read_meminfo(proc: Path = PROC) -> dict[str, int]:
    """Return the fields of /proc/meminfo in KiB."""
    found = {}
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        value = rest.split()
        if value and value[0].isdigit():
            found[name] = int(value[0])
    return found


def host_memory_headroom(proc: Path = PROC) -> float:
    """Return MemAvailable as a share of MemTotal. Raises Unavailable."""
    try:
        found = read_meminfo(proc)
        total, available = found["MemTotal"], found["MemAvailable"]
    except (OSError, KeyError):
        raise Unavailable(f"{proc / 'meminfo'} cannot be read") from None
    return min(max(available / total, 0.0), 1.0) if total > 0 else 0.0
