"""The API and page of a node: read-only questions about its trace, for people and for the fan-out.

Every reply carries the name of the node, so that a client can show names instead of addresses.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ingero.contract import api_paths
from ingero.contract.names import NODE_NAME_HEADER
from ingero.contract.node_api import (
    MAX_QUERY_BODY_BYTES,
    ErrorReply,
    GpuInfo,
    QueryReply,
    QueryRequest,
    TimeReply,
    capabilities,
)
from ingero.core.units import parse_since_ns
from ingero.errors import (
    ForeignFile,
    IngeroError,
    MalformedInput,
    StoreError,
    TooLarge,
    Unavailable,
)
from ingero.storage.sqlite_guard import DEFAULT_ROWS, MAX_ROWS, QueryLimits, run_query
from ingero.storage.trace.node_view import NodeView
from ingero.transport.access import Access, Denied
from ingero.transport.bearer import CHALLENGE_HEADER, INVALID_CHALLENGE, TokenScope
from ingero.transport.bounded import read_request_body
from ingero.transport.browsers import (
    FOREIGN_ORIGIN,
    host_name,
    is_foreign,
)
from ingero.transport.http import SAFE_METHODS, json_response, never_a_page
from ingero.web.assets import file_endpoint, page_endpoint

QUERY_TIMEOUT_S = 30.0
# further queries wait, so that slow ones do not take every thread and all memory
MAX_CONCURRENT_SQL = 4
MAX_CONCURRENT_READS = 4  # of the other endpoints, so that slow SQL does not delay them
DEFAULT_SNAPSHOT_SINCE = "60s"
# the first match counts: a file that is not a trace is the fault of the node, not of the caller
_STATUS = {ForeignFile: 503, MalformedInput: 400, TooLarge: 413, Unavailable: 504, StoreError: 503}
P = ParamSpec("P")
Answer = TypeVar("Answer")
_decode_query = msgspec.json.Decoder(QueryRequest).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeApi:
    """Handlers for one trace database.

    `now_ns` is the wall clock that `/api/v1/time` returns.
    """

    view: NodeView
    now_ns: Callable[[], int] = time.time_ns
    gpu: GpuInfo | None = None
    query_timeout_s: float = QUERY_TIMEOUT_S
    sql_slots: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_SQL)
    )
    read_slots: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_READS)
    )

    def app(self) -> Starlette:
        """Return the routes; `NodeGuard` has to be put around them."""
        return Starlette(
            routes=[
                Route(api_paths.PAGE, page_endpoint("local.html")),
                Route(api_paths.PAGE_FILE, file_endpoint),
                Route(api_paths.NODE_TIME, self.time),
                Route(api_paths.NODE_OVERVIEW, self.overview),
                Route(api_paths.NODE_OPS, self.ops),
                Route(api_paths.NODE_CHAINS, self.chains),
                Route(api_paths.NODE_SNAPSHOTS, self.snapshots),
                Route(api_paths.NODE_CAPABILITIES, self.capabilities),
                Route(api_paths.NODE_GRAPH_METRICS, self.graph_metrics),
                Route(api_paths.NODE_GRAPH_EVENTS, self.graph_events),
                Route(api_paths.NODE_QUERY, self.query, methods=["POST"]),
            ],
            exception_handlers={
                IngeroError: _ingero_error,
                HTTPException: _http_error,
                Exception: _internal_error,
            },
        )

    async def time(self, _: Request) -> Response:
        return json_response(TimeReply(self.now_ns()))

    async def overview(self, _: Request) -> Response:
        answer = await self._read(self.view.overview, self.now_ns())
        answer.gpu = self.gpu
        return json_response(answer)

    async def ops(self, request: Request) -> Response:
        since_ns, pid = self._since_ns(request), _pid(request)
        return json_response(await self._read(self.view.ops, self.now_ns(), since_ns, pid))

    async def chains(self, request: Request) -> Response:
        return json_response(await self._read(self.view.chains, self._since_ns(request)))

    async def snapshots(self, request: Request) -> Response:
        return json_response(
            await self._read(self.view.snapshots, self._since_ns(request, DEFAULT_SNAPSHOT_SINCE))
        )

    async def capabilities(self, _: Request) -> Response:
        return json_response(capabilities())

    async def graph_metrics(self, request: Request) -> Response:
        return json_response(await self._read(self.view.graph_metrics, self._since_ns(request)))

    async def graph_events(self, request: Request) -> Response:
        since_ns, pid = self._since_ns(request), _pid(request)
        return json_response(await self._read(self.view.graph_events, since_ns, pid))

    async def _read(self, read: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        async with self.read_slots:
            return await run_in_threadpool(read, *args, **kwargs)

    async def query(self, request: Request) -> Response:
        asked = await _read_query(request)
        if not self.view.path.exists():
            raise StoreError(
                f"there is no trace on this node yet: {self.view.path} does not exist; "
                "run `ingero trace`"
            )
        rows = min(asked.limit if asked.limit > 0 else DEFAULT_ROWS, MAX_ROWS)
        limits = QueryLimits(timeout_s=self.query_timeout_s, max_rows=rows)
        has_left = threading.Event()
        watch = asyncio.create_task(_set_on_leaving(request, has_left))
        try:
            async with self.sql_slots:
                result = await run_in_threadpool(
                    run_query, self.view.path, asked.sql, limits, has_left.is_set
                )
        finally:
            watch.cancel()
        return json_response(QueryReply(result.columns, result.rows, result.truncated))

    def _since_ns(self, request: Request, default: str = "") -> int:
        text = request.query_params.get("since", "") or default
        try:
            return parse_since_ns(text, self.now_ns()) if text else 0
        except ValueError as error:
            raise MalformedInput(f"since: {error}") from None


class NodeGuard:
    """Checks the host name and the token of each request, and adds the node name to each reply."""

    def __init__(
        self,
        app: ASGIApp,
        node: str,
        access: Access,
        hosts: Collection[str] | None,
        *,
        takes_tokens: bool = True,
    ) -> None:
        self.app = app
        # a header is a single line
        self.node = "".join(c if c.isprintable() else "?" for c in node).encode("utf-8", "replace")
        self.access = access
        self.takes_tokens = takes_tokens
        self.hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)

        async def named(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    (NODE_NAME_HEADER.lower().encode(), self.node),
                ]
            await send(message)

        await (refusal or self.app)(scope, receive, never_a_page(named))

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> Response | None:
        host = host_name(headers.get(b"host", ""))
        if not self._is_ours(host, scope):
            return _error(
                403,
                f"this node is not called {host!r}; "
                f"start the dashboard with --host-name {host or 'NAME'}",
            )
        if scope["method"] not in SAFE_METHODS and is_foreign(scope["headers"]):
            return _error(403, FOREIGN_ORIGIN)
        if not scope["path"].startswith(api_paths.NODE_ROOT):
            return None
        if not self.takes_tokens and b"authorization" in headers:
            return _error(400, "this node answers in plaintext and takes no token; send none")
        client = scope["client"]
        admitted = self.access.check(
            headers.get(b"authorization"), client[0] if client else None, TokenScope.READ
        )
        return _denied(admitted) if isinstance(admitted, Denied) else None

    def _is_ours(self, host: str, scope: Scope) -> bool:
        """Return whether `host` names this node.

        It may be one of its names, match a wildcard of its certificate, or be the address of the
        connection.
        """
        if self.hosts is None or host in self.hosts or f"*.{host.partition('.')[2]}" in self.hosts:
            return True
        address, _ = scope["server"] or ("", None)
        return bool(host) and host == address.removeprefix("::ffff:")


async def _set_on_leaving(request: Request, has_left: threading.Event) -> None:
    """Set `has_left` on disconnect, so that an abandoned query stops using the CPU of the job."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    has_left.set()


