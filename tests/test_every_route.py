"""Who may use every route of every service: a route without an entry here fails.

Each route is asked with tokens of one scope each, with a token for one cluster, with a wrong one
and with none. What changes something is also asked as a foreign web page would.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from tests.support.echo_service import RunningEcho
from tests.support.enrolment import enrolment_folder
from tests.support.pushes import NEVER_S
from tests.support.pushes import running as running_fleet
from tests.support.tokens import private
from tests.surface.parts import SOURCE
from tests.surface.routes import route_lines

from ingero.agent.api.routes import NodeApi, NodeGuard
from ingero.storage.trace.node_view import NodeView
from ingero.transport.access import Access
from ingero.transport.bearer import read_keys
from ingero.transport.http import HttpListener
from ingero.transport.listen import bind

NAMES = ("push", "read", "operate", "east")
TOKENS = {name: f"token-to-{name}-0123456789" for name in NAMES} | {"wrong": "wrong" * 8}
FILE = "".join(
    f"- {{key_name: {name}, token: {TOKENS[name]}, scopes: [{scopes}]{more}}}\n"
    for name, scopes, more in (
        ("push", "push", ""), ("read", "read", ""), ("operate", "operate", ""),
        ("east", "push, read, operate", ", allowed_clusters: [east]"),
    )
)  # fmt: skip
EVERYBODY = frozenset({*NAMES, "wrong", "none"})
PUSH, READ, OPERATE = frozenset({"push"}), frozenset({"read"}), frozenset({"operate"})
NOBODY: frozenset[str] = frozenset()
EAST = frozenset({"east"})  # what it may see is limited to its cluster inside the answer

# Who is let in, by listener and route; a token for one cluster is let in where it is filtered.
FLEET: Mapping[str, frozenset[str]] = {
    "http POST /v1/metrics": PUSH | EAST,
    "http POST /v1/traces": PUSH | EAST,
    "http POST /v1/logs": PUSH | EAST,
    "http GET /": EVERYBODY,
    "threshold GET /api/v1/threshold": PUSH | READ,
    "threshold GET /api/v1/status": READ | EAST,
    "threshold GET /api/v1/silences": READ | OPERATE | EAST,
    "threshold POST /api/v1/silences": OPERATE,
    "threshold POST /api/v1/silences/lift": OPERATE,
    "threshold GET /api/v1/limits": READ | OPERATE | EAST,
    "threshold POST /api/v1/limits": OPERATE,
    "threshold GET /api/v1/episodes": READ | EAST,
    "threshold GET /api/v1/episodes/{episode}": READ | EAST,
    "threshold GET /api/v1/episodes/{episode}/inputs": READ | EAST,
    "threshold GET /api/v1/episodes/{episode}/trace": READ | EAST,
    "threshold GET /api/v1/live": READ | EAST,
    "threshold GET /api/v1/authority": EVERYBODY,  # the certificate that join codes name
    "threshold POST /api/v1/enrol": NOBODY,  # takes join codes, no tokens
    "threshold POST /api/v1/enrol/renew": NOBODY,  # takes tokens of enrolled nodes
    "threshold POST /api/v1/enrol/leave": NOBODY,
    "threshold GET /api/v1/enrol/nodes": READ,
    "threshold GET /api/v1/node": READ,
    **{
        f"threshold GET {path}": EVERYBODY  # files of the page, without data
        for path in (
            "/", "/agents", "/job/{id:path}", "/node/{id:path}", "/episode/{id:path}",
            "/static/{name}",
        )
    },
    "admin GET /debug/clusters": READ,
    "admin GET /debug/scores": READ,
    "admin GET /": EVERYBODY,
    "health GET /healthz": EVERYBODY,
    "health GET /readyz": EVERYBODY,
    "health GET /": READ,
    "health GET /debug/servicez": READ,
    "health GET /debug/tracez": READ,
    "metrics GET /metrics": READ,
    "metrics GET /": EVERYBODY,
    "prometheus GET /metrics": READ,
    "prometheus GET /": EVERYBODY,
}  # fmt: skip
ECHO: Mapping[str, frozenset[str]] = {
    "http POST /v1/metrics": PUSH | EAST,
    "http POST /v1/traces": PUSH | EAST,
    "http POST /v1/logs": PUSH | EAST,
    "mcp GET /api/versions": EVERYBODY,
    **{
        f"mcp {method} /api/v1/{{path:path}}": EVERYBODY  # says where the new version is
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    },
    "mcp GET /api/v2/tools/list": READ | EAST,
    "mcp POST /api/v2/tools/{name}": READ | EAST,
    "mcp POST /api/v2/sql": READ | EAST,
    "mcp GET /api/v2/openapi.json": READ | EAST,
    "mcp GET /api/v2/health": READ | EAST,
    "mcp GET /api/v2/whoami": READ | EAST,
    "mcp GET /metrics": READ,
    "mcp GET /ask/{name}": EVERYBODY,  # the page; with a format it is an answer, see below
    "mcp GET /ask/{name}?format=json": READ | EAST,
    "mcp POST /mcp": READ | EAST,
    "mcp GET /ask": EVERYBODY,
    "mcp GET /": READ | EAST,  # MCP, unless a browser asks
    "mcp GET /static/{name}": EVERYBODY,
    "health GET /healthz": EVERYBODY,
    "health GET /metrics": READ,
}
NODE: Mapping[str, frozenset[str]] = {
    "node GET /": EVERYBODY,
    "node GET /static/{name}": EVERYBODY,
    **{
        f"node GET /api/v1/{name}": READ | EAST
        for name in (
            "time", "overview", "ops", "chains", "snapshots", "capabilities", "graph-metrics",
            "graph-events",
        )
    },
    "node POST /api/v1/query": READ | EAST,
}  # fmt: skip
# Not walked: they have one read-only page each, and no tokens. The agent's own listeners are off
# unless an operator opens them, which is logged.
OTHER_ROUTES = {
    "agent GET /metrics", "agent GET /healthz", "agent GET /ready/engine",
    "sink GET /metrics", "sink GET /healthz", "sink GET /readyz",
}  # fmt: skip
# Requests that change something must be JSON; OTLP has types of its own.
CHANGES = {
    "threshold POST /api/v1/silences", "threshold POST /api/v1/silences/lift",
    "threshold POST /api/v1/limits",
}  # fmt: skip
BODIES = {
    "/api/v1/silences": {"target": "n", "for_s": 60, "why": "x", "force": True},
    "/api/v1/silences/lift": {"target": "n"},
}


@dataclass(frozen=True, slots=True)
class Walked:
    """A running service: the address of each listener, and who may use each route."""

    addresses: Mapping[str, str]
    routes: frozenset[str]  # that its applications have
    expected: Mapping[str, frozenset[str]]


def routes_of(listener: str, app: Any) -> Iterator[str]:
    """Every route of an application, inside whatever is around it."""
    while not isinstance(app, Starlette):
        inner = [getattr(app, name, None) for name in ("_app", "app", "_inner")]
        cells = getattr(app, "__closure__", None) or ()
        inner += [cell.cell_contents for cell in cells]
        app = next(each for each in inner if callable(each))
    for route in app.routes:
        for method in sorted(set(route.methods) - {"HEAD"}):  # type: ignore[attr-defined]
            yield f"{listener} {method} {route.path}"  # type: ignore[attr-defined]


def served_routes(listeners: Mapping[str, str], serving: list[HttpListener]) -> Iterator[str]:
    by_address = {address: name for name, address in listeners.items()}
    for each in serving:
        yield from routes_of(by_address[each.address], each._server.config.app)


@contextlib.asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Walked]:
    own = {"token_file": str(private(folder / "tokens", FILE))}
    settings = {
        "receivers": {"otlp": {"protocols": {"grpc": own, "http": own}}},
        "extensions": {
            "ingero_threshold": own,
            "zpages": own,
            "ingero_enrolment": {"dir": str(enrolment_folder(folder / "enrolment"))},
        },
        "exporters": {"prometheus": own},
        "service": {"telemetry": {"metrics": own}},
    }
    async with running_fleet(tick_s=NEVER_S, **settings) as service:
        found = served_routes(service.addresses, service._listeners._http)
        yield Walked(service.addresses, frozenset(found), FLEET)


@contextlib.asynccontextmanager
async def echo(folder: Path) -> AsyncIterator[Walked]:
    tokens = private(folder / "tokens", FILE)
    with RunningEcho(folder, bearer_acl_file=tokens, bearer_rate=1e6, bearer_burst=9999) as running:
        service = running.service
        found = served_routes(service.addresses, service._listeners)
        added = {"mcp POST /mcp", "mcp GET /ask/{name}?format=json"}
        yield Walked(service.addresses, frozenset(found) | added, ECHO)


@contextlib.asynccontextmanager
async def node(folder: Path) -> AsyncIterator[Walked]:
    keys = read_keys(private(folder / "tokens", FILE))
    api = NodeApi(view=NodeView(folder / "trace.db")).app()
    guarded = NodeGuard(api, "node", Access(keys), ["127.0.0.1", "localhost"])
    listener = HttpListener(guarded, bind("127.0.0.1:0"))
    await listener.start()
    try:
        addresses = {"node": listener.address}
        yield Walked(addresses, frozenset(served_routes(addresses, [listener])), NODE)
    finally:
        await listener.stop()


SERVICES = {"fleet": fleet, "echo": echo, "agent": node}


async def ask(
    session: aiohttp.ClientSession, walked: Walked, route: str, who: str, **headers: str
) -> aiohttp.ClientResponse:
    """Send a request that is complete enough for its token to matter."""
    listener, method, path = route.split()
    path = re.sub(r"\{.*?\}", "x", path)
    if method == "POST":
        kind = "application/x-protobuf" if path.startswith("/v1/") else "application/json"
        headers = {"Content-Type": kind, **headers}
    if who != "none":
        headers["Authorization"] = f"Bearer {TOKENS[who]}"
    body = BODIES.get(path, {}) if "json" in headers.get("Content-Type", "") else None
    url = f"http://{walked.addresses[listener]}{path}"
    async with session.request(method, url, headers=headers, json=body) as reply:
        return reply


@pytest.mark.parametrize("name", SERVICES)
async def test_every_route_lets_in_only_who_may(name: str, tmp_path: Path) -> None:
    async with SERVICES[name](tmp_path) as walked, aiohttp.ClientSession() as session:
        assert walked.routes == walked.expected.keys(), "say here who may use a new route"
        for route, allowed in walked.expected.items():
            for who in (*TOKENS, "none"):
                status = (await ask(session, walked, route, who)).status
                if who in allowed:
                    assert status not in (401, 403), (route, who, status)
                else:
                    is_unknown = who in ("none", "wrong") or route.endswith("/enrol")
                    assert status == (401 if is_unknown else 403), (route, who)


def test_every_route_of_the_source_is_walked() -> None:
    """Also those of listeners that a test would not start."""
    walked = {
        f"{name} {route.partition(' ')[2]}"
        for name, expected in (("fleet", FLEET), ("echo", ECHO), ("agent", NODE))
        for route in expected
    }
    found = {line.removeprefix("route ") for line in route_lines(SOURCE) if "route " in line}
    assert {each for each in found if not each.startswith("query")} <= walked | OTHER_ROUTES


@pytest.mark.parametrize("name", SERVICES)
async def test_foreign_pages_change_nothing(name: str, tmp_path: Path) -> None:
    """A browser sends what its user may, under the address of the foreign page."""
    evil = {"Origin": "http://evil.example"}
    async with SERVICES[name](tmp_path) as walked, aiohttp.ClientSession() as session:
        for route, allowed in walked.expected.items():
            if " GET " in route or route.startswith("http "):
                continue  # nothing changes; OTLP is for senders that are no browser
            who = "operate" if "operate" in allowed else "read"
            assert (await ask(session, walked, route, who, **evil)).status == 403, route
            if not allowed:
                continue
            own = {"Origin": f"http://{walked.addresses[route.split()[0]]}"}
            assert (await ask(session, walked, route, who, **own)).status != 403, route
            if route in CHANGES:
                form = await ask(session, walked, route, who, **{"Content-Type": "text/plain"})
                assert form.status == 415, route


@pytest.mark.parametrize("name", SERVICES)
async def test_every_page_forbids_foreign_scripts_and_frames(name: str, tmp_path: Path) -> None:
    pages = 0
    async with SERVICES[name](tmp_path) as walked, aiohttp.ClientSession() as session:
        for route in walked.expected:
            if " GET " not in route:
                continue
            accept = {"Accept": "text/html"}
            for who in ("none", "read"):
                reply = await ask(session, walked, route, who, **accept)
                if reply.content_type == "text/html":
                    pages += 1
                    policy = reply.headers["Content-Security-Policy"]
                    assert "default-src 'none'" in policy, route
                    assert "frame-ancestors 'none'" in policy, route
                    assert "unsafe" not in policy, route
                    assert reply.headers["X-Frame-Options"] == "DENY", route
                    assert reply.headers["X-Content-Type-Options"] == "nosniff", route
                    assert "Access-Control-Allow-Origin" not in reply.headers, route
    assert pages >= 1, "nothing was looked at"
