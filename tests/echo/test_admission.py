"""Bodies are counted while they are received; beyond the limit the next one is refused unread."""

import asyncio
from typing import Any

from ingero.echo.admission import Admission


async def ask(app: Admission, length: bytes | None) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("a refused body must not be read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if length is None else [(b"content-length", length)]
    await app({"type": "http", "headers": headers}, receive, send)
    return sent


async def test_the_bound_holds_and_is_given_back() -> None:
    release = asyncio.Event()

    async def inner(_: Any, __: Any, send: Any) -> None:
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    app = Admission(inner, largest_bytes=40, limit_bytes=100)
    first, second = asyncio.create_task(ask(app, b"60")), asyncio.create_task(ask(app, None))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert app.in_flight_bytes == 80, (
        "60 counts as the largest allowed, and so does an unknown length"
    )
    start, body = await ask(app, b"30")
    assert start["status"] == 429
    assert (b"retry-after", b"2") in start["headers"]
    assert b"send it again" in body["body"]
    release.set()
    assert [(await task)[0]["status"] for task in (first, second)] == [200, 200]
    assert (app.in_flight_bytes, app.refused) == (0, 1)
