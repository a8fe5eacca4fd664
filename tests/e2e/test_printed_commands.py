"""The published command lines, typed as printed: four nodes by name on port 8080, over TLS.

They run in a network and mount namespace of their own, where the four names are loopback addresses.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest
from tests.support.trace_databases import database
from tests.support.waiting import PATIENCE_S

from ingero.storage.trace.database import TraceDb

pytestmark = pytest.mark.e2e
COUNTS = {  # per node: (source, count, mean nanoseconds)
    "gpu-node-01": ((4, 11009, 5200), (3, 847, 18_400_000)),
    "gpu-node-02": ((4, 10892, 5100), (3, 412, 2_100_000)),
    "gpu-node-03": ((4, 10847, 5300), (3, 398, 1_900_000)),
    "gpu-node-04": ((4, 10901, 5000), (3, 421, 2_200_000)),
}
TABLE = """\
node         source  cnt    avg_us
-----------  ------  -----  ------
gpu-node-01  3       847    18400
gpu-node-01  4       11009  5.2
gpu-node-02  3       412    2100
gpu-node-02  4       10892  5.1
gpu-node-03  3       398    1900
gpu-node-03  4       10847  5.3
gpu-node-04  3       421    2200
gpu-node-04  4       10901  5
"""
CHAINS = """\
FLEET CAUSAL CHAINS - 2 chain(s) from 4 node(s)

[HIGH] [gpu-node-01] cuLaunchKernel p99=843us (63.9x p50) - \
847 sched_switch events + heavy block I/O
  Root cause: 847 sched_switch events + heavy block I/O
  Fix: Pin training process to dedicated cores with taskset; Add nice -n 19 to background jobs

[MEDIUM] [gpu-node-01] cuMemAlloc p99=932us (5.0x p50) - 855 sched_switch events + heavy block I/O
  Root cause: 855 sched_switch events + heavy block I/O
  Fix: Pin training process to dedicated cores with taskset

"""
SCRIPT = r"""
set -euo pipefail
mount --bind hosts /etc/hosts
ip link set lo up
ingero() { "$PYTHON" -m ingero "$@"; }
servers=()
trap 'kill "${servers[@]}" 2>/dev/null; wait' EXIT
for i in 1 2 3 4; do
  HOME=$PWD/home-$i "$PYTHON" -m ingero dashboard \
    --addr gpu-node-0$i:8080 --db gpu-node-0$i.db >server-$i 2>&1 &
  servers+=($!)
done
printf 'fleet:\n  trusted:\n' >ingero.yaml
for i in 1 2 3 4; do
  for _ in $(seq 600); do grep -q fingerprint server-$i && break; sleep 0.1; done
  fingerprint=$(sed -n 's/certificate fingerprint //p' server-$i)
  echo "    gpu-node-0$i:8080: \"$fingerprint\"" >>ingero.yaml
done
ingero query --timeout 60s \
    --nodes gpu-node-01:8080,gpu-node-02:8080,gpu-node-03:8080,gpu-node-04:8080 'SELECT 1' \
    >/dev/null  # the first question to a server on a crowded machine may take long
ingero query --nodes gpu-node-01:8080,gpu-node-02:8080,gpu-node-03:8080,gpu-node-04:8080 \
    "SELECT node, source, count(*) as cnt, avg(duration)/1000 as avg_us
     FROM events GROUP BY node, source" >table 2>footer
ingero explain --nodes gpu-node-01:8080,gpu-node-02:8080,gpu-node-03:8080,gpu-node-04:8080 >chains \
    || [ $? = 1 ]
{ echo "  nodes:"; for i in 1 2 3 4; do echo "    - gpu-node-0$i:8080"; done; } >>ingero.yaml
ingero query --json "SELECT count(*) AS n FROM events" >configured
ingero ask query_fleet action=chains since=5m >asked
"$BIN/ingero-echo" serve --json --db-path "$PWD/echo.db" --otlp-addr echo-service:4317 \
    --otlp-http-addr 127.0.0.1:0 --mcp-addr 127.0.0.1:0 --health-addr 127.0.0.1:0 \
    --create-certificate echo-service >echo-started 2>echo-log &
