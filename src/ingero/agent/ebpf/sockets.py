"""Owners of TCP connections among traced processes: a retransmission itself only knows its ports."""

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
    """Ports of the sockets of traced processes, read again when a retransmission comes and the last look is old."""

    def __init__(self) -> None:
        self._owners: dict[Ports, int] = {}
        self._read_at_s = -_MAX_AGE_S

    def fill(self, records: NDArray[np.void], pids: Iterable[int], now_s: float) -> None:
        """Write the owner into TCP records, in place; those of strangers keep pid 0."""
        tcp = np.flatnonzero(records["source"] == Source.TCP)
        if not len(tcp):
            return
        if now_s - self._read_at_s >= _MAX_AGE_S:
            self._owners = {ports: pid for pid in pids for ports in ports_of(pid)}
            self._read_at_s = now_s
        for index in tcp.tolist():
            pid = self._owners.get(int(records["arg1"][index]), 0)
            records["pid"][index] = records["tid"][index] = pid


def ports_of(pid: int) -> list[Ports]:
    """Port pairs of the TCP sockets a process holds; empty when it is gone or closed to us."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")[:_MAX_DESCRIPTORS]  # noqa: PTH208 - thousands of names
    except OSError:
        return []
    inodes = set()
    for descriptor in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH115 - thousands of names
        except OSError:
            continue
        if target.startswith(_SOCKET):
            inodes.add(target[len(_SOCKET) : -1])
    return [ports for inode, ports in _connections(pid) if inode in inodes] if inodes else []


def _connections(pid: int) -> list[tuple[str, Ports]]:
    """(inode, ports) of every connection in the network namespace of a process."""
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
