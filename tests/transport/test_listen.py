"""Listen addresses: how they are written, what is bound, and the address of a peer."""

import asyncio
import errno
import socket
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tests.support.waiting import PATIENCE_S

from ingero.errors import ConfigError, Unavailable
from ingero.transport import listen
from ingero.transport.http import HttpListener
from ingero.transport.listen import bind, bound_address, parse_address, plain_peer
from ingero.transport.otlp.server_grpc import grpc_listener, peer_address
from ingero.transport.otlp.server_http import OtlpService, Reply, push_protocol

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PUSH = (
    b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 on its loopback")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (":8080", ("", 8080)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:4318", ("::1", 4318)),
        ("[::]:4318", ("::", 4318)),
        (" node-1:80 ", ("node-1", 80)),
    ],
)
def test_addresses_as_people_write_them(text: str, found: tuple[str, int]) -> None:
    assert parse_address(text) == found


@pytest.mark.parametrize(
    "text", ["", "8080", "localhost", "host:", "host:x", "host:70000", "host:-1", "host:²"]
)
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write host:port"):
        parse_address(text)


@needs_ipv6
@pytest.mark.parametrize("endpoint", [":0", "[::]:0"])
def test_a_port_alone_is_every_address_of_both_families(endpoint: str) -> None:
    with bind(endpoint) as listener:
        port = listener.getsockname()[1]
        assert bound_address(listener) == f"[::]:{port}"
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), PATIENCE_S).close()
        with pytest.raises(Unavailable, match=f"port {port} is already in use by .*process"):
            bind(f":{port}")


def test_a_port_alone_is_ipv4_where_there_is_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutIpv6(socket.socket):
        def __init__(self, family: int = socket.AF_INET, *rest: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest)

    monkeypatch.setattr(listen.socket, "socket", WithoutIpv6)
    with bind(":0") as listener:
        assert listener.family == socket.AF_INET
        assert listener.getsockname()[0] == "0.0.0.0"
    with pytest.raises(
        Unavailable, match=r"cannot listen on \[::1\]:0: Address family not supported"
    ):
        bind("[::1]:0")


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(Unavailable, match=r"cannot listen on 192\.0\.2\.1:0"):
        bind("192.0.2.1:0")


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("2001:db8::7", "2001:db8::7"),
    ],
)
def test_a_peer_has_one_address_on_every_socket(host: str, plain: str) -> None:
    assert plain_peer(host) == plain
    assert peer_address(f"ipv6:%5B{host}%5D:5000") == plain


async def exchange(host: str, port: int, request: bytes) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return answer


@needs_ipv6
async def test_pushes_and_requests_over_both_families_know_who_sent_them() -> None:
    """Both plain pushes and all other requests."""
    seen: list[str | None] = []

    def answer(_: Any, __: bytes, address: str | None) -> bytes:
        seen.append(address)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    async def ask(request: Request) -> Response:
        seen.append(request.client.host if request.client else None)
        return PlainTextResponse("")

    listener = HttpListener(
        Starlette(routes=[Route("/", ask)]), bind(":0"), protocol=push_protocol(answer)
    )
    await listener.start()
    try:
        port = parse_address(listener.address)[1]
        for host in ("127.0.0.1", "::1"):
            for request in (PUSH, ASK):
                assert b"200 OK" in await exchange(host, port, request)
    finally:
        await listener.stop()
        listener.listener.close()
    assert seen == ["127.0.0.1", "127.0.0.1", "::1", "::1"]


@needs_ipv6
async def test_grpc_takes_a_port_alone_as_every_address_too() -> None:
    service = OtlpService(lambda *_: Reply(), lambda _: Reply(), lambda *_: (), lambda _: None)
    listener = grpc_listener(":0", None, service)
    await listener.start()
    try:
        host, port = parse_address(listener.address)
        assert host == "::"
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), PATIENCE_S).close()
    finally:
        await listener.stop(0)
