"""Load for Echo's benchmark: keep-alive HTTP connections, and bodies that do not repeat."""

import asyncio
import struct
import time
import zlib
from dataclasses import dataclass, field

import numpy as np

from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf

OPS = ("cudaLaunchKernel", "cudaMemcpy", "ncclAllReduce", "cudaStreamSync")
START_NS = 1_763_168_400_000_000_000
_DURATION = b"\n\x06dur_us\x12\x09!"  # what is before the double of a duration


def body(events: int, node: str) -> bytes:
    """Return points with ten attributes (4 text, 4 integer, 2 real), about 200 bytes each."""
    points = tuple(
        otlp.NumberPoint(
            time_unix_nano=START_NS + i,
            as_double=float(i),
            attributes=otlp.attributes(
                {
                    "op": OPS[i & 3], "kernel": f"sm90_gemm_{i % 37}",
                    "severity": "warn" if i % 17 == 0 else "info", "job": "llama-70b",
                    "rank": i % 64, "gpu": i % 8, "pid": 4000 + i % 64, "step": i // 1000,
                    "dur_us": (i * 7919 % 1000) / 3.0, "p99_us": 900.5,
                }
            ),
        )
        for i in range(events)
    )  # fmt: skip
    metric = otlp.Metric(name="ingero.event", gauge=otlp.Gauge(data_points=points))
    who = otlp.Resource(
        attributes=otlp.attributes({"ingero.cluster.id": "bench", "ingero.node.id": node})
    )
    resource = otlp.ResourceMetrics(
        resource=who, scope_metrics=(otlp.ScopeMetrics(metrics=(metric,)),)
    )
    return encode_protobuf(otlp.MetricsRequest(resource_metrics=(resource,)))


class Bodies:
    """Requests of one node: times and durations of all points are new in each of them."""

    def __init__(self, events: int, node: str, head: bytes = b"") -> None:
        template = body(events, node)
        times, durations, at = [], [], 0
        for i in range(events):
            times.append(at := template.index(struct.pack("<Q", START_NS + i), at))
            durations.append(at := template.index(_DURATION, at) + len(_DURATION))
        self._octets = np.frombuffer(head + template, np.uint8).copy()
        places = np.array([times, durations]) + len(head)
        self._places = places[:, :, None] + np.arange(8)
        self._random = np.random.default_rng(zlib.crc32(node.encode()))
        self._now = START_NS

    def next(self) -> bytes:
        """Return the head with another body."""
        times, durations = self._places
        count = len(times)
        moments = self._now + np.arange(count) * 1000
        self._now += count * 1000
        spent = self._random.integers(0, 10**6, count) / 3.0
        self._octets[times] = moments.view(np.uint8).reshape(-1, 8)
        self._octets[durations] = spent.view(np.uint8).reshape(-1, 8)
        return self._octets.tobytes()


@dataclass
class Measured:
    """Latencies in ms, from the scheduled time in an open loop, from the send in a closed one."""

    seconds: float
    batch: int
    latencies_ms: list[float] = field(default_factory=list)
    errors: int = 0
    began: float = 0.0  # of the first send: the bodies are made before, which takes a second
    cpu_s: float = 0.0  # of the sender since then

    @property
    def events(self) -> int:
        return len(self.latencies_ms) * self.batch

    @property
    def rate(self) -> float:
        return self.events / self.seconds

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.latencies_ms, share)) if self.latencies_ms else float("nan")


class _Connection(asyncio.Protocol):
    def __init__(self, run: "_Run", number: int) -> None:
        node = f"node-{number:03d}"
        head = (
            f"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
            f"Authorization: Bearer {run.token}\r\n"
            f"Content-Length: {len(body(run.batch, node))}\r\n\r\n"
        ).encode()
        self.run = run
        self.bodies = Bodies(run.batch, node, head)
        self.began = 0.0
        self.buffer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] - a TCP transport

    def send(self, began: float) -> None:
        self.began = began
        self.transport.write(self.bodies.next())

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if b"\r\n\r\n" not in self.buffer:
            return
        now = time.perf_counter()
        if self.buffer.startswith(b"HTTP/1.1 200"):
            self.run.measured.latencies_ms.append((now - self.began) * 1e3)
        else:
            self.run.measured.errors += 1
        self.buffer = b""
        self.run.free(self, now)


class _Run:
    def __init__(self, batch: int, seconds: float, rate: float, token: str) -> None:
        self.batch, self.rate, self.token = batch, rate, token
        self.measured = Measured(seconds, batch)
        self.idle: list[_Connection] = []
        self.until = 0.0

    def free(self, connection: _Connection, now: float) -> None:
        if self.rate:
            self.idle.append(connection)
        elif now < self.until:
            connection.send(now)

    async def go(self, port: int, connections: int) -> Measured:
        loop = asyncio.get_running_loop()
        opened = [
            (await loop.create_connection(lambda n=n: _Connection(self, n), "127.0.0.1", port))[1]
            for n in range(connections)
        ]
        began = self.measured.began = time.perf_counter()
        cpu_s = time.process_time()
        self.until = began + self.measured.seconds
        if self.rate:
            self.idle = list(opened)
            await self._open_loop(began)
        else:
            for connection in opened:
                connection.send(time.perf_counter())
            await asyncio.sleep(self.measured.seconds)
        await asyncio.sleep(0.3)
        self.measured.cpu_s = time.process_time() - cpu_s
        for connection in opened:
            connection.transport.close()
        return self.measured

    async def _open_loop(self, began: float) -> None:
        sent = 0
        per_s = self.rate / self.batch
        while (now := time.perf_counter()) < self.until:
            while self.idle and began + sent / per_s <= now:
                self.idle.pop().send(began + sent / per_s)
                sent += 1
            await asyncio.sleep(max(0.001, began + sent / per_s - time.perf_counter()))


async def load(
    port: int, *, batch: int, connections: int, seconds: float, rate: float = 0, token: str = ""
) -> Measured:
    """Run a closed loop, or an open loop at `rate` events per second."""
    return await _Run(batch, seconds, rate, token).go(port, connections)
