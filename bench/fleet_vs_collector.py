"""`make bench-peers`: the same pushes to Fleet and to an OpenTelemetry Collector with a nop exporter, in the same run.

The Collector decodes and throws away; Fleet decodes, keeps a roster, serves thresholds and keeps bodies for scraping.
Both count what they do: the Collector with its default telemetry. The row without telemetry is there to see its share.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from fleet_push import ROUNDS, SECONDS, fleet_command, least_disturbed, verdict
from measure import free_port, load, rss_mb, server, write_requests
from push_bodies import bodies

from ingero.contract.names import JSON_TYPE, PROTOBUF_TYPE

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
    if name == "Fleet":
        return fleet_command(port)
    config = directory / "collector.yaml"
    config.write_text(CONFIG.format(port=port, telemetry=TELEMETRY[name].format(port=free_port())))
    return [str(PEERS / "otelcol"), "--config", str(config)]


def main() -> int:
    if not (PEERS / "otelcol").exists():
        print(f"no Collector in {PEERS}; `make peers` builds it (needs Go)")
        return 1
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {ROUNDS} rounds of {SECONDS:g} s each\n"
    )
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        protobuf_bodies, json_bodies = bodies(512)
        files = {
            "protobuf": write_requests(
                directory / "pb.bin", protobuf_bodies, PROTOBUF_TYPE, "/v1/metrics"
            ),
            "JSON": write_requests(directory / "json.bin", json_bodies, JSON_TYPE, "/v1/metrics"),
        }
        for _ in range(ROUNDS):
            for name in (*TELEMETRY, "Fleet"):
                port = free_port()
                with server(start(name, port, directory), port, {"GOMAXPROCS": "1"}) as pid:
                    for encoding, file in files.items():
                        load(port, pid, file, 0, 0.5, 16)
                        run = load(port, pid, file, 0, SECONDS, 32)
                        runs.setdefault((name, encoding), []).append({**run, "rss_mb": rss_mb(pid)})
    found = {who: least_disturbed(taken) for who, taken in runs.items()}
    print(f"{'server':<17}{'body':<10}{'req/s':>9}{'CPU us':>9}{'RSS MB':>8}{'errors':>8}")
    for (name, encoding), run in sorted(found.items()):
        print(
            f"{name:<17}{encoding:<10}{run['per_s']:>9.0f}{run['cpu_us']:>9.1f}{run['rss_mb']:>8.0f}{run['errors']:>8.0f}"
        )
    print()
    passed = True
    for encoding, least in (("protobuf", 3.0), ("JSON", 2.0)):
        rounds = zip(runs["Collector", encoding], runs["Fleet", encoding], strict=True)
        ratio = statistics.median(theirs["cpu_us"] / ours["cpu_us"] for theirs, ours in rounds)
        name = f"{encoding}: Collector's CPU per push / Fleet's, median of rounds"
        passed &= verdict(name, ratio, "x", ratio >= least, f">= {least:g}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