async def _read_query(request: Request) -> QueryRequest:
    body = await read_request_body(request, MAX_QUERY_BODY_BYTES)
    try:
        asked = _decode_query(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedInput(
            f'the body must be {{"sql": "SELECT …", "limit": 1000}}: {error}'
        ) from None
    if not asked.sql.strip():
        raise MalformedInput(
            "sql is empty; for example: SELECT op, count(*) FROM events GROUP BY op"
        )
    return asked


def _pid(request: Request) -> int | None:
    text = request.query_params.get("pid", "")
    if text and not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise MalformedInput(f"pid: {text!r} is not a process id")
    return int(text) if text else None


def _denied(denied: Denied) -> Response:
    reply = _error(denied.status, denied.message)
    if denied.status == 401:
        reply.headers[CHALLENGE_HEADER] = INVALID_CHALLENGE
    if denied.retry_after_s is not None:
        reply.headers["Retry-After"] = str(denied.retry_after_s)
    return reply


def _error(status: int, message: str) -> Response:
    return json_response(ErrorReply(message), status)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reply = _error(error.status_code, error.detail)
    reply.headers.update(error.headers or {})
    return reply


async def _internal_error(_: Request, error: Exception) -> Response:
    """Reply without details, which are in the log of the node only."""
    return _error(500, f"internal error ({type(error).__name__}); see the log of this node")


async def _ingero_error(_: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    return _error(status, str(error))
