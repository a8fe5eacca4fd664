"""What is kept and logged of a message that failed never holds the key in a webhook's address."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from tests.support.alerts import NOW_S, SLOW
from tests.support.pushes import loopback_config

from ingero.contract.episodes.episode import AlertTold
from ingero.core.alerts.alert import Message, MessageKind, alert_of
from ingero.fleet.alerts.post import Delivery, Poster
from ingero.fleet.alerts.service import AlertService
from ingero.fleet.alerts.targets import Webhook

KEY = "/services/T0/%7BKEY-KEY-KEY%7D?token=SECRET-SECRET"
NOT_HTTP = "the server there does not answer in HTTP"
BROKE_OFF = "the answer broke off"


@contextlib.asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server that sends these bytes to everybody, and ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"SSH-2.0-\x1b]0;owned\x07\r\n\r\n", NOT_HTTP),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 20_000 + b"\r\n\r\n", NOT_HTTP),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nhalf", BROKE_OFF),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\x1b]0;\r\n", NOT_HTTP),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n\x1b]0;", BROKE_OFF),
        (b"", "the server closed the connection"),
    ],
)
async def test_a_target_that_is_no_web_server_is_a_sentence(answer: bytes, why: str) -> None:
    poster = Poster(5.0)
    async with answering(answer) as url:
        assert (await poster.send(f"{url}{KEY}", b"{}", {})).why == why
    await poster.close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"http://[{KEY}", "the URL is not valid"),
        (f"http://127.0.0.1:1{KEY}", "Connection refused"),
        (f"ftp://host{KEY}", "the connection failed"),
    ],
)
async def test_an_address_that_cannot_be_asked_is_not_repeated(url: str, why: str) -> None:
    poster = Poster(5.0)
    assert (await poster.send(url, b"{}", {})).why == why
    await poster.close()


async def test_a_target_that_repeats_its_address_does_not_give_its_key_away() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=404, text=f"no {request.path_qs}, {request.path}: unknown hook")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0])
    config = loopback_config(alerts={"targets": {"webhook": {"url": f"{url}{KEY}"}}})
    webhook = Webhook(config.alerts.targets["webhook"], "webhook", "")
    alert = alert_of("c", SLOW)
    assert alert is not None
    done = await webhook.send(Message(alert=alert, kind=MessageKind.BEGIN), NOW_S)
    await webhook.close()
    await runner.cleanup()
    assert done.why == "HTTP 404: no /…/T0/…?token=…, /…/T0/…: unknown hook"


async def test_what_a_mistake_says_is_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    config = loopback_config(alerts={"targets": {"webhook": {"url": "http://127.0.0.1:1"}}})
    alerts = AlertService(config.alerts, None, NOW_S)

    async def mistake(message: Message, now_s: float) -> Delivery:
        raise ValueError(f"http://127.0.0.1:1{KEY}")

    alerts._targets["webhook"].send = mistake  # type: ignore[method-assign] # on purpose
    told: list[AlertTold] = []
    alerts.on_outcome = lambda episode, each: told.append(each)
    alerts.step([("c", SLOW)], NOW_S)
    await alerts.deliver(NOW_S)
    await alerts.stop()
    assert [each.why for each in told] == ["it could not be made; the log has the reason"]
    assert KEY in caplog.text
