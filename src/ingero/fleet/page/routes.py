"""The live stream over HTTP."""

from collections.abc import Callable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ingero.contract.api_paths import FLEET_LIVE
from ingero.contract.live import LIVE_TYPE
from ingero.contract.names import CLUSTER_QUERY, JOB_QUERY
from ingero.fleet.allowed_clusters import not_allowed
from ingero.fleet.page.cluster_view import Moment
from ingero.fleet.page.hub import MAX_STREAMS, LiveHub
from ingero.transport.access import Access
from ingero.transport.bearer import TokenScope
from ingero.transport.http import error_response, key_of, require_token

TOO_MANY = f"{MAX_STREAMS} pages and terminals are watching, which is the limit; close some"


def live_routes(hub: LiveHub, access: Access, moment: Callable[[], Moment]) -> list[Route]:
    """Return the route of the stream."""

    async def live(request: Request) -> Response:
        key, asked = key_of(request), request.query_params
        cluster = asked.get(CLUSTER_QUERY)
        if cluster is not None and not key.may_see(cluster):
            return error_response(not_allowed(cluster), HTTPStatus.FORBIDDEN)
        stream = hub.open(key, cluster, asked.get(JOB_QUERY), moment())
        if stream is None:
            return error_response(TOO_MANY, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "10"})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(hub.lines(stream), 200, headers, LIVE_TYPE)

    return [Route(FLEET_LIVE, require_token(access, live, TokenScope.READ))]
