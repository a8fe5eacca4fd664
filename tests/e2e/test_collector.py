"""A real OpenTelemetry Collector in front of Fleet and behind it (`make peers` builds it)."""

import asyncio
import contextlib
import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import peers
from tests.support.echo_process import BIN
from tests.support.pushes import JSON, PB, as_json, forwarding, post, protobuf, running
from tests.support.scripted_fleet import scripted_fleet
from tests.support.waiting import PATIENCE_S, until_async

from ingero.transport.access import Access
from ingero.transport.bearer import Key
from ingero.transport.otlp.server_http import Reply

pytestmark = pytest.mark.e2e
needs_collector = pytest.mark.skipif(
    not (peers.FOLDER / "otelcol").exists(), reason="needs a Collector; `make peers` builds it"
)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "collector.md"
NO_TELEMETRY = {"telemetry": {"metrics": {"level": "none"}}}
CONFIG = """
receivers:
  otlp:
    protocols:
      http: {{endpoint: 127.0.0.1:{http}}}
      grpc: {{endpoint: 127.0.0.1:{grpc}}}
exporters:
{exporters}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    metrics: {{receivers: [otlp], exporters: [{names}]}}
    traces: {{receivers: [otlp], exporters: [{names}]}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.asynccontextmanager
async def collector(
    folder: Path, exporters: str, names: str
) -> AsyncIterator[tuple[int, int, Path]]:
    """Start a Collector; yield its HTTP port, its gRPC port and its log.

    It cannot choose ports itself. Where a free port is taken meanwhile, others are tried.
    """
    config, log = folder / "collector.yaml", folder / "collector.log"
    is_taken = True
    while is_taken:
        http, grpc = free_port(), free_port()
        config.write_text(CONFIG.format(http=http, grpc=grpc, exporters=exporters, names=names))
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(peers.FOLDER / "otelcol"), "--config", str(config)],
                stdout=output,
                stderr=output,
            )
        await until_async(lambda: process.poll() is not None or is_open(http))  # noqa: B023 - called here
        is_taken = process.poll() is not None
        assert not is_taken or "address already in use" in log.read_text(), log.read_text()
    try:
        yield http, grpc, log
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


@needs_collector
@pytest.mark.parametrize("sender", ["otlp", "otlp_http"])
async def test_collector_sends_to_fleet(sender: str, tmp_path: Path) -> None:
    async with running() as fleet:
        settings = "tls: {insecure: true}"
        if sender == "otlp":
            lines = f"  otlp: {{endpoint: '{fleet.addresses['grpc']}', {settings}}}"
        else:
            lines = f"  otlp_http: {{endpoint: 'http://{fleet.addresses['http']}', encoding: json}}"
        async with collector(tmp_path, lines, sender) as (http, _, log):
            for i in range(5):
                assert (
                    await post(f"http://127.0.0.1:{http}/v1/metrics", protobuf(f"n{i}", 0.9), PB)
                )[0] == 200
            async with asyncio.timeout(PATIENCE_S):
                while (
                    "train" not in fleet.processor.clusters
                    or len(fleet.processor.clusters["train"].roster.rows) < 5
                ):
                    await asyncio.sleep(0.05)
            assert "error" not in log.read_text().lower()


@needs_collector
@pytest.mark.parametrize("sender", ["otlp", "otlp_http"])
async def test_collector_comes_back_when_fleet_says_so(sender: str, tmp_path: Path) -> None:
    """The Collector drops data on RESOURCE_EXHAUSTED without RetryInfo, which Fleet sends."""
    async with running() as fleet:
        full = Reply(429, message="full", retry_after_s=1)
        admit, refused = fleet.receiver._admit, 0

        def refusal(access: Access, authorization: str | None, address: str | None) -> Key | Reply:
            nonlocal refused
            refused += 1
            return full if refused <= 2 else admit(access, authorization, address)

        fleet.receiver._admit = refusal  # type: ignore[method-assign]  # full for two requests
        fleet.receiver.limit_requests(1_000_000)  # else plain pushes are not asked about
        address = fleet.addresses["grpc" if sender == "otlp" else "http"]
        scheme = "" if sender == "otlp" else "http://"
        lines = f"  {sender}: {{endpoint: '{scheme}{address}', tls: {{insecure: true}}}}"
        async with collector(tmp_path, lines, sender) as (http, _, log):
            assert (await post(f"http://127.0.0.1:{http}/v1/metrics", protobuf("late", 0.9), PB))[
                0
            ] == 200
            async with asyncio.timeout(60):
                while "train" not in fleet.processor.clusters:
                    await asyncio.sleep(0.05)
            assert refused == 3
            assert "Dropping data" not in log.read_text()


@needs_collector
@pytest.mark.parametrize("kind", ["otlp", "otlphttp"])
async def test_collector_receives_what_fleet_forwards(kind: str, tmp_path: Path) -> None:
    async with collector(tmp_path, "  debug: {verbosity: detailed}", "debug") as (http, grpc, log):
        changes = forwarding(kind, f"127.0.0.1:{grpc if kind == 'otlp' else http}")
        changes["processors"] = {"ingero": {"push_interval": "1s"}}
        async with running(**changes) as fleet:
            base = f"http://{fleet.addresses['http']}/v1"
            await post(f"{base}/metrics", protobuf("by-protobuf", 0.9), PB)
            await post(f"{base}/metrics", as_json("by-json", 0.9), JSON)
            span = {
                "name": "detection",
                "traceId": "0af7651916cd43dd8448eb211c80319c",
                "spanId": "b7ad6b7169203331",
            }
            spans = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
            await post(f"{base}/traces", spans, JSON)
            wanted = (
                "by-protobuf",
                "by-json",
                "detection",
                "0af7651916cd43dd8448eb211c80319c",
                "ingero_fleet_threshold",
            )
            async with asyncio.timeout(PATIENCE_S):
                while not all(text in log.read_text() for text in wanted):
                    await asyncio.sleep(0.05)
            assert set(fleet.exporters.forwarders[0].counters.dropped.values()) == {0}


def documented(name: str) -> dict[str, Any]:
    """The file of that name in docs/how-to/collector.md."""
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if block.startswith(f"# {name}\n"):
            document: dict[str, Any] = yaml.safe_load(block)
            return document
    raise AssertionError(f"{PAGE} has no {name}")


def on_loopback(document: dict[str, Any], ports: dict[str, int]) -> dict[str, Any]:
    """The same receivers on loopback."""
    for name, protocol in document["receivers"]["otlp"]["protocols"].items():
        protocol["endpoint"] = f"127.0.0.1:{ports[name]}"
    return document


@contextlib.contextmanager
def program(command: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@contextlib.contextmanager
def documented_fleet(folder: Path, collector_port: int) -> Iterator[dict[str, str]]:
    """`ingero-fleet` with the documented file; yield its addresses."""
    document = on_loopback(documented("fleet-config.yaml"), {"grpc": 0, "http": 0})
    document["exporters"]["prometheus"]["endpoint"] = "127.0.0.1:0"
    document["exporters"]["otlp/collector"]["endpoint"] = f"127.0.0.1:{collector_port}"
    providers = folder / "node_providers.yaml"
    providers.write_text("addresses: {127.0.0.0/8: lambda}\n")
    document["processors"]["providerlookup"]["file"] = str(providers)
    config = folder / "fleet-config.yaml"
    config.write_text(yaml.safe_dump(document))
    ports = [f"--{name}=127.0.0.1:0" for name in ("agent", "admin", "health", "metrics")]
    command = [str(BIN / "ingero-fleet"), "--json", "--config", str(config), *ports]
    with program(command, folder / "fleet.log") as fleet:
        assert fleet.stdout is not None
        line = fleet.stdout.readline()
        assert line, (folder / "fleet.log").read_text()
        yield json.loads(line)["addresses"]


@contextlib.asynccontextmanager
async def documented_collector(
    folder: Path, document: dict[str, Any], exporter: str, endpoint: str
) -> AsyncIterator[dict[str, int]]:
    """A Collector with a documented file that exports to `endpoint`; yield its ports."""
    ports = {name: free_port() for name in document["receivers"]["otlp"]["protocols"]}
    on_loopback(document, ports)["exporters"][exporter]["endpoint"] = endpoint
    config = folder / "collector.yaml"
    config.write_text(
        yaml.safe_dump({**document, "service": {**document["service"], **NO_TELEMETRY}})
    )
    log = folder / "collector.log"
    with program([str(peers.FOLDER / "otelcol"), "--config", str(config)], log) as process:
        port = next(iter(ports.values()))
        await until_async(lambda: process.poll() is not None or is_open(port))
        assert process.poll() is None, log.read_text()
        yield ports


@needs_collector
async def test_documented_fleet_before_a_collector(tmp_path: Path) -> None:
    """Every signal that Fleet forwards comes out of the Collector of the page."""
    span = {"name": "detection", "traceId": "0af7651916cd43dd8448eb211c80319c",
            "spanId": "b7ad6b7169203331"}  # fmt: skip
    spans = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    record = {"body": {"stringValue": "a chain"}, "timeUnixNano": "1"}
    logs = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}).encode()
    async with scripted_fleet() as sink:
        document = documented("collector.yaml")
        async with documented_collector(tmp_path, document, "otlphttp", sink.url) as ports:
            with documented_fleet(tmp_path, ports["grpc"]) as addresses:
                base = f"http://{addresses['http']}/v1"
                assert (await post(f"{base}/metrics", protobuf("n1", 0.9), PB))[0] == 200
                assert (await post(f"{base}/traces", spans, JSON))[0] == 200
                assert (await post(f"{base}/logs", logs, JSON))[0] == 200
                wanted = {"/v1/metrics", "/v1/traces", "/v1/logs"}
                await until_async(lambda: wanted <= {request.path for request, _ in sink.requests})


@pytest.mark.parametrize(("option", "is_valid"), [("ttl", True), ("time_to_live", False)])
def test_documented_collector_for_clickhouse_is_valid(
    option: str, is_valid: bool, tmp_path: Path
) -> None:
    """A Collector that has the exporter judges the file; no server is asked."""
    otelcol = peers.FOLDER / "otelcol-clickhouse"
    if not otelcol.exists():
        pytest.skip("needs a Collector with its exporter; `make peers-clickhouse` builds it")
    document = documented("collector-clickhouse.yaml")
    exporter = document["exporters"]["clickhouse"]
    exporter[option] = exporter.pop("ttl")
    config = tmp_path / "collector.yaml"
    config.write_text(yaml.safe_dump(document))
    found = subprocess.run(
        [str(otelcol), "validate", "--config", str(config)],
        capture_output=True,
        text=True,
        env={"CLICKHOUSE_PASSWORD": "secret"},
        timeout=PATIENCE_S,
        check=False,
    )
    assert (found.returncode == 0) is is_valid, found.stderr


@needs_collector
async def test_documented_collector_before_fleet(tmp_path: Path) -> None:
    async with running() as fleet:
        document = documented("collector-before-fleet.yaml")
        endpoint = fleet.addresses["grpc"]
        async with documented_collector(tmp_path, document, "otlp/fleet", endpoint) as ports:
            url = f"http://127.0.0.1:{ports['http']}/v1/metrics"
            assert (await post(url, protobuf("n1", 0.9), PB))[0] == 200
            await until_async(lambda: "train" in fleet.processor.clusters)
