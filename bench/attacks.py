"""Known attacks on Fleet and Echo, measured: memory, how long the event loop was held, who waits.

Each service runs in its own process with a heartbeat in its event loop. While an attack runs, an
honest agent pushes on its own connection. `python -m bench.attacks` prints one row per attack;
`python -m bench.attacks fields` only those with this word in their name.
"""

import asyncio
import gzip
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from bench.table import judge, print_table
from ingero.contract import names
from ingero.contract.names import JSON_TYPE, PROTOBUF_TYPE
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.transport.otlp.server_grpc import PATHS

TOKEN = "bench-token-0123456789abcdef"
MANY = 15_500_000
HELD_MS = 50.0
MIB = 1 << 20
# Runs a service with a heartbeat; SIGUSR1 writes the longest gap in seconds, and starts anew.
WATCHED = """
import asyncio, importlib, os, runpy, signal, sys, time
module, gaps, *sys.argv[1:] = sys.argv[1:]
app = importlib.import_module("ingero.fleet.serve" if "fleet" in module else "ingero.echo.app")
served = app.serve
try:  # the event loop ahead of other programs, as on a machine that has nothing else to do
    os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(5))
except OSError:
    print("not ahead of other programs: figures include the load of this machine", file=sys.stderr)
longest = 0.0
def report():
    global longest
    with open(gaps + ".new", "w") as file:
        file.write(str(longest))
    os.replace(gaps + ".new", gaps)
    longest = 0.0
def queued():
    with open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9
async def beat():
    global longest
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, report)
    while True:
        began, used, waited = time.monotonic(), time.process_time(), queued()
        await asyncio.sleep(0.002)
        # Not what the loop waits for a processor: the kernel stops a thread that runs ahead of
        # other programs for 50 ms of a second that it uses in full. Nor what another thread waits
        # for a processor while it holds Python's lock.
        gap = time.monotonic() - began - (queued() - waited)
        longest = max(longest, min(gap, time.process_time() - used + 0.002) - 0.002)
async def serve(*arguments):
    beating = asyncio.create_task(beat())
    await served(*arguments)
app.serve = serve
sys.argv[0] = module
runpy.run_module(module, run_name="__main__")
"""


@dataclass
class Service:
    """A running service under a heartbeat."""

    name: str
    process: subprocess.Popen[str]
    addresses: dict[str, str]
    gaps: Path

    def peak_mib(self) -> float:
        """Memory of the process and its children at their highest."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return sum(_status_kb(pid, "VmHWM") for pid in (self.process.pid, *children.split())) / 1024

    async def longest_gap_ms(self) -> float:
        self.gaps.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        while not self.gaps.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
        return float(self.gaps.read_text()) * 1000


def _status_kb(pid: int | str, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)


def start(name: str, folder: Path) -> Service:
    """Start Fleet or Echo on free ports of loopback, ahead of other programs where allowed."""
    listen = ("grpc", "http", "agent", "admin", "health", "metrics", "prometheus")
    arguments = [word for each in listen for word in (f"--{each}", "0")]
    if name == "echo":
        arguments = ["serve", "--db-path", str(folder / "echo.db"), "--insecure-no-tls"]
        (folder / "token").write_text(TOKEN)
        (folder / "token").chmod(0o600)
        arguments += ["--auth-token-file", str(folder / "token")]
        for each in ("otlp", "otlp-http", "mcp", "health"):
            arguments += [f"--{each}-addr", "127.0.0.1:0"]
    module = f"ingero.cli.commands.services.{name}"
    command = [sys.executable, "-c", WATCHED, module, str(folder / "gaps"), *arguments, "--json"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    addresses = json.loads(process.stdout.readline())["addresses"]
    addresses["http"] = addresses.get("http") or addresses["otlp_http"]
    return Service(name, process, addresses, folder / "gaps")


def head(path: str, length: int, *more: str) -> bytes:
    """Return the head of an OTLP request."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Type: {PROTOBUF_TYPE}"]
    lines += [f"Authorization: Bearer {TOKEN}", f"Content-Length: {length}", *more, "", ""]
    return "\r\n".join(lines).encode()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def ask(address: str, request: bytes) -> str:
    """Send one request on a new connection and return the status of the reply."""
    reader, writer = await connect(address)
    writer.write(request)
    try:
        return (await reader.readline()).decode().split()[1]
    except (ConnectionError, IndexError):
        return "closed"
    finally:
        writer.close()


