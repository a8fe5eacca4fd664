"""A TCP proxy to PostgreSQL that breaks a connection at the COMMIT of what it has written.

It is a process of its own: DuckDB holds the lock of the interpreter while it waits for PostgreSQL.
"""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

COMMIT = b"COMMIT"


class CommitCutter:
    """The proxy as a test sees it; `port` is where to connect."""

    def __init__(self, target_port: int) -> None:
        command = [sys.executable, __file__, str(target_port)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, text=True, bufsize=1, **pipes)  # type: ignore[call-overload]
        self.port = int(self._hear())

    def arm(self, *, late: bool) -> None:
        """Break the connection that sends the next COMMIT, whose reply nobody hears.

        With `late` it reaches PostgreSQL once `let_pass` is called, else before that.
        """
        self._ask("late" if late else "now")

    def let_pass(self) -> None:
        """Deliver what was held back, as a network may that was away for a while."""
        self._ask("pass")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        assert self._hear() == what

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return str(self._process.stdout.readline()).strip()


@contextlib.contextmanager
def commit_cutter(port: int) -> Iterator[CommitCutter]:
    """Run a proxy for the time of a test."""
    cutter = CommitCutter(port)
    try:
        yield cutter
    finally:
        cutter.close()


class _Proxy:
    """The process itself."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._armed = ""
        self._held: list[tuple[socket.socket, bytes]] = []

    def run(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        for line in sys.stdin:
            if line.strip() == "pass":
                self._let_pass()
            else:
                self._armed = line.strip()
            print(line, end="", flush=True)

    def _let_pass(self) -> None:
        for server, data in self._held:
            with contextlib.suppress(OSError):
                server.sendall(data)
                server.recv(1)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(self._target)
            for pump in (self._to_server, self._to_client):
                threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        has_written = False
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                has_written |= b"INSERT" in data
                if self._armed and has_written and COMMIT in data:
                    is_late, self._armed = self._armed == "late", ""
                    client.shutdown(socket.SHUT_WR)  # no reply comes back
                    if is_late:
                        self._held.append((server, data))
                    else:
                        server.sendall(data)
                    client.shutdown(socket.SHUT_RDWR)
                    return
                has_written &= COMMIT not in data
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _to_client(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    _Proxy(int(sys.argv[1])).run()
