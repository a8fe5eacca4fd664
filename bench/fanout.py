"""`make bench-fanout`: fan-out to many TLS nodes on loopback, as a command and inside a process.

All nodes live in one other process, so both ends share this machine's cores: compare ratios, and
read the seconds as an upper bound.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bench.table import finish, judge, print_table
from ingero.transport.certificates import kept_certificate
from ingero.transport.fanout.ask import Fanout
from ingero.transport.fanout.client import Question
from ingero.transport.fanout.nodes import FanoutPolicy
from ingero.transport.tls import ClientTls, ServerTls, server_context

SIZES = (50, 500, 2000)
ROWS = 36
SQL = "SELECT operation, p50, p99 FROM ops"


def serve(certificate: str, key: str, count: int, rows: int) -> None:
    """Serve `count` nodes on free ports; print the ports, then answer until the input closes."""
    answer = {
        "columns": ["operation", "p50", "p99"],
        "rows": [["cudaLaunchKernel", i, i * 3.5] for i in range(rows)],
    }
    body = json.dumps(answer).encode()
    reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"

    class Node(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            if data.startswith(b"GET /api/v1/time"):
                content = b'{"timestamp_ns":%d}' % time.time_ns()
            elif data.startswith(b"POST") and not data.endswith(b"}"):
                return  # the body comes in the next packet
            else:
                content = body
            is_last = b"\r\nConnection: close\r\n" in data
            self.transport.write(
                reply % (b"connection: close\r\n" if is_last else b"", len(content), content)
            )
            if is_last:
                self.transport.close()

    async def run() -> None:
        context = server_context(ServerTls(cert=Path(certificate), key=Path(key)))
        loop = asyncio.get_running_loop()
        servers = [
            await loop.create_server(Node, "127.0.0.1", 0, ssl=context, backlog=64)
            for _ in range(count)
        ]
        print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
        await loop.run_in_executor(None, sys.stdin.read)

    uvloop.run(run())


class Nodes:
    """The serving process as a context manager."""

    def __init__(self, tls: ServerTls, count: int, rows: int = ROWS) -> None:
        self.command = [
            sys.executable,
            "-m",
            "bench.fanout",
            "serve",
            str(tls.cert),
            str(tls.key),
            str(count),
            str(rows),
        ]

    def __enter__(self) -> list[str]:
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        return [f"127.0.0.1:{port}" for port in json.loads(self.process.stdout.readline())]

    def __exit__(self, *_: object) -> None:
        self.process.communicate("")


async def inner(nodes: list[str], ca: Path) -> tuple[float, float]:
    """Return the seconds of a first and of a second question inside one process."""
    seconds = []
    async with Fanout(FanoutPolicy(timeout_s=60, tls=ClientTls(ca=ca))) as fanout:
        for _ in range(2):
            begin = time.perf_counter()
            replies = [
                reply
                async for reply in fanout.ask(
                    nodes, Question("/api/v1/query", {"sql": SQL, "limit": 1000})
                )
            ]
            seconds.append(time.perf_counter() - begin)
            assert all(reply.failure is None for reply in replies), replies[0].failure
    return seconds[0], seconds[1]


def whole(nodes: list[str], ca: Path, folder: Path) -> tuple[float, float]:
    """Return seconds and peak memory in MB of the command as a user runs it."""
    config = folder / "ingero.yaml"
    config.write_text("fleet:\n  nodes:\n" + "".join(f"    - {node}\n" for node in nodes))
    command = [
        sys.executable,
        "-m",
        "ingero",
        "query",
        "--ca-cert",
        str(ca),
        "--timeout",
        "60s",
        "--format",
        "csv",
        SQL,
    ]
    environment = os.environ | {"INGERO_CONFIG": str(config)}
    output = folder / "rows.csv"
    begin = time.perf_counter()
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, env=environment)
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.stderr.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    with output.open("rb") as file:
        assert sum(1 for _ in file) >= len(nodes) * ROWS, errors
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    rows, measured = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = kept_certificate(folder / "tls", ["127.0.0.1"])
        for count in SIZES:
            with Nodes(tls, count) as nodes:
                command_s = min(
                    whole(nodes, tls.cert, folder)[0] for _ in range(3 if count <= 500 else 1)
                )
                cold_s, warm_s = uvloop.run(inner(nodes, tls.cert))
            measured[count] = (command_s, cold_s, warm_s)
            rows.append((f"{count} nodes", command_s, cold_s, warm_s, warm_s / cold_s))
        with Nodes(tls, 2000, rows=1000) as nodes:
            _, peak_mb = whole(nodes, tls.cert, folder)
    print_table(
        "fan-out over TLS 1.3 with three clock samples each",
        ("", "command s", "cold s", "warm s", "warm/cold"),
        rows,
    )
    command_s, cold_s, warm_s = measured[500]
    requirements = [
        ("500 nodes in under 1.5 s, the whole command", command_s < 1.5, f"{command_s:.2f} s"),
        (
            "a second question at most 0.3x the first",
            warm_s / cold_s <= 0.3,
            f"{warm_s / cold_s:.2f}x",
        ),
        ("2,000 nodes x 1,000 rows within 300 MB", peak_mb < 300, f"{peak_mb:.0f} MB"),
    ]
    finish(judge(requirements))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
