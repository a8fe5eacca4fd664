"""Owners of TCP connections among traced processes: a retransmission carries only its ports."""

import os
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import Source

_MAX_AGE_S: Final = 1.0
_MAX_DESCRIPTORS: Final = 4096
_SOCKET: Final = "socket:["

Ports = int  # local << 16 | remote, as the probe writes it


class SocketOwners:
    """Ports of the sockets of traced processes.

    They are read again when a retransmission arrives and the last read is old.
    """

    def __init__(self) -> None:
        self._owners: dict[Ports, int] = {}
        self._read_at_s = -_MAX_AGE_S

    def fill(self, records: NDArray[np.void], pids: Iterable[int], now_s: float) -> None:
        """Write the owner into TCP records in place; connections of other processes keep pid 0."""
        tcp = np.flatnonzero(records["source"] == Source.TCP)
        if not len(tcp):
            return
        if now_s - self._read_at_s >= _MAX_AGE_S:
            self._owners = find_owners(pids)
            self._read_at_s = now_s
        for index in tcp.tolist():
            pid = self._owners.get(int(records["arg1"][index]), 0)
            records["pid"][index] = records["tid"][index] = pid


def find_owners(pids: Iterable[int]) -> dict[Ports, int]:
    """Return processes by the port pairs of the TCP sockets they hold.

    Where several processes share a socket, the first one counts, since children inherit what their
    parent opened. Processes that ended or cannot be read have none.
    """
    owners: dict[Ports, int] = {}
    # by network namespace: tables are long, and most processes share one
    tables: dict[str, list[tuple[str, Ports]]] = {}
    for pid in pids:
        inodes = _socket_inodes(pid)
        if not inodes:
            continue
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115 - one call
        except OSError:
            continue
        if namespace not in tables:
            tables[namespace] = _connections(pid)
        for inode, ports in tables[namespace]:
            if inode in inodes:
                owners.setdefault(ports, pid)
    return owners


def _socket_inodes(pid: int) -> set[str]:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")[:_MAX_DESCRIPTORS]  # noqa: PTH208 - thousands of names
    except OSError:
        return set()
    inodes = set()
    for descriptor in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH115 - thousands of names
        except OSError:
            continue
        if target.startswith(_SOCKET):
            inodes.add(target[len(_SOCKET) : -1])
    return inodes


def _connections(pid: int) -> list[tuple[str, Ports]]:
    """Return (inode, ports) of every connection in the network namespace of a process."""
    found = []
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}") as file:  # noqa: PTH123 - a kernel file, read whole
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            local, remote = (int(fields[column].rpartition(":")[2], 16) for column in (1, 2))
            found.append((fields[9], local << 16 | remote))
    return found
