"""Three real node servers over sample databases, asked by the real commands."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.support.shared_data import shared
from tests.support.waiting import PATIENCE_S

from ingero.sim.samples import write_samples

INGERO = [sys.executable, "-m", "ingero"]


def start_node(db: Path, home: Path, *options: str) -> tuple[subprocess.Popen[str], str, str]:
    """Start a dashboard process; yield its address and what it printed first."""
    environment = os.environ | {"HOME": str(home)}
    process = subprocess.Popen(
        [*INGERO, "dashboard", "--addr", "127.0.0.1:0", "--db", str(db), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first, process.stderr.read() if process.stderr else ""
    return process, first.strip().rsplit("://", 1)[1], first


def stop(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    return process.returncode


def ingero(*arguments: str, home: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HOME": str(home), "INGERO_CONFIG": str(home / "ingero.yaml")}
    asks_nodes = arguments[0] in ("query", "explain", "export") or arguments[:2] == (
        "nodes",
        "check",
    )
    result = subprocess.run(
        [*INGERO, *arguments, *(("--timeout", "60s") if asks_nodes else ())],
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
        timeout=2 * PATIENCE_S,
    )
    assert result.returncode == status, result.stderr
    return result


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Three nodes without TLS on loopback, with the reference samples."""
    home = tmp_path_factory.mktemp("nodes")
    started = [
        start_node(shared(f"data/ingero/sample-gpu-node-0{i}.db"), home, "--no-tls")
        for i in (1, 2, 3)
    ]
    yield [address for _, address, _ in started]
    assert [stop(process) for process, _, _ in started] == [0, 0, 0]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "ingero.yaml").write_text("")
    return tmp_path


def test_f135_rows_equal_the_recorded_fan_out(nodes: list[str], home: Path) -> None:
    sql = (
        "SELECT source, op, count(*) AS n, avg(duration) AS avg_ns FROM events "
        "GROUP BY source, op ORDER BY n DESC"
    )
    rows = json.loads(ingero("query", "--nodes", ",".join(nodes), "--json", sql, home=home).stdout)
    recorded = json.loads(shared("data/ingero-wire/api/fanout-query.json").read_text())
    names = {f"127.0.0.1:1808{i}": f"gpu-node-0{i}" for i in (1, 2, 3)}
    assert rows == [row | {"node": names[row["node"]]} for row in recorded]


def test_f140_table_and_footer(nodes: list[str], home: Path) -> None:
    sql = "SELECT node, count(*) AS cnt FROM events GROUP BY node"
    result = ingero("query", "--nodes", f"[{', '.join(nodes)}]", sql, home=home)
    assert (
        result.stdout == "node         cnt\n-----------  ---\n"
        "gpu-node-01  200\ngpu-node-02  200\ngpu-node-03  200\n"
    )
    assert "\n  3 rows from 3 node(s)" in result.stderr  # behind what it may say about clocks


def test_csv_has_one_header(nodes: list[str], home: Path) -> None:
    result = ingero(
        "query",
        "--nodes",
        ",".join(nodes),
        "--format",
        "csv",
        "SELECT count(*) AS n FROM events",
        home=home,
    )
    assert result.stdout == "node,n\ngpu-node-01,200\ngpu-node-02,200\ngpu-node-03,200\n"


def test_f141_explain_lists_the_worst_first(nodes: list[str], home: Path) -> None:
    """The node with the worst chains is asked last."""
    result = ingero("explain", "--nodes", ",".join(reversed(nodes)), home=home, status=1)
    assert result.stdout.startswith(
        "FLEET CAUSAL CHAINS - 6 chain(s) from 3 node(s)\n\n[HIGH] [gpu-node-01] cuMemAlloc"
    )
    severities = re.findall(r"^\[(\w+)\] \[", result.stdout, re.MULTILINE)
    assert severities == ["HIGH", "HIGH", "MEDIUM", "MEDIUM", "MEDIUM", "MEDIUM"]
    assert result.stdout.count("  Root cause: ") == result.stdout.count("  Fix: ") == 6


def test_explain_json_equals_the_recorded_fan_out(nodes: list[str], home: Path) -> None:
    answer = ingero("explain", "--nodes", ",".join(nodes), "--json", home=home, status=1)
    assert json.loads(answer.stdout) == json.loads(
        shared("data/ingero-wire/api/fanout-chains.json").read_text()
    )


