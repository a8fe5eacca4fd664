"""`make bench-peers`: the same pushes to Fleet and to an OpenTelemetry Collector, in one run.

The Collector decodes and discards (nop exporter); Fleet decodes, keeps a roster, serves thresholds
and keeps bodies for scraping. Both count what they do, the Collector with its default telemetry.
The row without telemetry shows what telemetry costs.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

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


def start(name: str, port: int, directory: Path) -> list[str]:
    """Return the command that starts a server on this port."""
    if name == "Fleet":
        return fleet_command(port)
    config = directory / "collector.yaml"
    config.write_text(CONFIG.format(port=port, telemetry=TELEMETRY[name].format(port=free_port())))
    return [str(PEERS / "otelcol"), "--config", str(config)]


def measure(directory: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Load each server once per round; return its runs by server and encoding."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    files = write_bodies(directory, "/v1/metrics")
    for _ in range(ROUNDS):
        for name in (*TELEMETRY, "Fleet"):
            port = free_port()
            with server(start(name, port, directory), port, {"GOMAXPROCS": "1"}) as pid:
                for encoding, file in files.items():
                    load(port, pid, file, 0, 0.5, 16)
                    run = load(port, pid, file, 0, SECONDS, 32)
                    runs.setdefault((name, encoding), []).append({**run, "rss_mb": rss_mb(pid)})
    return runs


def main() -> int:
    if not (PEERS / "otelcol").exists():
        print(f"no Collector in {PEERS}; `make peers` builds it (needs Go)")
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
    for encoding, least in (("protobuf", 3.0), ("JSON", 2.0)):
        pairs = zip(runs["Collector", encoding], runs["Fleet", encoding], strict=True)
        ratio = statistics.median(theirs["cpu_us"] / ours["cpu_us"] for theirs, ours in pairs)
        name = f"{encoding}: Collector's CPU per push / Fleet's, median of rounds"
        passed &= check(name, ratio, "x", ratio >= least, f">= {least:g}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
