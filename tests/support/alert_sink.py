"""An HTTP server that stands for PagerDuty, a webhook or a Kubernetes API server in tests."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web


class AlertSink:
    """Keeps what was posted to it; answers with `status`, and 409 for an object that exists."""

    def __init__(self) -> None:
        self.status = 200
        self.url = ""
        self.requests: list[tuple[str, str, Any]] = []  # method, path and query, body
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.status < 300:
            self.requests.append((request.method, request.path_qs, await request.json()))
            self.headers.append(dict(request.headers))
            self.bodies.append(body)
        return web.json_response({"from": "a sink of tests"}, status=self.status)


@contextlib.asynccontextmanager
async def alert_sink() -> AsyncIterator[AlertSink]:
    sink = AlertSink()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", sink.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = runner.addresses[0]
    sink.url = f"http://{address[0]}:{address[1]}"
    try:
        yield sink
    finally:
        await runner.cleanup()