def test_f149_a_silent_node_is_a_warning_and_on_request_a_status(
    nodes: list[str], home: Path
) -> None:
    some = ",".join([nodes[0], "127.0.0.1:1"])
    sql = "SELECT count(*) AS n FROM events"
    result = ingero("query", "--nodes", some, "--json", sql, home=home)
    assert json.loads(result.stdout) == [{"node": "gpu-node-01", "n": 200}]
    assert "WARNING: node 127.0.0.1:1: cannot connect: Connection refused" in result.stderr
    ingero("query", "--nodes", some, "--json", "--fail-on-partial", sql, home=home, status=3)


def test_chains_say_how_many_nodes_they_are_from(nodes: list[str], home: Path) -> None:
    result = ingero("explain", "--nodes", f"{nodes[1]},127.0.0.1:1", "--since", "1s", home=home)
    assert (
        result.stdout
        == "no causal chains on 1 of 2 nodes: nothing was slow with a cause we can see\n"
    )


def test_a_cut_timeline_says_so(nodes: list[str], home: Path) -> None:
    arguments = (
        "export",
        "--nodes",
        nodes[0],
        "--format",
        "perfetto",
        "--since",
        "100000h",
        "-o",
        str(home / "t.json"),
    )
    cut = ingero(*arguments, "--limit", "50", home=home).stderr
    assert (
        "WARNING: only the newest 50 events of gpu-node-01 are in it; "
        "raise --limit or shorten --since\n" in cut
    )
    assert "only the newest" not in ingero(*arguments, "--limit", "200", home=home).stderr


def test_a_service_that_is_no_node_is_found_out(home: Path) -> None:
    class Other(Answering):
        def do_GET(self) -> None:
            self._say(b"<html>Grafana</html>")

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        result = ingero("nodes", "check", "--nodes", address, "--json", home=home, status=1)
        server.shutdown()
    (row,) = json.loads(result.stdout)
    assert (row["state"], row["name"]) == ("no node", None)


def test_v9b_no_answer_at_all_is_an_error_that_lists_every_node(home: Path) -> None:
    result = ingero("query", "--nodes", "127.0.0.1:1,127.0.0.1:2", "SELECT 1", home=home, status=1)
    assert "no node answered:" in result.stderr
    assert result.stderr.count("cannot connect: Connection refused") == 2


def test_f139_nodes_of_the_configuration_file(nodes: list[str], home: Path) -> None:
    (home / "ingero.yaml").write_text(
        "fleet:\n  nodes:\n" + "".join(f"    - {node}\n" for node in [*nodes, nodes[0]])
    )
    result = ingero("query", "--json", "SELECT count(*) AS n FROM events", home=home)
    assert [row["n"] for row in json.loads(result.stdout)] == [200, 200, 200]
    listed = json.loads(ingero("nodes", "list", "--json", home=home).stdout)
    assert [row["node"] for row in listed] == nodes
    checked = json.loads(ingero("nodes", "check", "--json", home=home).stdout)
    assert [(row["name"], row["state"]) for row in checked] == [
        (f"gpu-node-0{i}", "ok") for i in (1, 2, 3)
    ]


def test_export_of_nodes_equals_export_of_the_merged_file(nodes: list[str], home: Path) -> None:
    out = home / "live.json"
    ingero(
        "export",
        "--nodes",
        ",".join(nodes),
        "--format",
        "perfetto",
        "--since",
        "100000h",
        "-o",
        str(out),
        home=home,
    )
    ours = json.loads(out.read_text())
    reference = json.loads(shared("data/ingero/sample-cluster-trace.json").read_text())
    key = lambda element: json.dumps(element, sort_keys=True)  # noqa: E731
    for element in reference:
        if element.get("cat") == "causal_chain":
            # the API tells chain times to the second
            element["ts"] = element["ts"] // 1_000_000 * 1_000_000
    assert sorted(ours, key=key) == sorted(reference, key=key)


def test_native_export_of_nodes_has_arrows_and_clocks(nodes: list[str], home: Path) -> None:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

    out = home / "live.pftrace"
    arguments = [
        "export",
        "--nodes",
        ",".join(nodes),
        "--format",
        "perfetto-proto",
        "--since",
        "100000h",
    ]
    ingero(*arguments, "-o", str(out), home=home)
    packets = schema.Trace.FromString(out.read_bytes()).packet
    ends = [
        packet.track_event.name
        for packet in packets
        if packet.track_event.flow_ids and packet.track_event.name
    ]
    assert any(name.startswith("HIGH: cuMemAlloc p99=1.052216ms") for name in ends)
    clocks = [packet for packet in packets if packet.track_descriptor.name == "clock offset"]
    assert len(clocks) == len(nodes)


