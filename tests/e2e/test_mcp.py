"""`ingero mcp` as a process: official clients over stdio and HTTPS; others are refused."""

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from tests.support.cpu_time import cpu_s
from tests.support.waiting import PATIENCE_S, until

from ingero.agent.api.tools.catalogue import AGENT_TOOLS
from ingero.sim.samples import write_samples

pytestmark = pytest.mark.e2e
TOKEN = "s3cret-of-the-mcp-0123"
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
# every tool with every one of its parameters, and whether that is an error
CALLS: list[tuple[str, dict[str, Any], bool]] = [
    ("get_check", {}, False),
    ("get_trace_stats", {"since": "", "tsc": False}, False),
    ("get_trace_stats", {"since": "5 minutes"}, True),
    ("get_causal_chains", {"since": "90000h", "top_n": 3, "tsc": False}, False),
    ("get_causal_chains", {"pid": 1880, "pids": [1880, 7]}, False),
    ("get_causal_chains", {"pids": "1880"}, True),
    (
        "get_stacks",
        {"source": "driver", "op": "cuLaunchKernel", "pid": 1880, "since": "", "limit": 3},
        False,
    ),
    ("get_stacks", {"limit": 1000}, True),
    (
        "run_sql",
        {"query": "SELECT node, count(*) FROM events GROUP BY 1;", "limit": 5, "tsc": False},
        False,
    ),
    ("run_sql", {"query": "DROP TABLE events"}, True),
    ("run_sql", {}, True),
    ("graph_lifecycle", {"pid": 1880, "since": "1h", "tsc": True}, False),
    ("graph_frequency", {"pid": 1880, "window_seconds": 10, "since": ""}, False),
    ("graph_frequency", {"pid": 1880, "window_seconds": 0}, True),
    (
        "query_fleet",
        {"action": "chains", "since": "1h", "pid": 0, "query": "", "sql": "", "limit": 9},
        True,
    ),
    ("run_demo", {"scenario": "gpu-steal", "tsc": False}, False),
    ("run_demo", {"scenario": "earthquake"}, True),
    ("get_test_report", {}, False),
    (
        "pagerduty_trigger",
        {
            "summary": "s",
            "severity": "info",
            "source": "n",
            "dedup_key": "d",
            "custom_details": {"a": 1},
        },
        True,
    ),
    ("no_such_tool", {}, True),
]


@dataclass(frozen=True)
class Served:
    """A running server, and how to reach it."""

    process: subprocess.Popen[str]
    url: str
    trust: ssl.SSLContext
    log: Path

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx.AsyncClient(verify=self.trust, headers=headers, timeout=PATIENCE_S) as http,
            Client(streamable_http_client(self.url, http_client=http)) as client,
        ):
            yield client


def environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("INGERO_")}
    return {**kept, "HOME": str(folder), "INGERO_MCP_BEARER_TOKEN": TOKEN}


def start(folder: Path, db: Path) -> Served:
    log = folder / "mcp.log"
    process = subprocess.Popen(
        [sys.executable, "-m", "ingero", "mcp", "--http", "127.0.0.1:0",
         "--db", str(db), "--log", str(log)],
        stderr=subprocess.PIPE, text=True, env=environment(folder),
    )  # fmt: skip
    assert process.stderr is not None
    url = process.stderr.readline().strip().removeprefix("MCP at ")
    return Served(
        process, url, ssl.create_default_context(cafile=str(folder / ".ingero/tls/server.crt")), log
    )


