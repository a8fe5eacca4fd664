"""HTTP endpoints of enrolment: the authority, joining, renewing, leaving, and the list of nodes.

The secret of a join code is checked before the body is read, and wrong ones are limited by address.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingero.contract.api_paths import (
    FLEET_AUTHORITY,
    FLEET_ENROL,
    FLEET_ENROL_LEAVE,
    FLEET_ENROL_NODES,
    FLEET_ENROL_RENEW,
)
from ingero.contract.enrolment.messages import (
    MAX_REQUEST_BYTES,
    Authority,
    EnrolledNodes,
    EnrolReply,
    EnrolRequest,
    LeaveReply,
    RenewReply,
    RenewRequest,
)
from ingero.core.enrolment import MAX_ENROLLED
from ingero.errors import AuthError, StoreError, TooLarge
from ingero.transport.access import Access, Denied
from ingero.transport.bearer import AUTHORIZATION, TokenScope, parse_bearer
from ingero.transport.bounded import read_request_body
from ingero.transport.http import (
    denied_response,
    error_response,
    is_json,
    json_response,
    key_of,
    require_all_clusters,
    require_token,
)
from ingero.transport.rate_limit import RateLimit, address_group

if TYPE_CHECKING:
    from ingero.fleet.enrolment.service import EnrolmentService

WRONG_CODES_AT_ONCE: Final = 20  # from one address, then as many per minute
MAX_AT_ONCE: Final = 64  # requests that are signed or wait for it
CHANGES_AT_ONCE: Final = 10  # of one node: joining again and renewing; then as many per hour
T = TypeVar("T")


class EnrolmentApi:
    """The endpoints. `push_port` is where nodes push, None while Fleet starts."""

    def __init__(
        self, service: "EnrolmentService", push_port: Callable[[], int | None], access: Access
    ) -> None:
        self._service, self._push_port, self._access = service, push_port, access
        self._wrong = RateLimit(WRONG_CODES_AT_ONCE / 60, WRONG_CODES_AT_ONCE)
        self._changes = RateLimit(CHANGES_AT_ONCE / 3600, CHANGES_AT_ONCE, MAX_ENROLLED)
        self._running = 0

    def routes(self) -> list[Route]:
        """Return the routes; those of nodes take the token that a node was given."""
        renew = require_token(self._access, self.renew, TokenScope.PUSH)
        leave = require_token(self._access, self.leave, TokenScope.PUSH)
        return [
            Route(FLEET_AUTHORITY, self.authority),
            Route(FLEET_ENROL, self.enrol, methods=["POST"]),
            Route(FLEET_ENROL_RENEW, renew, methods=["POST"]),
            Route(FLEET_ENROL_LEAVE, leave, methods=["POST"]),
            Route(FLEET_ENROL_NODES, require_all_clusters(self._access, self.nodes)),
        ]

    async def authority(self, _: Request) -> Response:
        """Return the certificate that join codes name; it is no secret."""
        return json_response(Authority(self._service.authority.pem))

    async def enrol(self, request: Request) -> Response:
        """Enrol a node that has a valid join code."""
        peer = _peer(request)
        code = self._service.code_of(parse_bearer(request.headers.get(AUTHORIZATION)), time.time())
        if code is None:
            return self._refused(peer)
        push_port = self._push_port()
        if push_port is None:  # before the code is used up
            starting = Denied(HTTPStatus.SERVICE_UNAVAILABLE, "Fleet is starting; try again", 1)
            return denied_response(starting)
        asked = await _body(request, EnrolRequest)
        if isinstance(asked, Response):
            return asked

        limited = self._limited(asked.node)
        if limited is not None:
            return limited

        async def answer() -> Response:
            try:
                issued = await asyncio.to_thread(self._service.enrol, code, asked, peer)
            except AuthError as error:
                self._service.note("refused", asked.node[:253], peer, why=str(error), code=code.id)
                return error_response(str(error), HTTPStatus.FORBIDDEN)
            return json_response(
                EnrolReply(
                    node=issued.member.node,
                    certificate=issued.certificate,
                    authority=self._service.authority.pem,
                    token=issued.token,
                    push_port=push_port,
                    names=list(issued.member.names),
                    cluster=issued.member.cluster,
                )
            )

        return await self._bounded(answer)

    def _refused(self, peer: str | None) -> Response:
        wait_s = self._wrong.take(address_group(peer), time.monotonic())
        if wait_s:
            after_s = int(wait_s) + 1
            message = f"too many wrong join codes; try again in {after_s} s"
            denied = Denied(HTTPStatus.TOO_MANY_REQUESTS, message, after_s)
            self._service.outcomes["limited"] += 1  # not written: that would fill the audit file
            return denied_response(denied)
        self._service.note("refused", "", peer, why="wrong code")
        message = "this join code is not valid or has expired; `ingero fleet code` makes another"
        return denied_response(Denied(HTTPStatus.UNAUTHORIZED, message))

    def _limited(self, node: str) -> Response | None:
        """Refuse a node that asks again and again: each answer is signed and written to disk."""
        wait_s = self._changes.take(node, time.monotonic())
        if not wait_s:
            return None
        self._service.outcomes["limited"] += 1
        after_s = int(wait_s) + 1
        message = f"this node asks too often; try again in {after_s} s"
        return denied_response(Denied(HTTPStatus.TOO_MANY_REQUESTS, message, after_s))

    async def renew(self, request: Request) -> Response:
        """Sign a new certificate for a node."""
        node = key_of(request).node
        if node is None:
            return _no_node()
        limited = self._limited(node)
        if limited is not None:
            return limited
        asked = await _body(request, RenewRequest)
        if isinstance(asked, Response):
            return asked

        async def answer() -> Response:
            try:
                certificate = await asyncio.to_thread(
                    self._service.renew, node, asked, _peer(request)
                )
            except AuthError as error:
                self._service.note("refused", node, _peer(request), why=str(error))
                return error_response(str(error), HTTPStatus.FORBIDDEN)
            return json_response(RenewReply(certificate, self._service.authority.pem))

        return await self._bounded(answer)

    async def leave(self, request: Request) -> Response:
        """Forget the node that asks."""
        node = key_of(request).node
        if node is None:
            return _no_node()

        async def answer() -> Response:
            await asyncio.to_thread(self._service.leave, node, _peer(request))
            return json_response(LeaveReply(node))

        return await self._bounded(answer)

    async def nodes(self, _: Request) -> Response:
        """List every node that was enrolled."""
        return json_response(EnrolledNodes(self._service.listed()))

    async def _bounded(self, answer: Callable[[], Awaitable[Response]]) -> Response:
        if self._running >= MAX_AT_ONCE:
            busy = Denied(HTTPStatus.SERVICE_UNAVAILABLE, "many nodes join; try again", 1)
            return denied_response(busy)
        self._running += 1
        try:
            return await answer()
        except StoreError as error:
            return error_response(str(error), HTTPStatus.INSUFFICIENT_STORAGE)
        finally:
            self._running -= 1


def _peer(request: Request) -> str | None:
    return request.client.host if request.client else None


def _no_node() -> Response:
    return error_response("this token is not that of an enrolled node", HTTPStatus.FORBIDDEN)


async def _body(request: Request, kind: type[T]) -> T | Response:
    if not is_json(request):
        return error_response(
            "Content-Type must be application/json", HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        )
    try:
        data = await read_request_body(request, MAX_REQUEST_BYTES)
        return msgspec.json.decode(data, type=kind)
    except TooLarge as error:
        return error_response(str(error), HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return error_response(f"the request cannot be read: {error}", HTTPStatus.BAD_REQUEST)
