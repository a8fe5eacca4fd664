"""`ingero mcp --http`: the official client over HTTPS with a bearer, and everybody else refused alike."""

import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator

import httpx2 as httpx
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.storage.test_merge import database
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.e2e
TOKEN = "s3cret"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ssl.SSLContext]]:
    folder = tmp_path_factory.mktemp("mcp")
    db = database(folder / "a.db")
    process = subprocess.Popen(
        [sys.executable, "-m", "ingero", "mcp", "--http", "127.0.0.1:0", "--db", str(db)], stderr=subprocess.PIPE,
        text=True, env=os.environ | {"HOME": str(folder), "INGERO_MCP_BEARER_TOKEN": TOKEN},
    )  # fmt: skip
    assert process.stderr is not None
    url = process.stderr.readline().strip().removeprefix("MCP at ")
    context = ssl.create_default_context(cafile=str(folder / ".ingero/tls/server.crt"))
    yield url, context
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


async def test_official_client_over_https(server: tuple[str, ssl.SSLContext]) -> None:
    url, context = server
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx.AsyncClient(verify=context, headers=headers) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        assert "query_fleet" in {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("run_sql", {"query": "SELECT count(*) AS n FROM events"})
        assert not result.is_error


def test_wrong_and_missing_tokens_are_refused_alike(server: tuple[str, ssl.SSLContext]) -> None:
    url, context = server
    with httpx.Client(verify=context) as http:
        answers = [
            http.post(url, json={}, headers=headers)
            for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": f"Basic {TOKEN}"})
        ]
        assert {(reply.status_code, reply.text, reply.headers["www-authenticate"]) for reply in answers} == {
            (401, "unauthorized\n", 'Bearer error="invalid_token"')
        }
        right = {"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}
        assert http.post(url, json={}, headers=right).status_code == 403, "a name we do not have"
        assert http.get(url.removesuffix("/mcp") + "/other").status_code == 404