async def bomb(service: Service, path: str) -> str:
    """31 MiB of empty messages in 30 KiB of gzip, four at once."""
    body = gzip.compress(b"\x0a\x00" * MANY, 9)
    request = head(path, len(body), "Content-Encoding: gzip") + body
    replies = await asyncio.gather(*(ask(service.addresses["http"], request) for _ in range(4)))
    return f"{len(body) // 1024} KiB → {', '.join(sorted(set(replies)))}"


async def allowed(service: Service, path: str) -> str:
    """As many fields as are allowed, four requests at once."""
    inner = b"\x12\x00" * 299_990
    for tag in (b"\x12", b"\x0a"):
        size, length = len(inner), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        inner = tag + length + bytes([size]) + inner
    body = gzip.compress(inner, 9)
    request = head(path, len(body), "Content-Encoding: gzip") + body
    replies = await asyncio.gather(*(ask(service.addresses["http"], request) for _ in range(4)))
    return ", ".join(sorted(set(replies)))


async def json_items(service: Service, path: str) -> str:
    """190,000 spans or log records in JSON, which Echo stores, three requests at once."""
    one, many = {"/v1/traces": ("Spans", "spans"), "/v1/logs": ("Logs", "logRecords")}[path]
    item = b'{"name":"a"},' if many == "spans" else b'{"severityNumber":9},'
    opening = f'{{"resource{one}":[{{"scope{one}":[{{"{many}":['.encode()
    body = opening + item * 190_000 + b"{}]}]}]}"
    request = head(path, len(body)).replace(PROTOBUF_TYPE.encode(), JSON_TYPE.encode()) + body
    replies = await asyncio.gather(*(ask(service.addresses["http"], request) for _ in range(3)))
    return ", ".join(sorted(set(replies)))


async def many_clusters(service: Service, path: str) -> str:
    """20,000 nodes in 900 clusters in one request, and the next two ticks of one second."""
    resources: list[otlp.ResourceMetrics] = []
    for number in range(20_000):
        identity = {names.CLUSTER_ID: f"c{number % 900}", names.NODE_ID: f"n{number}"}
        resources += _score(identity).resource_metrics
    body = gzip.compress(encode_protobuf(MetricsRequest(resource_metrics=tuple(resources))))
    request = head(path, len(body), "Content-Encoding: gzip") + body
    reply = await ask(service.addresses["http"], request)
    await asyncio.sleep(2.5)
    return reply


async def long_text(service: Service, path: str) -> str:
    """A GPU model of nearly 4 MiB, and one of 1 MiB, for each of 100 nodes."""
    replies = set()
    for node in range(100):
        for size in (4_000_000, MIB - 100):
            identity = {names.CLUSTER_ID: "train", names.NODE_ID: f"n{node}"}
            attributes = {**identity, names.GPU_MODEL: "x" * size}
            pushed = encode_protobuf(_score(attributes))
            message = head("/v1/metrics", len(pushed)) + pushed
            replies.add(await ask(service.addresses["http"], message))
    return ", ".join(sorted(replies))


def _score(attributes: dict[str, str]) -> MetricsRequest:
    described = [
        otlp.KeyValue(key=key, value=otlp.AnyValue(string_value=value))
        for key, value in attributes.items()
    ]
    point = otlp.NumberPoint(as_double=0.9, time_unix_nano=time.time_ns())
    metric = otlp.Metric(name=names.HEALTH_SCORE, gauge=otlp.Gauge(data_points=[point]))
    scoped = otlp.ScopeMetrics(metrics=[metric])
    resource = otlp.Resource(attributes=described)
    return MetricsRequest(
        resource_metrics=[otlp.ResourceMetrics(resource=resource, scope_metrics=[scoped])]
    )


async def unfinished(service: Service, path: str) -> str:
    """400 bodies of which all but the last byte arrives."""
    held = []
    for _ in range(400):
        reader, writer = await connect(service.addresses["http"])
        writer.write(head(path, 4_000_000) + bytes(1_000_000))
        held.append((reader, writer))
        await asyncio.sleep(0)
    await asyncio.sleep(1)
    reply = await ask(service.addresses["http"], head(path, 0))
    for _, writer in held:
        writer.close()
    return f"another sender: {reply}"


async def declared(service: Service, path: str) -> str:
    """32 declared lengths without a body."""
    held = [await connect(service.addresses["http"]) for _ in range(32)]
    for _, writer in held:
        writer.write(head(path, 8_000_000))
    began_s = time.monotonic()
    reply = await ask(service.addresses["http"], head(path, 0))
    for _, writer in held:
        writer.close()
    return f"another sender: {reply} after {time.monotonic() - began_s:.2f} s"


