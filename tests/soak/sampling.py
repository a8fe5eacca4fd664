"""What a process holds at a moment, read from /proc: memory, file handles, threads, disk, CPU."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from tests.support.cpu_time import cpu_s


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment; a pid is one life of a service."""

    at_s: float
    name: str
    pid: int
    rss_bytes: int
    handles: int
    threads: int
    disk_bytes: int
    cpu_s: float
    buffer_bytes: int = 0  # the part of its memory that is a cache with a limit

    @property
    def held_bytes(self) -> int:
        """Memory that nothing but the code of the process limits."""
        return self.rss_bytes - self.buffer_bytes


def sample(
    at_s: float, name: str, pid: int, disk: Path | None, buffer_bytes: int = 0
) -> Sample | None:
    """Read a process and the folder or file that belongs to it; None if it has ended."""
    process = Path(f"/proc/{pid}")
    try:
        lines = (process / "status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        rss_kib = int(status["VmRSS"].split()[0])  # missing in a process that has just ended
        handles = sum(1 for _ in (process / "fd").iterdir())
        spent_s = cpu_s(pid)
    except (OSError, KeyError):
        return None
    threads = int(status["Threads"])
    held = disk_bytes(disk) if disk else 0
    return Sample(at_s, name, pid, rss_kib * 1024, handles, threads, held, spent_s, buffer_bytes)


def disk_bytes(path: Path) -> int:
    """Return the blocks that a file, or every file below a folder, takes."""
    total = 0
    for each in [path, *path.rglob("*")] if path.is_dir() else path.parent.glob(path.name + "*"):
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            total += each.lstat().st_blocks * 512
    return total
