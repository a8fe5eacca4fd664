"""Nodes to ask, served as `ingero dashboard` serves them, and one question to all of them."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tests.support.tokens import access_of
from tests.support.waiting import PATIENCE_S

from ingero.agent.api.routes import NodeApi, NodeGuard
from ingero.contract.api_paths import NODE_QUERY
from ingero.storage.trace.node_view import NodeView
from ingero.transport.fanout.ask import Fanout
from ingero.transport.fanout.client import NodeReply, Question
from ingero.transport.fanout.nodes import FanoutPolicy
from ingero.transport.http import HttpListener, TimedProtocol
from ingero.transport.listen import bind
from ingero.transport.tls import ServerTls, server_context

SQL = Question(NODE_QUERY, {"sql": "SELECT count(*) AS n FROM events", "limit": 10})


@contextlib.asynccontextmanager
async def node(
    db: Path,
    name: str = "n1",
    tls: ServerTls | None = None,
    now_ns: Callable[[], int] = time.time_ns,
    token: str | None = None,
) -> AsyncIterator[str]:
    """The address of a node that answers from a trace database."""
    app = NodeApi(view=NodeView(db), now_ns=now_ns).app()
    checked = NodeGuard(app, name, access_of(token), None)
    listener = HttpListener(checked, bind("127.0.0.1:0"), server_context(tls) if tls else None)
    await listener.start()
    try:
        yield listener.address
    finally:
        await listener.stop()


@contextlib.asynccontextmanager
async def node_listener(
    db: Path, protocol: type[TimedProtocol] = TimedProtocol
) -> AsyncIterator[HttpListener]:
    """The listener of such a node, to count its connections or to hurry its peers."""
    checked = NodeGuard(NodeApi(view=NodeView(db)).app(), "n", access_of(None), None)
    listener = HttpListener(checked, bind("127.0.0.1:0"), protocol=protocol)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


async def ask(nodes: list[str], question: Question = SQL, **policy: object) -> list[NodeReply]:
    """Every node's reply to one question."""
    async with Fanout(FanoutPolicy(**{"timeout_s": PATIENCE_S, **policy})) as fanout:
        return [reply async for reply in fanout.ask(nodes, question)]


def host_and_port(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host, int(port)