async def stalled_grpc(service: Service, path: str) -> str:
    """300 gRPC calls that never send their message."""
    address = service.addresses.get("grpc") or service.addresses["otlp"]
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    async with grpc.aio.insecure_channel(address) as channel:
        method = channel.stream_unary(PATHS[MetricsRequest])
        calls = [method(metadata=metadata) for _ in range(300)]
        started = [asyncio.ensure_future(call.wait_for_connection()) for call in calls]
        await asyncio.sleep(0.5)
        began_s = time.monotonic()
        honest = channel.unary_unary(PATHS[MetricsRequest])
        await honest(b"", metadata=metadata, timeout=30)
        took_s = time.monotonic() - began_s
        for call in (*started, *calls):
            call.cancel()
    return f"another sender: after {took_s:.2f} s"


async def wrong_tokens(service: Service, path: str) -> str:
    """10,000 requests with a wrong token."""
    request = head(path, 0).replace(TOKEN.encode(), b"wrong-token-0123456789abcdef")
    statuses: dict[str, int] = {}
    for _ in range(100):
        for status in await asyncio.gather(
            *(ask(service.addresses["http"], request) for _ in range(100))
        ):
            statuses[status] = statuses.get(status, 0) + 1
    return ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))


Attack = Callable[[Service, str], Awaitable[str]]
ATTACKS: tuple[tuple[str, Attack, str, tuple[str, ...]], ...] = (
    ("31 MiB of empty messages, gzip, metrics", bomb, "/v1/metrics", ("fleet", "echo")),
    ("31 MiB of empty messages, gzip, traces", bomb, "/v1/traces", ("fleet", "echo")),
    ("as many fields as allowed, metrics", allowed, "/v1/metrics", ("fleet", "echo")),
    ("as many fields as allowed, traces", allowed, "/v1/traces", ("fleet", "echo")),
    ("190,000 spans in JSON", json_items, "/v1/traces", ("fleet", "echo")),
    ("190,000 log records in JSON", json_items, "/v1/logs", ("fleet", "echo")),
    ("20,000 nodes in 900 clusters", many_clusters, "/v1/metrics", ("fleet", "echo")),
    ("GPU model of 1 and 4 MiB, 100 nodes", long_text, "", ("fleet",)),
    ("400 unfinished bodies of 1 MB", unfinished, "/v1/metrics", ("fleet", "echo")),
    ("32 declared lengths", declared, "/v1/metrics", ("fleet", "echo")),
    ("300 stalled gRPC calls", stalled_grpc, "", ("fleet", "echo")),
    ("10,000 wrong tokens", wrong_tokens, "/v1/metrics", ("echo",)),
)


async def honest_agent(service: Service, waits_ms: list[float]) -> None:
    """Send a small request every 20 ms on one connection, and note how long each reply took."""
    reader, writer = await connect(service.addresses["http"])
    try:
        while True:
            began_s = time.monotonic()
            writer.write(head("/v1/logs", 0))
            await reader.readuntil(b"\r\n\r\n")
            waits_ms.append((time.monotonic() - began_s) * 1000)
            await asyncio.sleep(0.02)
    finally:
        writer.close()


async def measure(service: Service, attack: Attack, path: str) -> tuple[str, float, float, float]:
    """Return what the attacker got, the seconds it took, the longest gap and the longest wait."""
    await service.longest_gap_ms()
    waits_ms: list[float] = []
    agent = asyncio.create_task(honest_agent(service, waits_ms))
    began_s = time.monotonic()
    got = await attack(service, path)
    took_s = time.monotonic() - began_s
    gap_ms = await service.longest_gap_ms()
    agent.cancel()
    return got, took_s, gap_ms, max(waits_ms, default=0.0)


async def main() -> int:
    rows, requirements = [], []
    chosen = [each for each in ATTACKS if all(word in each[0] for word in sys.argv[1:])]
    for title, attack, path, services in chosen:
        for name in services:
            with tempfile.TemporaryDirectory() as folder:
                service = start(name, Path(folder))
                try:
                    await asyncio.sleep(1)
                    idle_mib = service.peak_mib()
                    got, took_s, gap_ms, wait_ms = await measure(service, attack, path)
                    peak_mib = service.peak_mib()
                finally:
                    service.process.terminate()
                    service.process.communicate()
            figures = (f"{idle_mib:.0f} → {peak_mib:.0f}", f"{gap_ms:.0f}", f"{wait_ms:.0f}")
            rows.append((title, name, got, f"{took_s:.1f}", *figures))
            print(rows[-1], flush=True)
            requirements.append((f"{title}, {name}", gap_ms <= HELD_MS, f"{gap_ms:.0f} ms held"))
    header = ("attack", "service", "answer", "s", "MiB", "loop held, ms", "longest wait, ms")
    print_table("Attacks", header, rows)
    return judge(requirements)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
