"""Echo's question listener: HTTP and MCP on one port, behind one gate.

The gate checks each request first: draining, bearer token, rate. After the reply it writes an entry
to the audit trail. `/api/versions`, the retired version 1 and the files of the page need no token;
everything else does.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingero.config.rates import RateTable
from ingero.contract import api_paths
from ingero.contract.exposition import CONTENT_TYPE
from ingero.echo.audit import AuditTrail, Entry
from ingero.echo.engine import Engine
from ingero.echo.investigate import INSTRUCTIONS, SCHEMA_RESOURCE, investigate_text, read_schema
from ingero.echo.openapi import described
from ingero.echo.page.asked import SHELL, ask_endpoint, is_page
from ingero.echo.store.turns import Turns
from ingero.echo.tools.asker import PREFIX, Asker
from ingero.echo.tools.catalogue import TOOLS
from ingero.echo.tools.stragglers import StragglersQuestion, find_stragglers
from ingero.echo.tools.summary import SummaryQuestion, summary
from ingero.transport.access import Access, Denied
from ingero.transport.bearer import (
    AUTHORIZATION,
    CHALLENGE_HEADER,
    INVALID_CHALLENGE,
    Key,
    TokenScope,
)
from ingero.transport.browsers import FOREIGN_ORIGIN, is_foreign
from ingero.transport.http import SAFE_METHODS, Endpoint, json_response, never_a_page
from ingero.transport.rate_limit import RateLimit, address_group
from ingero.transport.tools.http import (
    REQUEST_ID_HEADER,
    list_tools,
    refusal,
    request_id,
    tool_endpoint,
)
from ingero.transport.tools.tool import ToolRefused
from ingero.web.assets import file_endpoint, page_endpoint

DRAIN_RETRY_S: Final = 5
METRICS_NEED_ALL_CLUSTERS: Final = (
    "metrics cover the whole service; use a token without a cluster scope"
)
VERSIONS_RATE: Final = (30.0, 100)
AUDITED_FAILURES: Final = (0.5, 30)  # by address: replies 401 that leave an entry
COMPRESS_FROM_BYTES: Final = 1024
MCP_PATHS: Final = ("/", api_paths.MCP)
_OPEN: Final = (api_paths.ECHO_VERSIONS, api_paths.ECHO_RETIRED.partition("/{")[0])
_CALLER: Final = "ingero.caller"
_DENIED_CODES: Final = {401: "unauthorized", 403: "scope_missing", 429: "rate_limited"}


@dataclass(frozen=True, slots=True)
class Caller:
    """The key and audit entry of a request; set by the gate, read by the handlers."""

    key: Key
    entry: Entry


@dataclass(slots=True, kw_only=True)
class QuestionApi:
    """Builds the application. Call `start` before it is served and `stop` after."""

    engine: Engine
    access: Access
    audit: AuditTrail
    rates: RateTable
    render_metrics: Callable[[], Awaitable[bytes]]
    bearer_rate: tuple[float, int]
    trusts_proxy: bool
    turns: Turns = field(default_factory=Turns)
    replies: Counter[tuple[str, int]] = field(default_factory=Counter)  # (transport, status)
    _mcp: Any = None

    def app(self) -> ASGIApp:
        """Return the whole listener as an ASGI application."""
        ask = tool_endpoint(TOOLS, lambda request, _: self._asker(request))
        routes = [
            Route(api_paths.ECHO_VERSIONS, _versions),
            Route(api_paths.ECHO_RETIRED, _gone, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
            Route(api_paths.ECHO_TOOLS_LIST, self._list),
            Route(api_paths.ECHO_TOOL, ask, methods=["POST"]),
            Route(api_paths.ECHO_SQL, _named(ask, PREFIX + "run_analysis"), methods=["POST"]),
            Route(api_paths.ECHO_OPENAPI, self._openapi),
            Route(api_paths.ECHO_HEALTH, self._health),
            Route(api_paths.ECHO_WHOAMI, self._whoami),
            Route(api_paths.PROMETHEUS, self._metrics),
            Route(api_paths.ECHO_ASK, ask_endpoint(self._asker)),
            Route(api_paths.ECHO_ASK_PAGE, page_endpoint(SHELL)),
            Route(api_paths.PAGE, page_endpoint(SHELL)),
            Route(api_paths.PAGE_FILE, file_endpoint),
        ]
        inner = Starlette(
            routes=routes,
            exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        )
        return Gate(GZipMiddleware(self._split(inner), COMPRESS_FROM_BYTES), self)

    async def start(self) -> None:
        """Start the MCP server."""
        from ingero.transport.tools.mcp import HttpMcp, McpPrompt, McpResource, McpSurface  # noqa: PLC0415 - slow

        surface = McpSurface(
            name="ingero-echo",
            tools=TOOLS,
            context_of=self._asker,
            prompts=[
                McpPrompt(
                    "investigate",
                    "Find the node and rank that slow a cluster down, and why",
                    _investigate,
                )
            ],
            resources=[McpResource(*SCHEMA_RESOURCE, read_schema)],
            instructions=INSTRUCTIONS,
        )
        self._mcp = HttpMcp(surface.server())
        await self._mcp.start()

    async def stop(self) -> None:
        """Stop the MCP server; the listener must have been stopped before."""
        if self._mcp is not None:
            await self._mcp.stop()

    def _split(self, inner: ASGIApp) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] in MCP_PATHS and not is_page(Request(scope)):
                await self._mcp.handle(scope, receive, send)
            else:
                await inner(scope, receive, send)

        return app

    def _asker(self, request: Request) -> Asker:
        caller: Caller = request.scope[_CALLER]
        return Asker(self.engine.store, caller.key, self.rates, caller.entry, turns=self.turns)

    async def _list(self, request: Request) -> Response:
        return _reply(request, list_tools(TOOLS)["data"])

    async def _openapi(self, request: Request) -> Response:
        return json_response(described())

    async def _health(self, request: Request) -> Response:
        problem = self.engine.problem
        body = {
            "status": "trouble" if problem else "ok",
            "reason": problem,
            "version": version("ingero"),
            "store_restarts": self.engine.store.restarts,
            "backlog_requests": self.engine.ingest.durable_seq - self.engine.store.applied_seq,
        }
        return _reply(request, body)

    async def _whoami(self, request: Request) -> Response:
        key: Key = request.scope[_CALLER].key
        clusters = None if key.clusters is None else sorted(key.clusters)
        per_s, burst = self.bearer_rate
        body = {
            "token_sha256_12": key.short_digest,
            "scoped": clusters is not None,
            "allowed_clusters": clusters or [],
            "scopes": sorted(key.scopes),
            "requests_per_s": per_s,
            "burst": burst,
        }
        return _reply(request, body)

    async def _metrics(self, request: Request) -> Response:
        if request.scope[_CALLER].key.clusters is not None:
            raise HTTPException(HTTPStatus.FORBIDDEN, METRICS_NEED_ALL_CLUSTERS)
        return Response(await self.render_metrics(), media_type=CONTENT_TYPE)


class Gate:
    """The ASGI layer in front of everything: authentication, rate limits and the audit trail."""

    def __init__(self, inner: ASGIApp, api: QuestionApi) -> None:
        self._inner = inner
        self._api = api
        self._by_bearer = RateLimit(*api.bearer_rate)
        self._by_address = RateLimit(*VERSIONS_RATE)
        self._audited = RateLimit(*AUDITED_FAILURES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        send = never_a_page(send)
        entry = Entry(
            request_id(request),
            transport="mcp" if scope["path"] in MCP_PATHS and not is_page(request) else "http",
            tool=scope["path"],
            address=self._address(request),
        )

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                if not any(name.lower() == b"x-request-id" for name, _ in message["headers"]):
                    message["headers"] = [
                        *message["headers"],
                        (REQUEST_ID_HEADER.lower().encode(), entry.request_id.encode()),
                    ]
            await send(message)

        refused = self._admit(request, entry)
        if refused is not None:
            await refused(scope, receive, send_and_note)
        else:
            await self._inner(scope, receive, send_and_note)
        self._api.replies[entry.transport, entry.status] += 1
        if entry.token_digest or self._is_audited_failure(request, entry):
            self._api.audit.add(entry)

    def _is_audited_failure(self, request: Request, entry: Entry) -> bool:
        if entry.status != HTTPStatus.UNAUTHORIZED:
            return False
        address = address_group(self._address(request))
        return not self._audited.take(address, time.monotonic())

    def _admit(self, request: Request, entry: Entry) -> Response | None:
        """Return a refusal, or None to let the request in."""
        now_s = time.monotonic()
        if self._api.engine.ingest.draining:
            return refusal(
                ToolRefused("draining", "Echo is stopping", 503, DRAIN_RETRY_S), entry.request_id
            )
        if request.method not in SAFE_METHODS and is_foreign(request.scope["headers"]):
            error = ToolRefused("foreign_origin", FOREIGN_ORIGIN, HTTPStatus.FORBIDDEN)
            return refusal(error, entry.request_id)
        if request.scope["path"].startswith(_OPEN) or is_page(request):
            wait_s = self._by_address.take(self._address(request), now_s)
            return _too_many(wait_s, entry) if wait_s else None
        key = self._api.access.check(
            request.headers.get(AUTHORIZATION), self._address(request), TokenScope.READ
        )
        if isinstance(key, Denied):
            return _denied(key, entry)
        entry.token_digest, entry.key_name = key.short_digest, key.name
        request.scope[_CALLER] = Caller(key, entry)
        wait_s = self._by_bearer.take(key.digest, now_s)
        return _too_many(wait_s, entry) if wait_s else None

    def _address(self, request: Request) -> str:
        """Return the address of the client; behind a trusted proxy, the one that the proxy saw."""
        forwarded = request.headers.get("x-forwarded-for", "")
        if self._api.trusts_proxy and forwarded:
            return forwarded.rsplit(",", 1)[-1].strip()
        return request.client.host if request.client else ""


def _denied(denied: Denied, entry: Entry) -> Response:
    code = _DENIED_CODES[denied.status]
    error = ToolRefused(code, denied.message, denied.status, denied.retry_after_s)
    response = refusal(error, entry.request_id)
    if denied.status == HTTPStatus.UNAUTHORIZED:
        response.headers[CHALLENGE_HEADER] = INVALID_CHALLENGE
    return response


def _too_many(wait_s: float, entry: Entry) -> Response:
    after = max(1, int(wait_s + 0.999))
    return refusal(
        ToolRefused("rate_limited", f"too many requests; ask again in {after} s", 429, after),
        entry.request_id,
    )


def _reply(request: Request, data: Any) -> Response:
    entry: Entry = request.scope[_CALLER].entry
    took_ms = round((time.perf_counter() - entry.began_s) * 1e3, 3)
    return json_response(
        {"data": data, "meta": {"duration_ms": took_ms, "request_id": entry.request_id}}
    )


def _named(endpoint: Endpoint, name: str) -> Endpoint:
    async def named(request: Request) -> Response:
        request.path_params["name"] = name
        response: Response = await endpoint(request)
        return response

    return named


async def _investigate(asker: Asker) -> str:
    return await investigate_text(
        lambda: find_stragglers(asker, StragglersQuestion(limit=1)),
        lambda: summary(asker, SummaryQuestion()),
    )


async def _versions(_: Request) -> Response:
    major_minor = ".".join(version("ingero").split(".")[:2])
    body = {
        "supported": ["v2"],
        "deprecated": [],
        "preferred": "v2",
        "binary": {"component": "ingero-echo", "version": major_minor},
        "capabilities": ["tools", "sql", "mcp", "openapi"],
        "removal_schedule": {"v1": "removed"},
    }
    return json_response(body)


async def _gone(request: Request) -> Response:
    raise HTTPException(
        410, f"version 1 is gone; use {api_paths.ECHO_ROOT}, described at {api_paths.ECHO_OPENAPI}"
    )


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    caller: Caller | None = request.scope.get(_CALLER)
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    identifier = caller.entry.request_id if caller else request_id(request)
    response = refusal(ToolRefused(code, error.detail, error.status_code), identifier)
    response.headers.update(dict(error.headers or {}))
    return response


async def _internal_error(request: Request, _: Exception) -> Response:
    """Answer after an error of our own: the log has the details under the request id."""
    entry: Entry = request.scope[_CALLER].entry
    return refusal(
        ToolRefused("internal", "an internal error of Echo; its log has the details", 500),
        entry.request_id,
    )
