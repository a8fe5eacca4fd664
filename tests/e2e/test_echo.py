"""Echo as an operator runs it: real processes and sockets, and the published fan-in run."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import duckdb
import pytest
from tests.support.cpu_time import children_cpu_s
from tests.support.echo_process import BIN, TOKEN, EchoProcess, run_stress
from tests.support.echo_samples import metrics_body
from tests.support.waiting import PATIENCE_S

from ingero.contract import names

WALL_S = 60.0  # three times what a quiet machine may take
pytestmark = pytest.mark.e2e


def post(
    address: str, body: bytes, token: str | None = TOKEN, **headers: str
) -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(
        f"http://{address}/v1/metrics", body, {"Content-Type": names.PROTOBUF_TYPE, **headers}
    )
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return reply.status, dict(reply.headers)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers)


def get(address: str, path: str, token: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{address}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def echo_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "ingero-echo"), *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )


def events_per_s_of_a_burst(echo: EchoProcess, node: str) -> float:
    """Send 5,000 events of eight producers at 1,000 a second; return the rate that was reached."""
    burst = run_stress(
        f"http://{echo.addresses['http']}", "--protocol", "http/protobuf", "--producers", "8",
        "--events", "5000", "--rate", "1000", "--batch", "5", "--node-id", node,
    )  # fmt: skip
    assert burst.returncode == 0, burst.stderr
    summary = json.loads(burst.stdout)
    assert (summary["acknowledged"], summary["failures"]) == (5000, [])
    return float(summary["events_per_s"])


def send_planted(grpc: str, node: str) -> subprocess.Popen[str]:
    """Start four producers that send 1,000 events in 40 chains, one of them a low score."""
    command = [
        str(BIN / "echo-stress"), "--endpoint", grpc, "--protocol", "grpc", "--insecure", "--json",
        "--producers", "4", "--events", "1000", "--chains", "40", "--node-id", node,
        "--planted", "1",
    ]  # fmt: skip
    environment = {"INGERO_ECHO_TOKEN": TOKEN, "PATH": "/usr/bin"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_the_published_fan_in_run(tmp_path: Path) -> None:
    """F113 to F117, F126, F128: the published fan-in run.

    2,000 events of 8 producers, 80 chains, planted scores, then a burst of 5,000. Rates and times
    are per CPU second: other work on this machine is not counted.
    """
    began_s, began_wall_s = children_cpu_s(), time.monotonic()
    with EchoProcess(tmp_path) as echo:
        nodes = ("node-h100", "node-a100")
        runs = [send_planted(echo.addresses["grpc"], node) for node in nodes]
        summaries = [json.loads(run.communicate(timeout=2 * PATIENCE_S)[0]) for run in runs]
        assert [run.returncode for run in runs] == [0, 0]
        assert [summary["acknowledged"] for summary in summaries] == [1000, 1000]
        assert echo.stop() == 0
    assert echo.query("SELECT COUNT(*) FROM events") == [(2000,)]
    producers = [f"node-{kind}-{i}" for kind in ("a100", "h100") for i in range(4)]
    assert echo.query("SELECT node_id, COUNT(*) FROM events GROUP BY node_id ORDER BY 1") == [
        (name, 250) for name in producers
    ]
    assert echo.query("SELECT COUNT(DISTINCT causal_chain_id) FROM events") == [(80,)]
    low = (
        "SELECT node_id, COUNT(*) FROM events WHERE value_double < 0.4 GROUP BY node_id ORDER BY 1"
    )
    assert echo.query(low) == [("node-a100-0", 1), ("node-h100-0", 1)]
    with EchoProcess(tmp_path) as echo:
        served_s = echo.cpu_s()
        rates = [events_per_s_of_a_burst(echo, "burst")]
        print(f"{echo.cpu_s() - served_s:.2f} s of a CPU for 5,000 events")
        assert 5000 / (echo.cpu_s() - served_s) >= 900, "F117: with one CPU"
        while max(rates) < 900 and len(rates) < 3:  # other work on this machine may disturb one
            rates.append(events_per_s_of_a_burst(echo, f"again{len(rates)}"))
        assert 900 <= max(rates) <= 1100, "F117: the rate it was told"
    assert echo.query("SELECT COUNT(*) FROM events WHERE node_id LIKE 'burst-%'") == [(5000,)]
    assert children_cpu_s() - began_s < PATIENCE_S, (
        "F128: about 8 s, where a slow machine may take three times as long"
    )
    assert time.monotonic() - began_wall_s < WALL_S, "F128; `make bench-echo-integration`"


def test_listeners_ask_for_the_bearer_and_health_does_not(tmp_path: Path) -> None:
    """F120, F098: 401 for missing and wrong tokens; no token in logs, database or arguments."""
    with EchoProcess(tmp_path) as echo:
        http = echo.addresses["http"]
        assert post(http, metrics_body(), None)[0] == 401
        assert post(http, metrics_body(), "wrong")[0] == 401
        status, headers = post(http, metrics_body(points=3), **{"X-Ingero-Wait": "1"})
        assert (status, headers["x-ingero-sequence"]) == (200, "1")
        assert post(http, b"\xff\xff")[0] == 400
        refused = run_stress(
            echo.addresses["grpc"], "--protocol", "grpc", "--insecure", INGERO_ECHO_TOKEN="wrong"
        )
        assert (refused.returncode, "a bearer token is needed" in refused.stderr) == (1, True)
        assert get(echo.addresses["health"], "/healthz")[0] == 200
        assert get(echo.addresses["health"], "/metrics")[0] == 401
        status, text = get(echo.addresses["health"], "/metrics", TOKEN)
        assert status == 200
        assert "ingero_echo_events_total 3\n" in text
        assert 'ingero_echo_rows{table="events"} 3\n' in text
        assert TOKEN not in Path(f"/proc/{echo.process.pid}/cmdline").read_text()
        assert [
            oct(path.stat().st_mode & 0o777) for path in (echo.database, tmp_path / "echo.db.sock")
        ] == ["0o600"] * 2
    held = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "token"]
    assert [path for path in held if TOKEN.encode() in path.read_bytes()] == []


def test_tls_is_the_default_and_a_kept_certificate_works(tmp_path: Path) -> None:
    """F096, and echo-stress over TLS with the authority from the environment."""
    refused = echo_command("serve", "--db-path", str(tmp_path / "echo.db"))
    assert refused.returncode == 2
    assert (
        "Echo needs TLS: give --tls-cert and --tls-key, or --create-certificate" in refused.stderr
    )
    token = echo_command("serve", "--insecure-no-tls", "--auth-token", "secret")
    assert (token.returncode, "visible to every user" in token.stderr) == (2, True)
    with EchoProcess(tmp_path, "--create-certificate") as echo:
        authority = str(tmp_path / "echo.db.tls" / "server.crt")
        for endpoint, protocol in (
            (echo.addresses["grpc"], "grpc"),
            (f"https://{echo.addresses['http']}", "http/protobuf"),
        ):
            sent = run_stress(
                endpoint, "--protocol", protocol, "--events", "10", INGERO_ECHO_CA=authority
            )
            assert sent.returncode == 0, sent.stderr
    assert echo.query("SELECT count(*) FROM events") == [(20,)]


def test_a_second_echo_on_the_same_database_is_turned_away(tmp_path: Path) -> None:
    """F119."""
    with EchoProcess(tmp_path) as echo:
        second = echo_command(
            "serve", "--insecure-no-tls", "--db-path", str(echo.database), "--otlp-addr",
            "127.0.0.1:0", "--otlp-http-addr", "127.0.0.1:0", "--health-addr", "127.0.0.1:0",
        )  # fmt: skip
    assert second.returncode == 1
    assert f"echo.db is open for writing in process {echo.process.pid}" in second.stderr


def test_backup_while_running_restore_and_verify(tmp_path: Path) -> None:
    with EchoProcess(tmp_path) as echo:
        post(echo.addresses["http"], metrics_body(points=5))
        made = echo_command("backup", "--db-path", str(echo.database), str(tmp_path / "copy.db"))
        assert (made.returncode, made.stdout) == (
            0,
            f"{tmp_path}/copy.db holds everything up to request 1\n",
        ), made.stderr
        post(echo.addresses["http"], metrics_body(points=7, first=100))
    assert echo.query("SELECT count(*) FROM events") == [(12,)]
    verified = echo_command("verify", "--db-path", str(echo.database), "--json")
    assert verified.returncode == 0
    assert json.loads(verified.stdout)["facts"]["rows in events"] == 12
    refused = echo_command("restore", "--db-path", str(echo.database), str(tmp_path / "copy.db"))
    assert (refused.returncode, "--force renames it" in refused.stderr) == (1, True)
    restored = echo_command(
        "restore", "--force", "--db-path", str(echo.database), str(tmp_path / "copy.db")
    )
    assert restored.returncode == 0, restored.stderr
    assert "1 requests will be loaded at the next start" in restored.stdout
    with EchoProcess(tmp_path):
        pass
    assert echo.query("SELECT count(*) FROM events") == [(12,)], (
        "the journal brought back what came after the backup"
    )


def test_a_demo_database_of_about_a_mebibyte(tmp_path: Path) -> None:
    """F127: 2,000 events in 80 chains from eight nodes, two of them with one low score."""
    made = echo_command("demo-database", str(tmp_path / "demo.db"), "--json")
    assert made.returncode == 0, made.stderr
    assert 0.5 * 2**20 < json.loads(made.stdout)["size_bytes"] < 4 * 2**20
    with duckdb.connect(str(tmp_path / "demo.db"), read_only=True) as demo:
        found = demo.execute(
            "SELECT count(*), count(DISTINCT node_id), count(DISTINCT causal_chain_id), "
            "count(DISTINCT node_id) FILTER (value_double < 0.4) FROM events"
        )
        assert found.fetchall() == [(2000, 8, 80, 2)]