def test_unknown_certificate_then_trust_then_answer(tmp_path: Path, home: Path) -> None:
    """F136: an unknown certificate stops the command; the command that it prints then works."""
    write_samples(tmp_path / "samples", seed=1)
    db = sorted((tmp_path / "samples").glob("*.db"))[0]
    process, address, _ = start_node(db, home)
    try:
        assert process.stdout is not None
        fingerprint = process.stdout.readline().strip().rsplit(" ", 1)[1]
        sql = "SELECT count(*) AS n FROM events"
        refused = ingero("query", "--nodes", address, sql, home=home, status=1)
        assert f"fingerprint {fingerprint}" in refused.stderr
        assert f"ingero nodes trust {address}" in refused.stderr
        wrong = ingero("nodes", "trust", address, "--fingerprint", "00" * 32, home=home, status=1)
        assert "nothing was trusted" in wrong.stderr
        nobody = ingero("nodes", "trust", address, home=home, status=1)
        assert "nobody can compare it; nothing was trusted" in nobody.stderr
        short = fingerprint.lower().replace(":", "")
        ingero("nodes", "trust", f"https://{address}/", "--fingerprint", short, home=home)
        answered = ingero("query", "--nodes", address, "--json", sql, home=home)
        assert json.loads(answered.stdout)[0]["n"] > 0
    finally:
        assert stop(process) == 0


def test_f138_plaintext_off_loopback_and_tokens_on_the_command_line_are_refused(
    home: Path, tmp_path: Path
) -> None:
    db = str(tmp_path / "none.db")
    plain = ingero("dashboard", "--addr", ":0", "--no-tls", "--db", db, home=home, status=2)
    assert "would send traces in plaintext" in plain.stderr
    for half_secure in (("--client-ca", "ca.pem"), ("--tls-cert", "c.pem", "--tls-key", "k.pem")):
        both = ingero(
            "dashboard",
            "--addr",
            "127.0.0.1:0",
            "--no-tls",
            *half_secure,
            "--db",
            db,
            home=home,
            status=2,
        )
        assert "--no-tls and certificates exclude each other" in both.stderr
    token = ingero("dashboard", "--token", "x", "--db", db, home=home, status=2)
    assert "visible to every user" in token.stderr


class Answering(BaseHTTPRequestHandler):
    """A node that records when its answer was read; only then is it asked for the time."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._say(b'{"columns":["n"],"rows":[[7]]}')

    def do_GET(self) -> None:
        self.server.was_read.set()  # type: ignore[attr-defined] # our own server has it
        self._say(b'{"timestamp_ns":%d}' % time.time_ns())

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-ingero-node", "gpu-node-02")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("form", ["json", "table"])
def test_ctrl_c_prints_what_has_arrived_behind_a_silent_node(home: Path, form: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server,
    ):
        server.was_read = threading.Event()  # type: ignore[attr-defined] # see Answering
        threading.Thread(target=server.serve_forever, daemon=True).start()
        first = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [*INGERO, "query", "--nodes", f"{first},http://127.0.0.1:{server.server_port}",
             "--timeout", "300s", "--format", form, "SELECT count(*) AS n FROM events"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"HOME": str(home), "INGERO_CONFIG": str(home / "ingero.yaml")},
        )  # fmt: skip
        assert server.was_read.wait(PATIENCE_S)  # type: ignore[attr-defined] # see Answering
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_S)
        server.shutdown()
    assert process.returncode == 130
    expected = '[\n  {\n    "node": "gpu-node-02",\n    "n": 7\n  }\n]\n'
    assert out == (
        expected if form == "json" else "node         n\n-----------  -\ngpu-node-02  7\n"
    )
    assert f"interrupted: no answer yet from {first}\n" in errors


def test_ctrl_c_prints_what_has_arrived(nodes: list[str], home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        environment = os.environ | {"HOME": str(home), "INGERO_CONFIG": str(home / "ingero.yaml")}
        process = subprocess.Popen(
            [*INGERO, "query", "--nodes", f"{nodes[0]},{address}", "--timeout", "60s",
             "--format", "csv", "SELECT count(*) AS n FROM events"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "node,n\n"
        assert process.stdout.readline() == "gpu-node-01,200\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert f"interrupted: no answer yet from {address}\n" in errors
