"""TCP segments, errors of network devices and speed of ports, of a process's network namespace."""

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
# of RDMA over Ethernet; segments out of order are not among them: adaptive routing makes those
_HARDWARE_ERRORS = ("packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")
MAX_PORTS = 64
DEVICES = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class NetworkCounts:
    """Totals since boot."""

    sent: int = 0
    retransmitted: int = 0
    errors: int = 0
    speed_gbits: float | None = None  # now, of all ports that are up; None where none tells


def count_network(
    pid: int, infiniband: Path = INFINIBAND, devices: Path = DEVICES
) -> NetworkCounts:
    """Return the totals of the network namespace of a process, and of the ports of the node."""
    tcp = _tcp(read(f"/proc/{pid}/net/snmp").decode(errors="replace"))
    errors = _device_errors(read(f"/proc/{pid}/net/dev").decode(errors="replace"))
    return NetworkCounts(
        tcp.get("OutSegs", 0),
        tcp.get("RetransSegs", 0),
        errors + _port_errors(infiniband),
        _port_speed(infiniband) or _device_speed(devices),
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


def _ports(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/ports/*"))[:MAX_PORTS]


def _port_errors(folder: Path) -> int:
    files = [
        str(port / kind / name)
        for port in _ports(folder)
        for kind, names in (("counters", _PORT_ERRORS), ("hw_counters", _HARDWARE_ERRORS))
        for name in names
    ]
    return sum(_number(path) for path in files)


def _port_speed(folder: Path) -> float | None:
    """Return the speed of all active RDMA ports: `rate` is like `400 Gb/sec (4X NDR)`."""
    rates = []
    for port in _ports(folder):
        rate = read(str(port / "rate")).split()
        if b"ACTIVE" in read(str(port / "state")) and rate and _is_number(rate[0]):
            rates.append(float(rate[0]))
    return sum(rates) if rates else None


def _device_speed(folder: Path) -> float | None:
    """Return the speed of all network cards that are up; `speed` is in Mb/s, -1 if not known."""
    cards = [card for card in sorted(folder.glob("*/device")) if card.exists()][:MAX_PORTS]
    up = [card.parent for card in cards if read(str(card.parent / "operstate")).strip() == b"up"]
    speeds = [speed for card in up if (speed := _number(str(card / "speed"))) > 0]
    return sum(speeds) / 1000 if speeds else None


def _number(path: str) -> int:
    value = read(path).strip()
    return int(value) if value.isdigit() else 0


def _is_number(text: bytes) -> bool:
    return text.replace(b".", b"", 1).isdigit()
