"""F129: whose connection a retransmission belongs to."""

import os
import socket
import subprocess

from ingero.agent.ebpf import sockets
from ingero.agent.ebpf.sockets import find_owners


def test_connection_belongs_to_the_first_process_that_holds_it(monkeypatch) -> None:
    """A child inherits sockets; the table of a network is read once for all its processes."""
    reads, read = [], sockets._connections
    monkeypatch.setattr(sockets, "_connections", lambda pid: reads.append(pid) or read(pid))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        child = subprocess.Popen(["sleep", "60"], pass_fds=[client.fileno()])
        try:
            ports = client.getsockname()[1] << 16 | server.getsockname()[1]
            assert find_owners([os.getpid(), child.pid, 2**22 + 1])[ports] == os.getpid()
            assert reads == [os.getpid()]
            assert find_owners([child.pid, os.getpid()])[ports] == child.pid
        finally:
            child.kill()
            child.wait()
