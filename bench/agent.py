"""What `ingero agent` costs an idle node: memory of all parts together, and CPU time.

Runs Fleet and the agent, with all parts on, in a process namespace of their own where that is
allowed, so that jobs of others on this machine are neither seen nor traced.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAX_PSS_MB = 150.0
MAX_CPU_PERCENT = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
APART = "INGERO_BENCH_APART"


def pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def parts_of(socket: Path) -> dict[str, int]:
    """The processes of a healthy agent by part."""
    command = [
        sys.executable,
        "-m",
        "ingero",
        "agent",
        "--health",
        "--json",
        "--socket",
        str(socket),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {}
    health = json.loads(done.stdout)
    return {"supervisor": health["pid"]} | {
        part["name"]: part["pid"] for part in health["parts"] if part["pid"]
    }


def measure(folder: Path, seconds: float) -> bool:
    fleet = subprocess.Popen(
        [sys.executable, "-m", "ingero.cli.commands.services.fleet", "--json", "--grpc", "off"]
        + [word for name in ("http", "agent", "admin", "health", "metrics", "prometheus")
           for word in (f"--{name}", "127.0.0.1:0")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert fleet.stdout is not None
    http = json.loads(fleet.stdout.readline())["addresses"]["http"]
    config, socket = folder / "ingero.yaml", folder / "run" / "agent.sock"
    config.write_text(
        "agent: {node: bench, log_level: warning, api: {listen: '127.0.0.1:0'}}\n"
        f"store: {{path: {folder / 'trace.db'}}}\n"
        f"fleet: {{endpoint: 'http://{http}', cluster_id: bench}}\n"
        f"remediate: {{enabled: true, socket: {folder / 'run' / 'remediate.sock'}, gid: -1}}\n"
        f"health: {{persistence: {{path: {folder / 'baseline.json'}}}}}\n"
    )
    command = [sys.executable, "-m", "ingero", "agent", "--config", str(config)]
    agent = subprocess.Popen([*command, "--socket", str(socket)], stdout=subprocess.DEVNULL)
    try:
        parts: dict[str, int] = {}
        while len(parts) < 4:
            time.sleep(1.0)
            parts = parts_of(socket)
        time.sleep(15.0)  # what starts costs is not what runs costs
        before = {name: cpu_s(pid) for name, pid in parts.items()}
        time.sleep(seconds)
        used = {name: cpu_s(pid) - before[name] for name, pid in parts.items()}
        return report(used, {name: pss_mb(pid) for name, pid in parts.items()}, seconds)
    finally:
        for process in (agent, fleet):
            process.terminate()
            process.wait()


def report(used: dict[str, float], memory: dict[str, float], seconds: float) -> bool:
    print(f"{'part':<12}{'PSS MB':>8}{'CPU %':>8}")
    for name, size_mb in memory.items():
        print(f"{name:<12}{size_mb:>8.1f}{100 * used[name] / seconds:>8.2f}")
    total_mb, total_cpu = sum(memory.values()), 100 * sum(used.values()) / seconds
    print(f"{'together':<12}{total_mb:>8.1f}{total_cpu:>8.2f}")
    print(f"bars: {MAX_PSS_MB:g} MB, {MAX_CPU_PERCENT:g} % of a core")
    return total_mb <= MAX_PSS_MB and total_cpu < MAX_CPU_PERCENT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    if os.geteuid() == 0 and APART not in os.environ and shutil.which("unshare"):
        apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        command = [*apart, sys.executable, "-m", "bench.agent", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | {APART: "1"}, check=False).returncode
    with tempfile.TemporaryDirectory() as folder:
        return 0 if measure(Path(folder), given.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
