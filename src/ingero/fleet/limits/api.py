"""HTTP endpoint that shows and changes the limits of detection while jobs run."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingero.contract.api_paths import FLEET_LIMITS
from ingero.contract.fleet_api import Limits
from ingero.core.health.threshold import ThresholdPolicy
from ingero.errors import IngeroError, TooLarge, Unavailable
from ingero.transport.access import Access
from ingero.transport.bearer import TokenScope
from ingero.transport.bounded import read_request_body
from ingero.transport.browsers import is_local_name
from ingero.transport.http import error_response, json_response, key_of, require_token
from ingero.transport.tls import is_loopback

MAX_REQUEST_BYTES = 4096


def limit_routes(
    policy: Callable[[], ThresholdPolicy],
    set_limits: Callable[[ThresholdPolicy], Awaitable[None]],
    access: Access,
) -> list[Route]:
    """Return the routes; changes need the scope `operate`, and hold until the next restart."""

    async def shown(_: Request) -> Response:
        return json_response(limits_of(policy()))

    async def change(request: Request) -> Response:
        refused = _refused(request, access)
        if refused is not None:
            return refused
        try:
            body = await read_request_body(request, MAX_REQUEST_BYTES)
            asked = msgspec.json.decode(body, type=Limits)
            wanted = {k: v for k, v in msgspec.structs.asdict(asked).items() if v is not None}
            await set_limits(replace(policy(), **wanted))
        except TooLarge as error:
            return error_response(str(error), HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        except Unavailable as error:
            return error_response(str(error), HTTPStatus.SERVICE_UNAVAILABLE)
        except (msgspec.DecodeError, IngeroError) as error:
            return error_response(str(error), HTTPStatus.BAD_REQUEST)
        return json_response(limits_of(policy()))

    may_read = (TokenScope.READ, TokenScope.OPERATE)
    return [
        Route(FLEET_LIMITS, require_token(access, shown, *may_read), methods=["GET"]),
        Route(FLEET_LIMITS, require_token(access, change, TokenScope.OPERATE), methods=["POST"]),
    ]


def limits_of(policy: ThresholdPolicy) -> Limits:
    """Return the limits of a policy that can be changed."""
    return Limits(*(getattr(policy, name) for name in Limits.__struct_fields__))


def _refused(request: Request, access: Access) -> Response | None:
    """Refuse strangers without a token, and tokens that may only see some clusters."""
    is_local = request.client is not None and is_loopback(request.client.host)
    if not access.is_required and not (is_local and is_local_name(request.headers.get("host", ""))):
        needed = "changes from other machines need a token: extensions.ingero_threshold.token_file"
        return error_response(needed, HTTPStatus.FORBIDDEN)
    if key_of(request).clusters is not None:
        return error_response(
            "the limits are those of all clusters, and this token is for some of them",
            HTTPStatus.FORBIDDEN,
        )
    return None
