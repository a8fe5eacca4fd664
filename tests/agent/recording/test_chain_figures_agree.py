"""The figures of a causal chain are the same on the node and in Echo."""

import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.support.asking import data_of
from tests.support.recorded_chain import CHAIN, record

from ingero.agent.api.routes import NodeApi
from ingero.agent.api.tools.context import AgentContext
from ingero.cli.commands.explain import command as explain
from ingero.contract.chain_otlp import encode_chain_logs
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.rows import Signal
from ingero.storage.events.file_store import DuckDbStore
from ingero.storage.journal.frames import Frame
from ingero.storage.sqlite_guard import run_query
from ingero.storage.trace.chains import read_chains
from ingero.storage.trace.node_view import NodeView
from ingero.storage.trace.reading import reading
from ingero.storage.trace.stacks import report_chain

AT_NS = 1_794_709_942_000_000_000
COLUMNS = ("cuda_op", "cuda_p50_us", "cuda_p99_us", "tail_ratio", "severity", "pid")
Figures = tuple[object, ...]


def _of_explain(path: Path) -> Figures:
    (row,) = json.loads(CliRunner().invoke(explain, ["-d", str(path), "--json"]).output)
    return tuple(row[name] for name in COLUMNS)


def _of_sql(path: Path) -> Figures:
    (row,) = run_query(path, f"SELECT {', '.join(COLUMNS[:-1])} FROM causal_chains").rows
    return (*row, CHAIN.pid)


def _of_tool(path: Path) -> Figures:
    (row,) = asyncio.run(data_of(AgentContext(db=path), "get_causal_chains"))["chains"]
    names = ("operation", "p50_us", "p99_us", "tail_ratio", "severity", "pid")
    return tuple(row[name] for name in names)


def _of_page(path: Path) -> Figures:
    api = TestClient(NodeApi(view=NodeView(path)).app(), base_url="http://localhost")
    (row,) = api.get("/api/v1/chains").json()["chains"]
    return (*(row[name] for name in COLUMNS[:-1]), CHAIN.pid)


def _of_echo(path: Path) -> Figures:
    """Send the chain as an agent does, and read Echo's table."""
    with reading(path, 5.0) as connection:
        (found,) = read_chains(connection, 0)
        request = encode_chain_logs("c", "n", [report_chain(connection, found)])
    store = DuckDbStore(path.with_name("echo.db"), 256 << 20, 1)
    try:
        store.load([Frame(1, 0, AT_NS // 1000, Signal.LOGS, encode_protobuf(request))])
        names = "cuda_op, p50_us, p99_us, tail_ratio, severity, pid"
        row = store.cursor().execute(f"SELECT {names} FROM causal_chains").fetchone()
        assert row is not None
        return tuple(row)
    finally:
        store.close()


@settings(max_examples=6, deadline=None)
@given(p50_us=st.integers(1, 10**6), ratio=st.integers(1, 400))
def test_every_surface_shows_the_same_chain(p50_us: int, ratio: int) -> None:
    chain = replace(
        CHAIN, p50_ns=p50_us * 1000, p99_ns=p50_us * ratio * 1000, tail_ratio=float(ratio)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.db"
        record(path, "n", AT_NS, chain)
        wanted = (chain.cuda_op, p50_us, p50_us * ratio, ratio, "HIGH", CHAIN.pid)
        assert _of_explain(path) == wanted
        assert _of_sql(path) == wanted
        assert _of_tool(path) == wanted
        assert _of_page(path) == wanted
        assert _of_echo(path) == wanted
