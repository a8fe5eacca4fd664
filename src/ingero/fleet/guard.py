"""Bearer tokens: what a listener asks for, and endpoints behind it."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ingero.transport.bearer import BEARER_NEEDED, parse_bearer, token_digest, tokens_equal
from ingero.transport.http import error_response


class TokenGate:
    """One listener's bearer token; open when there is none."""

    def __init__(self, token: str | None) -> None:
        self.set(token)

    def set(self, token: str | None) -> None:
        """Replace the token, as a reload does."""
        self._digest = None if token is None else token_digest(token)
        self.is_closed = token is not None  # a token is asked for

    def admits(self, authorization: str | None) -> bool:
        """True when no token is asked for, or this is the one."""
        return self._digest is None or tokens_equal(parse_bearer(authorization), self._digest)


def guarded(
    gate: TokenGate, endpoint: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Any]:
    """An endpoint behind a listener's bearer token."""

    async def check(request: Request) -> Response:
        if gate.admits(request.headers.get("authorization")):
            return await endpoint(request)
        return error_response(
            BEARER_NEEDED, HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Bearer"}
        )

    return check
