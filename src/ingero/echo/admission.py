"""A limit on the bodies received at once: beyond it, requests are refused before they are read."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

MAX_IN_FLIGHT_BYTES: Final = 256 * 1024 * 1024
RETRY_AFTER_S: Final = 2


class Admission:
    """An ASGI wrapper that limits bytes in flight.

    A body without a declared length counts as the largest one allowed.
    """

    def __init__(
        self, app: ASGIApp, largest_bytes: int, limit_bytes: int = MAX_IN_FLIGHT_BYTES
    ) -> None:
        self._app = app
        self._largest_bytes = largest_bytes
        self._limit_bytes = limit_bytes
        self.in_flight_bytes = 0
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = dict(scope["headers"]).get(b"content-length", b"")
        size = (
            min(int(declared), self._largest_bytes) if declared.isdigit() else self._largest_bytes
        )
        if self.in_flight_bytes + size > self._limit_bytes:
            self.refused += 1
            await _refuse(send)
            return
        self.in_flight_bytes += size
        try:
            await self._app(scope, receive, send)
        finally:
            self.in_flight_bytes -= size


async def _refuse(send: Send) -> None:
    body = b"too much is being received at once; send it again\n"
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", str(RETRY_AFTER_S).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})
