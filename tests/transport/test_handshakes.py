"""TLS handshakes that never end: they count as connections, and they time out."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tests.support.tls_files import Authority
from tests.support.waiting import PATIENCE_S, until_async

from ingero.transport import connections
from ingero.transport.admission import Admission
from ingero.transport.connections import ConnectionRoom
from ingero.transport.http import HttpListener
from ingero.transport.listen import bind, parse_address
from ingero.transport.tls import server_context

WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
LIMIT = 8
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
pytestmark = pytest.mark.parametrize("loop", LOOPS)


async def hello(request: Request) -> Response:
    return PlainTextResponse(request.url.scheme)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.cert)


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    return server_context(authority.issue("localhost"))


@contextlib.asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[tuple[HttpListener, ConnectionRoom]]:
    admission = Admission()
    admission.connections = ConnectionRoom(LIMIT)
    app = Starlette(routes=[Route("/", hello)])
    listener = HttpListener(app, bind("127.0.0.1:0"), context, admission=admission)
    await listener.start()
    try:
        yield listener, admission.connections
    finally:
        async with asyncio.timeout(PATIENCE_S):  # whoever is in a handshake does not delay the end
            await listener.stop()
        listener.listener.close()


def run(loop: str, test: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(test(), 4 * PATIENCE_S))  # type: ignore[arg-type]


@contextlib.contextmanager
def silent(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    with contextlib.ExitStack() as opened:
        yield [
            opened.enter_context(socket.create_connection(parse_address(address)))
            for _ in range(count)
        ]


async def ask(address: str, trusting: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection(
        *parse_address(address), ssl=trusting, server_hostname="localhost"
    )
    writer.write(WHOLE)
    answer = await reader.read()
    writer.close()
    return answer


def test_unfinished_handshakes_count_and_the_oldest_of_the_greediest_are_closed(
    loop: str, context: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    async def test() -> None:
        async with listening(context) as (listener, room):
            with silent(listener.address, LIMIT + 5):
                await until_async(lambda: room.closed == 5)
                assert room.open == LIMIT
                answer = await ask(listener.address, trusting)
                assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"https")
                assert room.closed == 6
            await until_async(lambda: room.open == 0)

    run(loop, test)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_handshake_that_does_not_end_is_closed(
    loop: str, said: bytes, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.05)

    async def test() -> None:
        async with listening(context) as (listener, room):
            reader, writer = await asyncio.open_connection(*parse_address(listener.address))
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), PATIENCE_S)  # it ends
            await until_async(lambda: room.open == 0)
            writer.close()

    run(loop, test)


def test_a_request_that_arrives_with_the_end_of_the_handshake_is_answered(
    loop: str, context: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    """TLS 1.3 clients may send their request together with their last message."""

    async def test() -> None:
        async with listening(context) as (listener, _):
            reader, writer = await asyncio.open_connection(*parse_address(listener.address))
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            while True:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    continue
            client.write(WHOLE)
            writer.write(outgoing.read())  # the end of the handshake and the request
            answer = b""
            while not answer.endswith(b"https"):
                piece = await reader.read(65536)
                assert piece
                incoming.write(piece)
                with contextlib.suppress(ssl.SSLWantReadError):
                    while record := client.read(65536):
                        answer += record
            assert answer.startswith(b"HTTP/1.1 200")
            writer.close()

    run(loop, test)


def test_a_listener_stops_while_a_handshake_is_open(loop: str, context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with listening(context) as (listener, room):
            held = socket.create_connection(parse_address(listener.address))
            await until_async(lambda: room.open == 1)
        held.close()

    run(loop, test)
