"""The page over HTTP: its files, the live stream, and answers about one node."""

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ingero.contract.api_paths import (
    FLEET_AGENTS_PAGE,
    FLEET_EPISODE_PAGE,
    FLEET_JOB_PAGE,
    FLEET_LIVE,
    FLEET_NODE,
    FLEET_NODE_PAGE,
    PAGE,
    PAGE_FILE,
)
from ingero.contract.live import LIVE_TYPE, NodeAnswer
from ingero.contract.names import (
    CLUSTER_QUERY,
    DEFAULT_CLUSTER,
    JOB_QUERY,
    NODE_QUERY,
)
from ingero.fleet.allowed_clusters import not_allowed
from ingero.fleet.page.cluster_view import Moment
from ingero.fleet.page.hub import MAX_STREAMS, LiveHub, LiveStream
from ingero.fleet.page.node_view import Bodies, beside_peers, health_bodies, own_signals
from ingero.fleet.verdicts import VerdictService
from ingero.transport.access import Access
from ingero.transport.bearer import TokenScope
from ingero.transport.http import error_response, json_response, key_of, require_token
from ingero.transport.rate_limit import address_group
from ingero.web.assets import file_endpoint, page_endpoint

TOO_MANY: Final = f"{MAX_STREAMS} pages and terminals are watching, which is the limit; close some"


def live_routes(
    hub: LiveHub,
    verdicts: VerdictService,
    bodies: Callable[[], Iterable[Bodies]],
    access: Access,
    moment: Callable[[], Moment],
) -> list[Route]:
    """Return the routes of the page and of what it asks for."""

    async def live(request: Request) -> Response:
        cluster = request.query_params.get(CLUSTER_QUERY)
        if cluster is not None and not key_of(request).may_see(cluster):
            return error_response(not_allowed(cluster), HTTPStatus.FORBIDDEN)
        stream = _open(hub, request, cluster, moment())
        if stream is None:
            return error_response(TOO_MANY, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "10"})
        return _LiveResponse(hub, stream)

    async def node(request: Request) -> Response:
        cluster, name = _cluster(request), request.query_params.get(NODE_QUERY, "")
        if not key_of(request).may_see(cluster):
            return error_response(not_allowed(cluster), HTTPStatus.FORBIDDEN)
        health = [health_bodies(cluster, name, kept) for kept in bodies()]
        found = own_signals(cluster, name, verdicts, moment().unix_s)
        compared = await asyncio.to_thread(beside_peers, found, health)  # decodes pushes
        return json_response(NodeAnswer(node_id=name, compared=compared))

    page = page_endpoint("index.html")
    return [
        Route(FLEET_LIVE, require_token(access, live, TokenScope.READ)),
        Route(FLEET_NODE, require_token(access, node, TokenScope.READ)),
        Route(PAGE, page),
        Route(FLEET_AGENTS_PAGE, page),
        Route(FLEET_JOB_PAGE, page),
        Route(FLEET_NODE_PAGE, page),
        Route(FLEET_EPISODE_PAGE, page),
        Route(PAGE_FILE, file_endpoint),
    ]


class _LiveResponse(StreamingResponse):
    """A stream that is counted until its connection ends, also where it never began."""

    def __init__(self, hub: LiveHub, stream: LiveStream) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(hub.lines(stream), 200, headers, LIVE_TYPE)
        self._hub, self._stream = hub, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._hub.leave(self._stream)


def _open(hub: LiveHub, request: Request, cluster: str | None, now: Moment) -> LiveStream | None:
    """Open a stream for the token of a request, or for its address where there are no tokens."""
    key, client = key_of(request), request.client
    owner = key.digest or address_group(client.host if client else None)
    return hub.open(key, cluster, request.query_params.get(JOB_QUERY), now, owner)


def _cluster(request: Request) -> str:
    return request.query_params.get(CLUSTER_QUERY, DEFAULT_CLUSTER)
