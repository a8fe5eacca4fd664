"""The stock questions on ten million events, idle and during ingest: part of `make bench-echo`.

The database is written directly, because only the questions are measured. Echo then runs on it as
users run it and is asked over HTTP. `BENCH_EVENTS` and `BENCH_RATE` change the size and the load.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import duckdb
import numpy as np
from tests.support.echo_process import TOKEN, EchoProcess

from bench.table import finish, judge, print_table
from ingero.storage.events.arrivals import ARRIVALS_ROLL_UP
from ingero.storage.events.migrate import migrate

EVENTS = int(os.environ.get("BENCH_EVENTS", "10000000"))
RATE = int(os.environ.get("BENCH_RATE", "20000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
NODES = 64
QUESTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("summary", {}),
    ("find_stragglers", {}),
    ("find_outlier_nodes", {"metric": "ingero.node.throughput_ratio"}),
    ("nccl_summary", {"window": "10m"}),
    ("get_cost", {"window": "10m"}),
    ("anomalies", {}),
    ("event_history", {"node_id": "node-07", "metric_name": "ingero.node.health_score"}),
    ("memcpy_bandwidth_summary", {"window": "10m"}),
    ("memfrag_hotspots", {}),
    ("kernel_launch_summary", {"window": "10m"}),
    (
        "run_analysis",
        {"sql": "SELECT node_id, count(*) FROM events WHERE value_double < 0.4 GROUP BY node_id"},
    ),
)
METRICS = (
    "ingero.node.health_score",
    "ingero.node.throughput_ratio",
    "ingero.node.memory_headroom",
    "gpu.memcpy.bytes_total",
    "ingero.node.cuda_kernel_launch_total",
    "gpu.memory.used",
    "system.cpu.utilization",
    "gpu.cuda.operation.count",
)


def write_database(path: Path) -> None:
    """Write an hour of 64 nodes; node-07 is slow, and the others wait for its rank."""
    connection = duckdb.connect(str(path), config={"threads": 2, "memory_limit": "2GB"})
    migrate(connection)
    connection.execute("SET preserve_insertion_order = true")
    for start in range(0, EVENTS, 1_000_000):
        count = min(1_000_000, EVENTS - start)
        connection.execute(
            f"""INSERT INTO events BY NAME SELECT i // 100 + 1 AS seq, (i % 100)::INTEGER AS idx,
              make_timestamp_ns(now_ns - 3600000000000 + i * {3_600_000_000_000 // EVENTS}) AS ts,
              make_timestamp(now_ns // 1000 - 3600000000
                + (i * {3_600_000_000_000 // EVENTS}) // 1000) AS received_ts,
              'bench' AS cluster_id, format('node-{{:02d}}', i // 8 % {NODES}) AS node_id,
              name AS metric_name,
              CASE WHEN total THEN 'sum' ELSE 'gauge' END AS kind,
              CASE WHEN total THEN 'cumulative' END AS temporality,
              CASE WHEN total THEN NULL WHEN i // 8 % {NODES} = 7 THEN 0.35
                ELSE 0.9 + (i % 7) / 100 END AS value_double,
              CASE WHEN total THEN i END AS cumulative_value,
              '{{"ingero.node.state":"active"}}' AS attrs
            FROM (SELECT i, epoch_ns(now()::TIMESTAMP) AS now_ns,
              {list(METRICS)}[i % 8 + 1] AS name,
                i % 8 + 1 IN (4, 5, 8) AS total
              FROM range({start}, {start + count}) t(i))"""
        )
    connection.execute(
        f"""INSERT INTO nccl_ops BY NAME SELECT {EVENTS // 100} + i // 1000 AS seq,
          (i % 1000)::INTEGER AS idx,
          make_timestamp_ns(now_ns - 600000000000 + (i // {NODES}) * 10000000) AS ts,
          make_timestamp_ns(now_ns - 600000000000 + (i // {NODES}) * 10000000 - gpu) AS start_ts,
          make_timestamp(now_ns // 1000 - 300000000) AS received_ts, 'bench' AS cluster_id,
          format('node-{{:02d}}', i % {NODES}) AS node_id, 'job' AS job_id, 'lambda' AS provider,
          'NVIDIA H100 80GB HBM3' AS gpu_model, (i % {NODES})::INTEGER AS global_rank,
          (i % {NODES})::INTEGER AS rank, {NODES} AS nranks, '00000000000000ab' AS comm_id_hash,
          i // {NODES} AS comm_seq, 'AllReduce' AS op_type, 1048576 AS bytes,
          gpu / 1e6 AS duration_ms, gpu AS gpu_duration_ns, 'nccl-plugin' AS source
        FROM (SELECT i, epoch_ns(now()::TIMESTAMP) AS now_ns,
          CASE WHEN i % {NODES} = 7 THEN 1000000 ELSE 3000000 + i % 1000 END AS gpu
          FROM range(100000) t(i))"""
    )
    applied = EVENTS // 100 + 200
    connection.execute(ARRIVALS_ROLL_UP, {"rolled": 0, "applied": applied})
    connection.execute(
        f"UPDATE meta SET value = {applied} "
        "WHERE key IN ('applied_seq', 'rolled_seq', 'arrived_seq')"
    )
    connection.execute("CHECKPOINT")
    connection.close()


def ask(address: str, name: str, arguments: dict[str, object]) -> float:
    """Return the milliseconds until the answer arrived."""
    body = json.dumps(
        {"cluster_id": "bench", **arguments} if name != "run_analysis" else arguments
    ).encode()
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    url = f"http://{address}/api/v2/tools/fleet.cluster.{name}"
    began = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as reply:
        document = json.load(reply)
    assert document["data"], name
    return (time.perf_counter() - began) * 1e3


def ask_all(address: str, taken: dict[str, list[float]]) -> None:
    for name, arguments in QUESTIONS:
        taken.setdefault(name, []).append(ask(address, name, arguments))


def measure(echo: EchoProcess) -> tuple[dict[str, float], dict[str, float]]:
    """Return medians idle and under load, in turns, so that other load affects both alike."""
    address, load = (
        echo.addresses["mcp"],
        [sys.executable, "-m", "bench.echo_questions", "load", echo.addresses["http"]],
    )
    idle: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}
    ask_all(address, {})  # the first question reads everything from disk
    for _ in range(ROUNDS):
        ask_all(address, idle)
        loading = subprocess.Popen(load)
        try:
            time.sleep(1.5)
            ask_all(address, busy)
        finally:
            loading.terminate()
            loading.wait()
        time.sleep(0.5)
    return {name: float(np.median(times)) for name, times in idle.items()}, {
        name: float(np.median(times)) for name, times in busy.items()
    }


def run() -> int:
    """Fill, ask, and ask under load; return the exit status of the requirements."""
    with tempfile.TemporaryDirectory(
        prefix="echo-questions-", dir=os.environ.get("BENCH_DIR")
    ) as name:
        folder = Path(name)
        write_database(folder / "echo.db")
        with EchoProcess(folder, "--bearer-rate", "10000", "--bearer-burst", "100000") as echo:
            idle, busy = measure(echo)
    rows = [(name, idle[name], busy[name], busy[name] / idle[name]) for name, _ in QUESTIONS]
    header = ("question", "idle ms", "ingesting ms", "ratio")
    print_table(
        f"Questions on {EVENTS:,} events, idle and with {RATE:,} events/s arriving "
        f"(median of {ROUNDS})",
        header,
        rows,
    )
    requirements = [
        (
            f"{name} while ingesting at most 1.5x idle, or 25 ms",
            b <= 1.5 * i or b <= 25,
            f"{i:.1f} -> {b:.1f} ms",
        )
        for name, i, b, _ in rows
    ]
    times = sorted(idle.values())
    requirements += [
        (
            "median of all questions at most 80 ms",
            np.median(times) <= 80,
            f"{np.median(times):.1f} ms",
        ),
        ("slowest question at most 200 ms", times[-1] <= 200, f"{times[-1]:.1f} ms"),
    ]
    return judge(requirements)


def load_forever(address: str) -> None:
    import uvloop

    from bench.echo_load import load

    port = int(address.rpartition(":")[2])
    uvloop.run(load(port, batch=100, connections=8, seconds=300, rate=RATE, token=TOKEN))


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        load_forever(sys.argv[2])
    else:
        finish(run())
