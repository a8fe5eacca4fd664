"""F125: the causal chains of a node reach Echo, which answers why without opening the node."""

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.echo_process import BIN
from tests.support.echo_service import TOKEN, RunningEcho
from tests.support.mcp_client import mcp_client
from tests.support.recorded_chain import CHAIN, FRAMES, record
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.e2e


@contextlib.contextmanager
def fleet_before(echo: RunningEcho, folder: Path) -> Iterator[str]:
    """Serve a Fleet that forwards metrics and logs to Echo; yield its HTTP address."""
    token = folder / "echo.token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    pipeline = {"receivers": ["otlp"], "processors": ["ingero"], "exporters": ["otlphttp"]}
    address = f"http://{echo.service.addresses['http']}"
    document = {
        "exporters": {"otlphttp": {"endpoint": address, "token_file": str(token)}},
        "service": {"pipelines": {"metrics": pipeline, "logs": pipeline}},
    }
    config = folder / "fleet.yaml"
    config.write_text(json.dumps(document))
    ports = ("http", "grpc", "agent", "admin", "health", "metrics")
    command = [str(BIN / "ingero-fleet"), "--json", "--config", str(config)]
    fleet = subprocess.Popen(
        [*command, "--log-level", "warning", *(f"--{name}=127.0.0.1:0" for name in ports)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert fleet.stdout is not None
    try:
        yield json.loads(fleet.stdout.readline())["addresses"]["http"]
    finally:
        fleet.terminate()
        assert fleet.wait(PATIENCE_S) == 0
        fleet.stdout.close()


def test_f125_echo_answers_why_from_what_the_recorder_found(tmp_path: Path) -> None:
    database, now_ns = tmp_path / "node.db", time.time_ns()
    record(database, "gpu-3", now_ns - 10**9)
    with (
        RunningEcho(tmp_path, bearer_rate=10_000, bearer_burst=100_000) as echo,
        fleet_before(echo, tmp_path) as fleet,
    ):
        flags = ["--fleet-cluster-id", "prod", "--fleet-node-id", "gpu-3", "--signal-db-path"]
        push = [str(BIN / "ingero"), "fleet-push", "--fleet-endpoint", f"http://{fleet}", *flags]
        with (tmp_path / "agent.log").open("w") as log:
            agent = subprocess.Popen(
                [*push, str(database), "--fleet-persist-path", ""], stdout=log, stderr=log
            )
        try:
            until(lambda: found(echo) == 1)
        finally:
            agent.terminate()
            agent.wait(PATIENCE_S)
        (chain,) = [
            row
            for row in echo.answer("anomalies", cluster_id="prod", window="all")["anomalies"]
            if row["kind"] == "causal_chain"
        ]
        # the same file by hand, twice: what Echo has already is not added again
        again = [str(BIN / "ingero"), "import", str(database), "--to", echo.url("", "http")]
        again += ["--cluster", "prod", "--token-file", str(tmp_path / "echo.token"), "--json"]
        for _ in range(2):
            said = subprocess.run(again, capture_output=True, text=True, check=True)
            assert json.loads(said.stdout)["chains_added"] == 1
        assert found(echo) == 1
        rows = echo.sql("SELECT stacks, process, pid FROM causal_chains").json["data"]["rows"]
        prompt = asyncio.run(investigate(echo))
    assert (chain["node_id"], chain["severity"]) == ("gpu-3", "HIGH")
    assert chain["cause"] == CHAIN.root_cause
    assert chain["top_frame"] == "next_batch (loader.py:47)"
    assert chain["advice"] == CHAIN.recommendations[0]
    assert CHAIN.root_cause in prompt and "next_batch (loader.py:47)" in prompt
    ((stacks, process, pid),) = rows
    (stack,) = json.loads(stacks)
    assert (process, pid, stack["calls"], stack["total_us"]) == ("python", 4242, 5, 400_000)
    assert stack["frames"] == [str(frame) for frame in FRAMES]


async def investigate(echo: RunningEcho) -> str:
    async with mcp_client(echo, "/mcp") as client:
        text: str = (await client.get_prompt("investigate")).messages[0].content.text
        return text


def found(echo: RunningEcho) -> int:
    count: int = echo.sql("SELECT count(*) FROM causal_chains").json["data"]["rows"][0][0]
    return count
