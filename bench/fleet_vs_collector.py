"""`make bench-peers`: the same pushes to Fleet and to programs of others, in one run.

An OpenTelemetry Collector decodes and discards (nop exporter); VictoriaMetrics keeps every point on
disk and acknowledges from memory; Fleet decodes, keeps a roster, serves thresholds and keeps bodies
for scraping. All count what they do, the Collector with its default telemetry. The row without
telemetry shows what telemetry costs. Peers that are not installed are left out.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import push_bodies
from bench.fleet_push import (
    ROUNDS,
    SECONDS,
    check,
    fleet_command,
    least_disturbed,
    print_machine,
    write_bodies,
)
from bench.measure import free_port, load, rss_mb, server
from bench.reference import compare

PEERS = Path(os.environ.get("INGERO_PEERS", Path.home() / ".cache/ingero/peers"))
CONFIG = """
receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:{port}
exporters:
  nop:
service:
  telemetry:
    logs:
      level: error
    metrics:
{telemetry}
  pipelines:
    metrics:
      receivers: [otlp]
      exporters: [nop]
"""


TELEMETRY = {
    "Collector": """      readers:
        - pull:
            exporter:
              prometheus:
                host: 127.0.0.1
                port: {port}""",
    "(telemetry off)": "      level: none",
}


VICTORIA = "VictoriaMetrics"
TARGETS = {VICTORIA: "/opentelemetry/v1/metrics"}  # all others: as OTLP says


def victoria_program() -> str | None:
    """Return VictoriaMetrics from the variable, the path or the cache folder."""
    given = os.environ.get("VICTORIA_METRICS")
    return given or shutil.which(
        "victoria-metrics", path=f"{os.environ.get('PATH', '')}:{PEERS / 'bin'}"
    )


def start(name: str, port: int, directory: Path) -> list[str]:
    """Return the command that starts a server on this port."""
    if name == "Fleet":
        return fleet_command(port)
    if name == VICTORIA:
        stored = directory / f"victoria-{port}"
        return [
            str(victoria_program()),
            f"-httpListenAddr=127.0.0.1:{port}",
            f"-storageDataPath={stored}",
            "-loggerLevel=ERROR",
        ]
    config = directory / "collector.yaml"
    config.write_text(CONFIG.format(port=port, telemetry=TELEMETRY[name].format(port=free_port())))
    return [str(PEERS / "otelcol"), "--config", str(config)]


def servers() -> list[str]:
    """Return the names of the servers that are installed."""
    collector = list(TELEMETRY) if (PEERS / "otelcol").exists() else []
    return [*collector, *([VICTORIA] if victoria_program() else []), "Fleet"]


def measure(directory: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Load each server once per round; return its runs by server and encoding."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    push_bodies.T0_NS = time.time_ns()  # VictoriaMetrics drops points of the future
    for target in ("/v1/metrics", *TARGETS.values()):
        (directory / target.split("/")[1]).mkdir()
    files = {
        target: write_bodies(directory / target.split("/")[1], target)
        for target in ("/v1/metrics", *TARGETS.values())
    }
    for _ in range(ROUNDS):
        for name in servers():
            port = free_port()
            with server(start(name, port, directory), port, {"GOMAXPROCS": "1"}) as pid:
                for encoding, file in files[TARGETS.get(name, "/v1/metrics")].items():
                    if name == VICTORIA and encoding == "JSON":
                        continue  # it reads protobuf only
                    load(port, pid, file, 0, 0.5, 16)
                    run = load(port, pid, file, 0, SECONDS, 32)
                    runs.setdefault((name, encoding), []).append({**run, "rss_mb": rss_mb(pid)})
    return runs


def main() -> int:
    if servers() == ["Fleet"]:
        print(f"no peers in {PEERS}; `make peers` builds them (needs Go)")
        return 1
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        runs = measure(Path(folder))
    print(f"{'server':<17}{'body':<10}{'req/s':>9}{'CPU us':>9}{'RSS MB':>8}{'errors':>8}")
    for (name, encoding), rounds in sorted(runs.items()):
        run = least_disturbed(rounds)
        figures = f"{run['per_s']:>9.0f}{run['cpu_us']:>9.1f}{run['rss_mb']:>8.0f}"
        print(f"{name:<17}{encoding:<10}{figures}{run['errors']:>8.0f}")
    print()
    passed = True
    for peer, encoding, least in (
        ("Collector", "protobuf", 3.0),
        ("Collector", "JSON", 2.0),
        (VICTORIA, "protobuf", 1.0),
    ):
        if (peer, encoding) not in runs:
            print(f"  no {peer}: not compared")
            continue
        pairs = zip(runs[peer, encoding], runs["Fleet", encoding], strict=True)
        ratio = statistics.median(theirs["cpu_us"] / ours["cpu_us"] for theirs, ours in pairs)
        name = f"{encoding}: {peer}'s CPU per push / Fleet's, median of rounds"
        passed &= check(name, ratio, "x", ratio >= least, f">= {least:g}")
    compare()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