echo=$!
servers+=($echo)
for _ in $(seq 600); do [ -s echo-started ] && break; sleep 0.1; done
export INGERO_ECHO_TOKEN=$(cat echo.db.token) INGERO_ECHO_CA=$PWD/echo.db.tls/server.crt
export PATH=$BIN:$PATH
echo-stress --node-id=node-h100 --events=1000 --endpoint=echo-service:4317 >stress-h100
echo-stress --node-id=node-a100 --events=1000 --endpoint=echo-service:4317 >stress-a100
kill $echo
wait $echo
"""


def make_node(folder: Path, node: str) -> None:
    path = folder / f"{node}.db"
    TraceDb(path, node).close()
    with sqlite3.connect(path) as connection:
        begin = time.time_ns()
        for source, count, mean in COUNTS[node]:
            connection.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count) "
                "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, node) "
                "SELECT :node || ':' || (:source * 100000 + i), :begin + i, 7, 7, :source, 1, "
                ":mean, :node FROM n",
                {"count": count, "node": node, "source": source, "begin": begin, "mean": mean},
            )
        if node == "gpu-node-01":
            pin = "Pin training process to dedicated cores with taskset"
            for severity, op, p99, ratio, switches, fixes in (
                ("MEDIUM", "cuMemAlloc", 932, "5.0", 855, [pin]),
                (
                    "HIGH",
                    "cuLaunchKernel",
                    843,
                    "63.9",
                    847,
                    [pin, "Add nice -n 19 to background jobs"],
                ),
            ):
                cause = f"{switches} sched_switch events + heavy block I/O"
                summary = f"{op} p99={p99}us ({ratio}x p50) - {cause}"
                connection.execute(
                    "INSERT INTO causal_chains (id, detected_at, severity, summary, root_cause, "
                    "explanation, recommendations, cuda_op, cuda_p99_us, node) "
                    "VALUES (?, ?, ?, ?, ?, '', ?, ?, ?, ?)",
                    (
                        f"{node}:{op}",
                        begin,
                        severity,
                        summary,
                        cause,
                        json.dumps(fixes),
                        op,
                        p99,
                        node,
                    ),
                )
    connection.close()


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the output of every published command."""
    folder = tmp_path_factory.mktemp("printed")
    for number, node in enumerate(COUNTS, 1):
        make_node(folder, node)
        (folder / f"home-{number}").mkdir()
    hosts = [
        "127.0.0.1 localhost",
        "127.0.2.1 echo-service",
        *(f"127.0.1.{i} {node}" for i, node in enumerate(COUNTS, 1)),
    ]
    (folder / "hosts").write_text("\n".join(hosts) + "\n")
    if shutil.which("unshare") is None or shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root, unshare and ip: the four names live in a namespace of their own")
    if subprocess.run(["unshare", "-m", "-n", "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces are not allowed on this machine")
    own = {
        "PYTHON": sys.executable,
        "BIN": str(Path(sys.executable).parent),
        "HOME": str(folder),
        "INGERO_CONFIG": str(folder / "ingero.yaml"),
    }
    done = subprocess.run(
        ["unshare", "-m", "-n", "bash", "-c", SCRIPT],
        cwd=folder,
        env=os.environ | own,
        check=False,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr + "".join(
        file.read_text() for file in folder.glob("server-*")
    )
    return folder


def test_f140_table_and_footer_of_four_nodes(printed: Path) -> None:
    assert (printed / "table").read_text() == TABLE
    # behind what it may say about clocks
    assert "\n  8 rows from 4 node(s)\n" in (printed / "footer").read_text()


def test_f141_chains_of_four_nodes(printed: Path) -> None:
    assert (printed / "chains").read_text() == CHAINS


def test_f139_nodes_come_from_the_file_and_f154_from_the_tool(printed: Path) -> None:
    counted = {row["node"]: row["n"] for row in json.loads((printed / "configured").read_text())}
    assert counted == {
        node: sum(count for _, count, _ in sources) for node, sources in COUNTS.items()
    }
    asked = (
        (printed / "asked").read_text().replace("[traced-data]", "").replace("[/traced-data]", "")
    )
    assert asked.splitlines()[-3:] == [
        "Fleet Chains: 2 chain(s)",
        "[HIGH] gpu-node-01 | cuLaunchKernel p99=843us (63.9x p50) | "
        "847 sched_switch events + heavy block I/O",
        "[MEDIUM] gpu-node-01 | cuMemAlloc p99=932us (5.0x p50) | "
        "855 sched_switch events + heavy block I/O",
    ]


def test_f126_stress_by_the_name_of_the_service(printed: Path) -> None:
    """The certificate that Echo created holds the name that clients use."""
    for node in ("h100", "a100"):
        assert "acknowledged   1000\n" in (printed / f"stress-{node}").read_text()
    with duckdb.connect(str(printed / "echo.db"), read_only=True) as store:
        counted = store.execute("SELECT node_id, count(*) FROM events GROUP BY 1 ORDER BY 1")
        assert counted.fetchall() == [("node-a100", 1000), ("node-h100", 1000)]


def test_f143_offline_merge_explain_and_export(tmp_path: Path) -> None:
    database(tmp_path / "node-01.db", node="gpu-node-01")
    database(tmp_path / "node-02.db", node="gpu-node-02")
    script = (
        'ingero() { "$PYTHON" -m ingero "$@"; }\n'
        "set -e\n"
        "ingero merge node-01.db node-02.db -o cluster.db\n"
        "ingero explain -d cluster.db\n"
        "ingero export --format perfetto -d cluster.db -o trace.json\n"
    )
    environment = os.environ | {"PYTHON": sys.executable, "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert "from 2 node(s)" in done.stderr
    assert (tmp_path / "trace.json").read_text().startswith("[")
