"""The TCP ports on which a process listens, from /proc."""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from ingero.agent.causes.threads import read_all

_LISTEN: Final = b"0A"
MAX_FILES: Final = 65_536  # open files of one process that are looked at
MAX_TABLE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, order=True)
class Listening:
    """A port of this host, with an address that reaches it."""

    port: int
    address: str


class PortTable:
    """What is listened on in each network of this host, read once."""

    def __init__(self) -> None:
        self._networks: dict[int | None, list[tuple[Listening, bytes]]] = {}
        self.denied: set[int] = set()  # processes whose open files may not be read

    def of_process(
        self, pid: int, may_be_asked: Callable[[int], bool] = lambda port: True
    ) -> list[Listening]:
        """Return the ports of one process; empty when it is gone or may not be read.

        Its open files, of which there may be thousands, are looked at only where its network has a
        port that may be asked.
        """
        network = network_of(pid)
        if network not in self._networks:
            self._networks[network] = _listeners(pid)
        wanted = [each for each in self._networks[network] if may_be_asked(each[0].port)]
        try:
            inodes = _sockets_of(pid) if wanted else set()
        except PermissionError:
            self.denied.add(pid)
            return []
        return [at for at, inode in wanted if inode in inodes]


def addresses_of_port(port: int) -> list[str]:
    """Return the addresses of this host at which a port is listened on, by whatever process."""
    return [at.address for at, _ in _listeners("self") if at.port == port]


def _listeners(pid: int | str) -> list[tuple[Listening, bytes]]:
    """Return what is listened on in the network of a process, with the inode of each socket."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in read_all(f"/proc/{pid}/net/{name}", MAX_TABLE_BYTES).split(b"\n")[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN:
                address, _, port = fields[1].decode().partition(":")
                found.add((Listening(int(port, 16), reachable_address(address)), fields[9]))
    return sorted(found)


def reachable_address(text: str) -> str:
    """Return where a socket is reached from its own host: loopback where it listens everywhere."""
    if len(text) == 8:
        four = IPv4Address(struct.pack("=I", int(text, 16)))
        return "127.0.0.1" if four.is_unspecified else str(four)
    words = (int(text[i : i + 8], 16) for i in range(0, 32, 8))
    six = IPv6Address(struct.pack("=4I", *words))
    if six.is_unspecified:
        return "::1"
    return str(six.ipv4_mapped or six)


def network_of(pid: int | str) -> int | None:
    """Return what identifies the network namespace of a process; None when it is gone."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino  # noqa: PTH116 - one call
    except OSError:
        return None


def _sockets_of(pid: int) -> set[bytes]:
    """Return the inodes of the sockets that a process has open; raises PermissionError."""
    folder = f"/proc/{pid}/fd"
    found: set[bytes] = set()
    try:
        names = os.listdir(folder)[:MAX_FILES]  # noqa: PTH208 - thousands of names
    except PermissionError:
        raise
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - one call per file
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1].encode())
    return found
