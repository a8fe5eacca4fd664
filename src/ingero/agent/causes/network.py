"""TCP segments and errors of network devices, as a process sees them in its network namespace."""

from dataclasses import dataclass
from pathlib import Path

from ingero.agent.causes.threads import read

INFINIBAND = Path("/sys/class/infiniband")
_PORT_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
)
MAX_PORTS = 64


@dataclass(frozen=True, slots=True)
class NetworkCounts:
    """Totals since boot."""

    sent: int = 0
    retransmitted: int = 0
    errors: int = 0


def count_network(pid: int, infiniband: Path = INFINIBAND) -> NetworkCounts:
    """Return the totals of the network namespace of a process, and of InfiniBand ports."""
    tcp = _tcp(read(f"/proc/{pid}/net/snmp").decode(errors="replace"))
    errors = _device_errors(read(f"/proc/{pid}/net/dev").decode(errors="replace"))
    return NetworkCounts(
        tcp.get("OutSegs", 0), tcp.get("RetransSegs", 0), errors + _port_errors(infiniband)
    )


def _tcp(text: str) -> dict[str, int]:
    lines = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    if len(lines) < 2:
        return {}
    return {
        name: int(value)
        for name, value in zip(lines[0][1:], lines[1][1:], strict=False)
        if value.lstrip("-").isdigit()
    }


def _device_errors(text: str) -> int:
    """Return errors and drops of both directions, without the loopback device."""
    total = 0
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and name.strip() != "lo" and len(fields) >= 12:
            total += sum(int(fields[index]) for index in (2, 3, 10, 11) if fields[index].isdigit())
    return total


def _port_errors(folder: Path) -> int:
    total = 0
    for port in sorted(folder.glob("*/ports/*"))[:MAX_PORTS]:
        for name in _PORT_ERRORS:
            value = read(str(port / "counters" / name)).strip()
            total += int(value) if value.isdigit() else 0
    return total
