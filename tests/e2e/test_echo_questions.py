"""Asking a real Echo as users do: with curl as documented, the command line, and MCP over stdio."""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from tests.support.echo_process import BIN, TOKEN, EchoProcess
from tests.support.questions_data import score
from tests.support.waiting import PATIENCE_S, until

from ingero.errors import IngeroError, Unavailable
from ingero.transport.bearer import read_token_file
from ingero.transport.echo_client import EchoClient
from ingero.transport.tools.tool import ToolRefused

pytestmark = pytest.mark.e2e
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "ask-echo.md"


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoProcess]:
    with EchoProcess(
        tmp_path_factory.mktemp("asked"), "--create-certificate", "--log-level", "info"
    ) as running:
        for number in range(6):
            send(running, score("prod", f"gpu-{number}", [0.9 if number != 2 else 0.25]))
        yield running


def send(echo: EchoProcess, body: bytes) -> None:
    headers = {
        "Content-Type": "application/x-protobuf",
        "X-Ingero-Wait": "1",
        "Authorization": f"Bearer {TOKEN}",
    }
    request = urllib.request.Request(f"https://{echo.addresses['http']}/v1/metrics", body, headers)
    context = ssl.create_default_context(cafile=str(authority(echo)))
    assert urllib.request.urlopen(request, timeout=PATIENCE_S, context=context).status == 200


def authority(echo: EchoProcess) -> Path:
    return echo.folder / "echo.db.tls" / "server.crt"


def environment(echo: EchoProcess) -> dict[str, str]:
    return {
        **os.environ,
        "INGERO_ECHO_URL": f"https://{echo.addresses['mcp']}",
        "INGERO_ECHO_TOKEN": TOKEN,
        "INGERO_ECHO_CA": str(authority(echo)),
    }


def ask(echo: EchoProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "ingero-echo"), "ask", *arguments]
    return subprocess.run(
        command,
        env=environment(echo),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )


