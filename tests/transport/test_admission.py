"""Bodies count when they arrive; where there is no room, the oldest unfinished one gives way."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse

from ingero.transport.admission import Admission, AdmittedApp


async def echo_size(scope: Any, receive: Any, send: Any) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


class Sender:
    """A request whose body the test sends piece by piece."""

    def __init__(self, app: AdmittedApp, address: str, declared: int | None = None) -> None:
        headers = [] if declared is None else [(b"content-length", str(declared).encode())]
        scope = {"type": "http", "method": "POST", "headers": headers, "client": (address, 1)}
        self.pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.task = asyncio.ensure_future(app(scope, self.pieces.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":  # as uvicorn does once a reply is complete
            self.pieces.put_nowait({"type": "http.disconnect"})

    async def piece(self, size: int, more: bool = True) -> None:
        self.pieces.put_nowait({"type": "http.request", "body": bytes(size), "more_body": more})
        for _ in range(5):
            await asyncio.sleep(0)

    async def status(self) -> int:
        await self.task
        return int(self.sent[0]["status"])


async def test_a_declared_length_holds_nothing() -> None:
    admission = Admission(limit_bytes=400)
    app = AdmittedApp(echo_size, admission)
    stalled = [Sender(app, "10.0.0.1", declared=90) for _ in range(50)]
    last = Sender(app, "10.0.0.1", declared=90)
    await last.piece(90, more=False)
    assert (await last.status(), admission.receiving_bytes) == (200, 0)
    for sender in stalled:
        sender.task.cancel()


async def test_one_address_holds_a_quarter_and_its_oldest_unfinished_body_gives_way() -> None:
    admission = Admission(limit_bytes=400)
    app = AdmittedApp(echo_size, admission)
    senders = [Sender(app, "10.0.0.1") for _ in range(3)]
    for sender in senders:
        await sender.piece(45)
    assert admission.receiving_bytes == 90
    assert await senders[0].status() == 429
    assert (b"retry-after", b"2") in senders[0].sent[0]["headers"]
    for sender in senders[1:]:
        await sender.piece(1, more=False)
        assert await sender.status() == 200
    assert (admission.receiving_bytes, admission.refused) == (0, 1)


async def test_where_all_are_full_the_address_that_holds_most_gives_way() -> None:
    admission = Admission(limit_bytes=400)
    app = AdmittedApp(echo_size, admission)
    holders = [Sender(app, f"10.0.0.{number}") for number in range(5)]
    for number, sender in enumerate(holders):
        await sender.piece(70 + number)
    other = Sender(app, "10.0.1.1", declared=50)
    await other.piece(50, more=False)
    assert await other.status() == 200
    assert await holders[4].status() == 429
    for sender in holders[:4]:
        sender.task.cancel()


async def test_a_body_for_which_nothing_can_give_way_is_refused_unread() -> None:
    app = AdmittedApp(echo_size, Admission(limit_bytes=400))
    sender = Sender(app, "10.0.0.1", declared=101)
    assert await sender.status() == 429
    assert sender.pieces.qsize() == 1, "only the end of the connection"


async def test_a_sender_that_leaves_releases_what_it_held() -> None:
    admission = Admission(limit_bytes=400)
    sender = Sender(AdmittedApp(echo_size, admission), "10.0.0.1")
    await sender.piece(60)
    sender.pieces.put_nowait({"type": "http.disconnect"})
    await sender.task
    assert (admission.receiving_bytes, sender.sent) == (0, [])
