"""Replicas of Fleet as real processes, and senders that find another one when theirs is gone."""

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.pushes import protobuf
from tests.support.verdict_pushes import own_time_push

from ingero.contract.otlp.codec import encode_protobuf

ANY = ("--grpc", "off", *(w for n in ("http", "agent", "admin", "health") for w in (f"--{n}", "0")))
WIRES = 48  # connections of all nodes together
_A_TIME = 0x1D5AFEC0FFEE0117  # stands for the time of a push in those that are prepared
HEAD = (
    b"POST /v1/metrics?cluster_id=train HTTP/1.1\r\nHost: fleet\r\n"
    b"Content-Type: application/x-protobuf\r\nContent-Length: %d\r\n\r\n"
)


class Replica:
    """One `ingero-fleet`; it can be killed and started again with the same name and ports."""

    def __init__(self, name: str, url: str, folder: Path, **config: Any) -> None:
        self.name = name
        self.path = folder / f"{name}.json"
        mapping = {
            "cluster_log": {"url": url, "replica": name},
            "exporters": {"prometheus": {"endpoint": "127.0.0.1:0"}},
            **config,
        }
        self.path.write_text(json.dumps(mapping))
        self.log = folder / f"{name}.log"
        self.process, self.addresses = self._start(ANY)

    def _start(self, ports: tuple[str, ...]) -> tuple[subprocess.Popen[str], dict[str, str]]:
        command = [sys.executable, "-m", "ingero.cli.commands.services.fleet", "--json"]
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [*command, *ports, "--metrics", "0", "--config", str(self.path)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, self.log.read_text()
        return process, json.loads(line)["addresses"]

    def port(self, listener: str) -> int:
        return int(self.addresses[listener].rpartition(":")[2])

    def kill(self) -> None:
        """End it without any chance to say so."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def start_again(self) -> None:
        flags = {"http": "--http", "threshold": "--agent", "admin": "--admin", "health": "--health"}
        ports = [w for name, flag in flags.items() for w in (flag, str(self.port(name)))]
        self.process, self.addresses = self._start(("--grpc", "off", *ports))

    def get(self, listener: str, path: str) -> tuple[int, str]:
        """Return the status and the text of an answer; 0 where nobody answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port(listener)}{path}", timeout=10
            ) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    @property
    def is_ready(self) -> bool:
        return self.get("health", "/readyz")[0] == 200

    def status(self) -> dict[str, Any]:
        found = json.loads(self.get("threshold", "/api/v1/status")[1])["clusters"]
        return dict(found[0]) if found else {}

    def metric(self, name: str) -> float:
        lines = self.get("metrics", "/metrics")[1].splitlines()
        own = (line for line in lines if line.startswith((f"{name} ", f"{name}{{")))
        return sum(float(line.split()[-1]) for line in own)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100


