"""Silences over HTTP: list, begin, lift; behind the token of the threshold listener."""

import time
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingero.contract.silence import LiftRequest, SilenceRequest
from ingero.errors import StoreError
from ingero.fleet.guard import TokenGate, guarded
from ingero.fleet.silences import Silences
from ingero.transport.http import error_response, json_response
from ingero.transport.tls import is_loopback

MAX_REQUEST_BYTES = 4096
T = TypeVar("T")


def silence_routes(silences: Silences, gate: TokenGate) -> list[Route]:
    """What `ingero silence` talks to."""

    async def listed(request: Request) -> Response:
        return json_response({"silences": silences.active(time.time())})

    async def begin(request: Request) -> Response:
        asked = await _asked(request, gate, SilenceRequest)
        if isinstance(asked, Response):
            return asked
        try:
            return json_response(silences.put(asked, time.time()))
        except StoreError as error:
            return error_response(str(error), HTTPStatus.INSUFFICIENT_STORAGE)

    async def lift(request: Request) -> Response:
        asked = await _asked(request, gate, LiftRequest)
        if isinstance(asked, Response):
            return asked
        try:
            return json_response({"lifted": silences.lift(asked)})
        except StoreError as error:
            return error_response(str(error), HTTPStatus.INSUFFICIENT_STORAGE)

    return [
        Route("/api/v1/silences", guarded(gate, listed), methods=["GET"]),
        Route("/api/v1/silences", guarded(gate, begin), methods=["POST"]),
        Route("/api/v1/silences/lift", guarded(gate, lift), methods=["POST"]),
    ]


async def _asked(request: Request, gate: TokenGate, kind: type[T]) -> T | Response:
    """The request as `kind`, or the refusal of it. Without a token only this machine may change anything."""
    if not gate.is_closed and not (request.client and is_loopback(request.client.host)):
        needed = "silences from other machines need a token: extensions.ingero_threshold.token_file"
        return error_response(needed, HTTPStatus.FORBIDDEN)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_REQUEST_BYTES:
            too_large = f"the request is larger than {MAX_REQUEST_BYTES} bytes"
            return error_response(too_large, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    try:
        return msgspec.json.decode(bytes(body), type=kind)
    except msgspec.DecodeError as error:
        return error_response(str(error), HTTPStatus.BAD_REQUEST)
