"""The capabilities that tracing needs, and what each missing one costs."""

from pathlib import Path
from typing import Final

STATUS: Final = Path("/proc/self/status")
# name -> (bit, what does not work without it)
CAPABILITIES: Final[dict[str, tuple[int, str]]] = {
    "CAP_BPF": (39, "no probe can be loaded: nothing is traced"),
    "CAP_PERFMON": (38, "no probe can be attached: nothing is traced"),
    "CAP_SYS_PTRACE": (
        19,
        "processes of other users cannot be read: they are not traced",
    ),
}
OPTIONAL_CAPABILITIES: Final = frozenset({"CAP_SYS_PTRACE"})  # tracing starts without these
_SYS_ADMIN: Final = 1 << 21  # required by older kernels instead of BPF and PERFMON


def missing_capabilities(status: Path = STATUS) -> list[str]:
    """Return the names of `CAPABILITIES` that are not effective."""
    effective = 0
    for line in status.read_text().splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
    stands_in = {"CAP_BPF", "CAP_PERFMON"} if effective & _SYS_ADMIN else set()
    return [
        name
        for name, (bit, _) in CAPABILITIES.items()
        if not effective >> bit & 1 and name not in stands_in
    ]


def is_filtered(status: Path) -> bool:
    """Return whether a seccomp filter decides which system calls this process may make."""
    for line in status.read_text().splitlines():
        if line.startswith("Seccomp:"):
            return line.split()[1] == "2"
    return False