def stop(served: Served) -> str:
    """Stopped by SIGTERM with status 0; returns what it said meanwhile."""
    served.process.send_signal(signal.SIGTERM)
    _, said = served.process.communicate(timeout=PATIENCE_S)
    assert served.process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("samples"))[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Iterator[Served]:
    served = start(tmp_path_factory.mktemp("mcp"), sample)
    yield served
    stop(served)


async def check_every_tool(client: Client) -> None:
    assert {name for name, *_ in CALLS} >= {tool.name for tool in AGENT_TOOLS}
    answers = await asyncio.gather(
        *(client.call_tool(name, arguments) for name, arguments, _ in CALLS)
    )
    for (name, arguments, is_error), answer in zip(CALLS, answers, strict=True):
        assert answer.is_error is is_error, (name, arguments, answer.content[0].text)
        assert "error of ingero itself" not in answer.content[0].text
    prompt = (await client.get_prompt("investigate")).messages[0].content.text
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert all(
        name in prompt
        for name in listed
        if name.startswith(("get_trace", "get_causal", "graph", "query"))
    )
    assert [name for name, tool in listed.items() if not tool.annotations.read_only_hint] == [
        "pagerduty_trigger"
    ]


async def test_every_tool_over_https_all_at_once(server: Served) -> None:
    async with server.client() as client:
        await check_every_tool(client)


async def test_every_tool_over_stdio_all_at_once(sample: Path, tmp_path: Path) -> None:
    arguments = ["-m", "ingero", "mcp", "--db", str(sample)]
    served = StdioServerParameters(
        command=sys.executable, args=arguments, env=environment(tmp_path)
    )
    async with Client(served) as client:
        await check_every_tool(client)


def test_wrong_and_missing_tokens_are_refused_alike(server: Served) -> None:
    with httpx.Client(verify=server.trust) as http:
        answers = [
            http.post(server.url, json={}, headers=headers)
            for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": f"Basic {TOKEN}"})
        ]
        assert {
            (reply.status_code, reply.text, reply.headers["www-authenticate"]) for reply in answers
        } == {(401, "unauthorized\n", 'Bearer error="invalid_token"')}
        right = {"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}
        assert http.post(server.url, json={}, headers=right).status_code == 403, (
            "a name we do not have"
        )
        large = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        assert http.post(server.url, content=b" " * (8 << 20), headers=large).status_code == 413
        assert http.get(server.url.removesuffix("/mcp") + "/other").status_code == 404


def test_strangers_and_old_tls_do_not_get_in(server: Served) -> None:
    old = ssl.create_default_context()
    old.check_hostname, old.verify_mode, old.maximum_version = (
        False,
        ssl.CERT_NONE,
        ssl.TLSVersion.TLSv1_2,
    )
    for trust in (old, ssl.create_default_context()):
        with httpx.Client(verify=trust) as http, pytest.raises(httpx.ConnectError):
            http.post(server.url, json={})


def test_sigterm_in_the_middle_of_a_call_ends_it_and_leaves_no_traceback(
    tmp_path: Path, sample: Path
) -> None:
    served = start(tmp_path, sample)
    question = {"name": "run_sql", "arguments": {"query": ENDLESS}}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": question}
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream"}

    def post() -> str:
        try:
            return httpx.post(
                served.url, json=asked, headers=headers, verify=served.trust, timeout=PATIENCE_S
            ).text
        except httpx.TransportError:
            return "the connection ended"

    with ThreadPoolExecutor(1) as pool:
        begun_s = cpu_s(served.process.pid)
        reply = pool.submit(post)
        until(lambda: cpu_s(served.process.pid) > begun_s + 0.5, "the query never began")
        said = stop(served)
        assert "count" not in reply.result(PATIENCE_S), "no answer came"
    assert "Traceback" not in said + served.log.read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--http", "nowhere"], 2, "is not an address"),
        (["--http", "127.0.0.1:{port}"], 1, "is already in use"),
        (["--log", "/nonexistent/x.log"], 2, "cannot write the log"),
        (["--mcp-bearer-token", "x"], 2, "visible to every user"),
    ],
)
def test_a_server_that_cannot_start_reports_why_in_one_line(
    server: Served, tmp_path: Path, arguments: list[str], status: int, words: str
) -> None:
    port = server.url.removesuffix("/mcp").rpartition(":")[2]
    command = [
        sys.executable,
        "-m",
        "ingero",
        "mcp",
        *(word.format(port=port) for word in arguments),
    ]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(tmp_path),
    )
    assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
    assert words in done.stderr
