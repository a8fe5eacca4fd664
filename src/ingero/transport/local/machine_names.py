"""The names and addresses of this machine, for certificates and for checks of the Host header."""

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ingero.transport.listen import EVERYWHERE

_SIOCGIFADDR: Final = 0x8915


def local_names(node: str | None, bound: Sequence[str] = ()) -> list[str]:
    """Return the names for a certificate of this machine: node, host, loopback, bound addresses."""
    names = [
        node or socket.gethostname(),
        socket.gethostname(),
        "localhost",
        "127.0.0.1",
        "::1",
        *bound,
    ]
    return list(dict.fromkeys(name for name in names if name not in EVERYWHERE))


def machine_addresses() -> list[str]:
    """Return the addresses of this machine that another machine could use."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):  # no IPv6
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
        found += [
            socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])) for line in lines
        ]
    parsed = [ipaddress.ip_address(text) for text in found]
    return [
        str(address) for address in parsed if not (address.is_loopback or address.is_link_local)
    ]
