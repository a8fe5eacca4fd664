"""What a child process may use: it limits itself before it reads anything of a stranger."""

import resource
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = resource.getpagesize()
_CPU_GRACE_S = 2  # between the signal that names the reason and the one that cannot be ignored


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Memory beyond what the program itself takes, CPU time, and time on the clock."""

    memory_bytes: int
    cpu_s: int
    wall_s: float


def limit_this_process(limits: ChildLimits) -> None:
    """Called in a child: the kernel refuses more memory, and ends it after its CPU time.

    Address space is what can be limited; what the program has mapped so far is not counted.
    """
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES
    _lower(resource.RLIMIT_AS, mapped + limits.memory_bytes)
    _lower(resource.RLIMIT_CPU, limits.cpu_s, _CPU_GRACE_S)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(kind: int, value: int, grace: int = 0) -> None:
    """Set a limit, unless a lower one is in force."""
    soft, hard = (
        limit if limit != resource.RLIM_INFINITY else value + grace
        for limit in resource.getrlimit(kind)
    )
    resource.setrlimit(kind, (min(value, soft), min(value + grace, hard)))
