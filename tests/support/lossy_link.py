"""Sends data over a lossy link: run it in a network namespace of its own.

    unshare -n python lossy_link.py

The loopback device gets a queue that holds less than a TCP window, so that it drops segments.
Prints sent and retransmitted segments before and after.
"""

import os
import socket
import subprocess
import sys
import threading

from ingero.agent.causes.network import count_network

NO_SHAPING = 77
COMMANDS = (
    "ip link set lo up mtu 1500",
    "tc qdisc add dev lo root tbf rate 40mbit burst 20k limit 20k",
)
BYTES = 2 << 20


def drain(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    while connection.recv(1 << 16):
        pass


def main() -> None:
    for command in COMMANDS:
        if subprocess.run(command.split(), check=False, capture_output=True).returncode:
            sys.exit(NO_SHAPING)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=drain, args=(listener,), daemon=True).start()
    tell()
    with socket.create_connection(listener.getsockname(), timeout=20) as sender:
        sender.sendall(bytes(BYTES))
    tell()


def tell() -> None:
    counts = count_network(os.getpid())
    print(counts.sent, counts.retransmitted)


if __name__ == "__main__":
    main()