@dataclass
class Senders:
    """Nodes that push scores at a fixed rate in sum, and eight ranks with own times.

    A push that was not accepted is sent again, to another replica.
    """

    replicas: list[Replica]
    nodes: int = 200
    rate: float = 200.0
    slow_after_s: float = 1e9
    began_s: float = field(default_factory=time.time)
    accepted: int = 0
    refused: int = 0  # 503: not ready, or stopping
    failed: int = 0  # connections that broke
    no_quorum: int = 0
    cold: int = 0
    free: deque["_Wire"] = field(default_factory=deque)
    again: deque[int] = field(default_factory=deque)  # nodes whose push was not accepted
    _wires: list["_Wire"] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _connections: list["_Connection"] = field(default_factory=list)

    async def __aenter__(self) -> "Senders":
        self._wires = [_Wire(self, number) for number in range(WIRES)]
        self._tasks = [asyncio.create_task(wire.run()) for wire in self._wires]
        self._tasks.append(asyncio.create_task(self._nodes()))
        self._tasks += [asyncio.create_task(self._rank(rank)) for rank in range(8)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections:
            await connection.close()
        for wire in self._wires:
            wire.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def answered(self, head: bytes) -> bool:
        """Count a reply; return whether it accepts the push."""
        status, head = int(head[9:12]), head.lower()
        if status != 200:
            assert status == 503, head
            self.refused += 1
            return False
        self.accepted += 1
        self.no_quorum += b"x-ingero-quorum-met: false" in head
        self.cold += b"x-ingero-threshold: 0.000000" in head
        return True

    async def _nodes(self) -> None:
        """Give every push that is due to a connection that waits for no reply."""
        pushes = [_prepared(node) for node in range(self.nodes)]
        began_s, sent = time.monotonic(), 0
        while True:
            await asyncio.sleep(0.01)
            due = int((time.monotonic() - began_s) * self.rate)
            while self.free and (self.again or sent < due):
                if self.again:
                    node = self.again.popleft()
                else:
                    node, sent = sent % self.nodes, sent + 1
                self.free.popleft().send(node, pushes[node])

    async def _rank(self, rank: int) -> None:
        connection, step = _Connection(self, rank), 0
        while True:
            await asyncio.sleep(max(self.began_s + step + rank / 10 - time.time(), 0))
            slow = 1.2 if rank == 5 and step > self.slow_after_s else 1.0
            own = 500 * slow * float(np.exp(np.random.default_rng((rank, step)).normal(0, 0.005)))
            await connection.push(encode_protobuf(own_time_push(f"n{rank}", rank, step, own)))
            step += 1


def _prepared(node: int) -> list[bytes]:
    """Return the request of a node in pieces, between which the time belongs that it is sent."""
    score = 0.9 + random.Random(node).random() / 50
    body = protobuf(f"n{node}", score, sent_ns=_A_TIME)
    pieces = (HEAD % len(body) + body).split(_A_TIME.to_bytes(8, "little"))
    assert len(pieces) > 1
    return pieces


class _Wire(asyncio.Protocol):
    """One connection with at most one push under way; after any trouble, to the next replica."""

    def __init__(self, senders: Senders, number: int) -> None:
        self._senders, self._number = senders, number
        self._transport: asyncio.WriteTransport | None = None
        self._node, self._head, self._sent_s = -1, b"", 0.0
        self._lost = asyncio.Event()

    async def run(self) -> None:
        """Connect again and again, and watch for replies that do not come."""
        loop = asyncio.get_running_loop()
        while True:
            replicas = self._senders.replicas
            port = replicas[self._number % len(replicas)].port("http")
            self._lost.clear()
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", port)
            except OSError:
                self._number += 1
                await asyncio.sleep(0.05)
                continue
            while not self._lost.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._lost.wait(), 5)
                if self._node >= 0 and time.monotonic() - self._sent_s > 10:
                    self.close()
            self._number += 1
            await asyncio.sleep(0.05)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._senders.free.append(self)

    def send(self, node: int, pieces: list[bytes]) -> None:
        """Send the push of a node; one that cannot be sent now is sent by another connection."""
        if self._transport is None or self._transport.is_closing():
            self._senders.again.append(node)
            return
        self._node, self._head, self._sent_s = node, b"", time.monotonic()
        self._transport.write(time.time_ns().to_bytes(8, "little").join(pieces))

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" not in self._head:
            return
        node, self._node = self._node, -1
        if self._senders.answered(self._head):
            self._senders.free.append(self)
        else:
            self._senders.again.append(node)
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._node >= 0:
            self._senders.failed += 1
            self._senders.again.append(self._node)
            self._node = -1
        with contextlib.suppress(ValueError):
            self._senders.free.remove(self)
        self._transport = None
        self._lost.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Connection:
    """Keeps one connection, to the next replica after any trouble."""

    def __init__(self, senders: Senders, number: int) -> None:
        self._senders, self._number = senders, number
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        senders._connections.append(self)

    async def push(self, body: bytes) -> None:
        """Send until some replica has accepted it."""
        senders = self._senders
        while True:
            try:
                async with asyncio.timeout(10.0):  # wait_for may swallow a cancellation
                    head = await self._once(body)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                senders.failed += 1
                await self._move()
                continue
            if senders.answered(head):
                return
            await self._move()
            await asyncio.sleep(0.05)

    async def _once(self, body: bytes) -> bytes:
        if self._streams is None:
            replicas = self._senders.replicas
            port = replicas[self._number % len(replicas)].port("http")
            self._streams = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = self._streams
        writer.write(HEAD % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(size)
        return head

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            with contextlib.suppress(OSError):
                await self._streams[1].wait_closed()
        self._streams = None

    async def _move(self) -> None:
        await self.close()
        self._number += 1
        await asyncio.sleep(0.01)
