"""Processes under load: start, wait, CPU time of the scheduler, memory, and the load generator."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def loadgen() -> Path:
    """Return the compiled load generator, built when its source is newer."""
    source, binary = (
        HERE / "loadgen.c",
        Path(tempfile.gettempdir()) / f"ingero-loadgen-{os.getuid()}",
    )
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-O2", "-o", str(binary), str(source)], check=True)
    return binary


@contextlib.contextmanager
def server(command: list[str], port: int, env: dict[str, str] | None = None) -> Iterator[int]:
    """Start a child that listens on `port`, and yield its pid."""
    child = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
    )
    try:
        for _ in range(300):
            if child.poll() is not None:
                raise SystemExit(f"{command[0]} ended with {child.returncode} before it listened")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                break
            time.sleep(0.1)
        else:
            raise SystemExit(f"{command[0]} did not listen on {port}")
        time.sleep(0.3)
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads, with nanosecond resolution."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e9


def rss_mb(pid: int) -> float:
    line = next(
        li for li in Path(f"/proc/{pid}/status").read_text().splitlines() if li.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024


def load(
    port: int, pid: int, requests: Path, rate: float, seconds: float, connections: int
) -> dict[str, Any]:
    """Run the load generator once, and add the server's CPU per request."""
    before = cpu_s(pid)
    command = [str(loadgen()), str(port), str(connections), str(rate), str(seconds), str(requests)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(ended.stdout)
    result["cpu_us"] = (cpu_s(pid) - before) / result["done"] * 1e6
    return result


def write_requests(
    path: Path, bodies: list[bytes], content_type: str, target: str, packed: str = ""
) -> Path:
    """Write requests in the format of the load generator; `packed` is their Content-Encoding."""
    encoding = f"Content-Encoding: {packed}\r\n" if packed else ""
    with path.open("wb") as file:
        for body in bodies:
            head = (
                f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\n"
                f"Content-Type: {content_type}\r\n{encoding}"
                f"Content-Length: {len(body)}\r\n\r\n"
            ).encode()
            file.write(struct.pack("<I", len(head) + len(body)) + head + body)
    return path


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]