def test_f105_the_curl_examples_of_the_docs_run(echo: EchoProcess) -> None:
    table, first, gate = re.findall(r"```bash\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    rows, reply = (
        subprocess.run(
            ["bash", "-ec", each],
            env=environment(echo),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        for each in (table, first)
    )
    assert rows.stdout.split() == ["1", "1"]
    assert json.loads(reply.stdout)["data"]["stragglers"][0]["node_id"] == "gpu-2"
    assert (
        subprocess.run(
            ["bash", "-ec", gate], env=environment(echo), timeout=PATIENCE_S, check=False
        ).returncode
        == 1
    )
    wrong = {**environment(echo), "INGERO_ECHO_TOKEN": "wrong"}
    assert subprocess.run(
        ["bash", "-ec", first], env=wrong, capture_output=True, timeout=PATIENCE_S, check=False
    ).returncode


def test_ask_lists_answers_and_explains(echo: EchoProcess) -> None:
    assert "find_stragglers" in ask(echo).stdout
    text = ask(echo, "find_stragglers", "cluster_id=prod")
    assert (text.returncode, "gpu-2" in text.stdout) == (0, True), text.stderr
    answer = json.loads(ask(echo, "fleet.cluster.find_stragglers", "limit=3", "--json").stdout)
    assert answer["stragglers"][0]["node_id"] == "gpu-2"
    rows = ask(echo, "run_analysis", "sql=SELECT count(*) AS n FROM events")
    assert rows.stdout.splitlines()[2] == "6"
    for arguments, said in (
        (("summary", "limit=2"), "it takes: cluster_id, window"),
        (("run_analysis", "sql=DROP TABLE events"), "only one SELECT"),
        (("summary", "--url", "https://127.0.0.1:1"), "no Echo answers"),
    ):
        refused = ask(echo, *arguments)
        assert (refused.returncode, said in refused.stderr) == (1, True), refused.stderr


async def test_an_assistant_over_stdio_gets_the_same_answers(echo: EchoProcess) -> None:
    server = StdioServerParameters(
        command=str(BIN / "ingero-echo"), args=["mcp"], env=environment(echo)
    )
    async with Client(stdio_client(server)) as client:
        assert len((await client.list_tools()).tools) == 11
        found = await client.call_tool("fleet.cluster.find_stragglers", {"cluster_id": "prod"})
        assert found.structured_content["stragglers"][0]["node_id"] == "gpu-2"
        prompt = (await client.get_prompt("investigate")).messages[0].content.text
        assert prompt.endswith("Node to open next: gpu-2")
        assert "value_double" in (await client.read_resource("echo://schema")).contents[0].text


def test_no_token_in_arguments_or_log_and_sighup_rotates(echo: EchoProcess) -> None:
    pids = [echo.process.pid, echo.store_pid()]
    assert not any(TOKEN in Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)
    fresh = "rotated-token-0123456789abcdef"
    (echo.folder / "token").write_text(fresh)
    echo.process.send_signal(signal.SIGHUP)
    client = EchoClient(f"https://{echo.addresses['mcp']}", fresh, authority(echo))

    def is_known() -> bool:
        try:
            return bool(client.ask("fleet.cluster.summary", {})["cluster_id"] == "prod")
        except (ToolRefused, Unavailable):
            return False
        except IngeroError as error:
            assert "bearer token" in str(error)
            return False

    until(is_known)
    old = EchoClient(client.url, TOKEN, client.ca)
    assert old.ask("fleet.cluster.summary", {})["cluster_id"] == "prod", (
        "the old one is good for a while"
    )
    log = (echo.folder / "echo.log").read_text()
    assert " audit " in log
    assert TOKEN not in log
    assert fresh not in log


def test_up_runs_both_restarts_a_dead_child_and_stops_cleanly(tmp_path: Path) -> None:
    zero = [word for flag in PORT_FLAGS for word in (f"--{flag}", "0")]
    command = [
        sys.executable,
        "-m",
        "ingero",
        "up",
        "--json",
        "--no-agent",
        "--data-dir",
        str(tmp_path / "data"),
        *zero,
    ]
    own = dict(os.environ) | {"INGERO_RUNTIME_DIR": str(tmp_path / "runtime")}
    up = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=own)
    try:
        assert up.stdout is not None
        where = json.loads(up.stdout.readline())
        body = score("home", "gpu-0", [0.9])
        end_s = time.monotonic() + 2 * PATIENCE_S
        push(where["fleet"]["http"], body)
        token = read_token_file(tmp_path / "data" / "echo.db.token")
        client = EchoClient(
            f"https://{where['echo']['mcp']}",
            token,
            tmp_path / "data" / "echo.db.tls" / "server.crt",
        )
        assert wait_for_nodes(client, {"gpu-0"}, end_s)
        children = Path(f"/proc/{up.pid}/task/{up.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[0]), signal.SIGKILL)
        push(where["fleet"]["http"], score("home", "gpu-1", [0.9]))
        assert wait_for_nodes(client, {"gpu-0", "gpu-1"}, end_s), (
            "Echo is back at its address and Fleet tried again"
        )
    finally:
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=2 * PATIENCE_S)
    assert up.returncode == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


PORT_FLAGS = (
    "fleet-grpc", "fleet-http", "fleet-api", "fleet-admin", "fleet-health", "fleet-metrics",
    "fleet-prometheus", "echo-otlp", "echo-otlp-http", "echo-api", "echo-health",
)  # fmt: skip


def push(address: str, body: bytes) -> None:
    request = urllib.request.Request(
        f"http://{address}/v1/metrics", body, {"Content-Type": "application/x-protobuf"}
    )
    assert urllib.request.urlopen(request, timeout=PATIENCE_S).status == 200


def wait_for_nodes(client: EchoClient, nodes: set[str], end_s: float) -> bool:
    sql = "SELECT DISTINCT node_id FROM events WHERE node_id IS NOT NULL"
    while time.monotonic() < end_s:
        try:
            if {
                row[0] for row in client.ask("fleet.cluster.run_analysis", {"sql": sql})["rows"]
            } >= nodes:
                return True
        except (ToolRefused, Unavailable):
            pass
        time.sleep(0.2)
    return False


def test_demo_with_echo_names_the_injected_node() -> None:
    command = [
        sys.executable,
        "-m",
        "ingero",
        "demo",
        "--echo",
        "--json",
        "--nodes",
        "4",
        "--push-interval",
        "1s",
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert result.returncode == 0, result.stderr
    story = json.loads(result.stdout)
    assert (story["ok"], story["echo_answer"]) == (True, story["straggler"])
