"""`--no-tls`: plaintext on this machine, and elsewhere only on a network that is trusted."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.support.asking import calls, trace

from ingero.agent.api.routes import NodeApi, NodeGuard
from ingero.agent.api.server import DashboardSettings, start_dashboard
from ingero.cli.dispatch import run
from ingero.errors import ConfigError
from ingero.storage.trace.node_view import NodeView
from ingero.transport.access import Access
from ingero.transport.fanout.nodes import plain_nodes


class _Node:
    """A dashboard in plaintext, on a thread of its own."""

    def __init__(self, settings: DashboardSettings) -> None:
        self._settings, self._ready, self.url = settings, threading.Event(), ""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        serving = await start_dashboard(self._settings)
        self.url = serving.url
        self._ready.set()
        await self._stop.wait()
        await serving.stop()
        serving.listener.listener.close()

    def __enter__(self) -> "_Node":
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)


def test_query_and_explain_ask_in_plaintext_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    db = trace(tmp_path / "t.db", calls(20))
    settings = DashboardSettings(address="127.0.0.1:0", db=db, node="n1", plaintext=True)
    with _Node(settings) as node:
        assert node.url.startswith("http://127.0.0.1")
        nodes = node.url.removeprefix("http://")
        asked = [
            "query",
            "--no-tls",
            "--nodes",
            nodes,
            "--json",
            "SELECT count(*) AS n FROM events",
        ]
        assert run(asked) == 0
        assert json.loads(capsys.readouterr().out)[0]["n"] == 20
        assert run(["explain", "--no-tls", "--nodes", nodes]) in (0, 3)


def test_f138_other_machines_need_a_trusted_network() -> None:
    with pytest.raises(ConfigError, match="add --trusted-network"):
        plain_nodes(["127.0.0.1:1", "gpu-1:8080"], is_trusted=False)
    with pytest.raises(ConfigError, match="uses TLS"):
        plain_nodes(["https://gpu-1:8080"], is_trusted=True)
    assert plain_nodes(["gpu-1:8080", "http://[::1]:9"], is_trusted=True) == [
        "http://gpu-1:8080", "http://[::1]:9"
    ]  # fmt: skip


def test_a_trusted_network_is_no_option_of_tls(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["query", "--trusted-network", "--nodes", "gpu-1:8080", "SELECT 1"]) == 2
    assert "goes with --no-tls" in capsys.readouterr().err


async def test_the_node_takes_no_token_in_plaintext(tmp_path: Path) -> None:
    far = DashboardSettings(address="0.0.0.0:0", db=tmp_path / "t.db", node="n", plaintext=True)
    with pytest.raises(ConfigError, match="add --trusted-network"):
        await start_dashboard(far)


def test_a_request_with_a_token_is_refused_in_plaintext(tmp_path: Path) -> None:
    guard = NodeGuard(
        NodeApi(view=NodeView(trace(tmp_path / "t.db"))).app(), "n", Access(None), None,
        takes_tokens=False,
    )  # fmt: skip
    client = TestClient(guard)
    assert client.get("/api/v1/overview").status_code == 200
    refused = client.get("/api/v1/overview", headers={"Authorization": "Bearer secret"})
    assert (refused.status_code, "takes no token" in refused.json()["error"]) == (400, True)
