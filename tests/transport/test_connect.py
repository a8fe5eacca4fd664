"""Errors of one request to a server: wrong addresses, and servers that are not Echo."""

import asyncio
import http.client
import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import aiohttp
import pytest
from tests.support.tls_files import Authority

from ingero.errors import ConfigError, Unavailable
from ingero.transport.connect import NOT_HTTP, connection_to, failure_text, plain_reason
from ingero.transport.echo_client import EchoClient
from ingero.transport.fetch import fetch_https
from ingero.transport.tls import ClientTls, client_context

ANSWERS = {
    "not_json": (HTTPStatus.OK, b"<html>"),
    "a_list": (HTTPStatus.OK, b"[]"),
    "no_data": (HTTPStatus.OK, b"{}"),
    "error_as_text": (HTTPStatus.NOT_FOUND, b'{"error": "no such page"}'),
    "error_of_others": (HTTPStatus.BAD_GATEWAY, b'{"error": {"reason": "x"}}'),
}


class _Stranger(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        status, body = ANSWERS[self.path.rpartition("/")[2]]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def stranger() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "url", ["", "host:8080", "ftp://host", "http://host:port", "http://[::1", "https://host:70000"]
)
def test_a_wrong_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigError, match="write https://host:1"):
        connection_to(
            url, ClientTls(), http_port=1, https_port=1, timeout_s=1, example="https://host:1"
        )


@pytest.mark.parametrize(
    "error, said",
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (TimeoutError("timed out"), "no answer in time"),
        (TimeoutError(), "no answer in time"),
        (aiohttp.ConnectionTimeoutError("http://h/KEY"), "no answer in time"),
        (http.client.BadStatusLine("\x1b]0;owned\x07\r\n"), NOT_HTTP),
        (http.client.LineTooLong("header line"), NOT_HTTP),
        (http.client.IncompleteRead(b"\x1b[31m", 9), "the answer broke off"),
        (http.client.InvalidURL("http://h/KEY"), "the URL is not valid"),
        (aiohttp.InvalidURL("http://h/KEY"), "the URL is not valid"),
        (aiohttp.ServerDisconnectedError("\x1b[31m"), "the server closed the connection"),
        (aiohttp.ClientPayloadError("\x1b[31m"), "the answer broke off"),
        (aiohttp.ClientConnectionError("http://h/KEY"), "the connection failed"),
        (OSError(), "OSError"),
        (ssl.SSLError(1, "made by Python"), "TLS failed: made by Python"),
    ],
)
def test_a_reason_has_no_numbers_urls_or_bytes_of_a_stranger(error: Exception, said: str) -> None:
    assert plain_reason(error) == said
    assert failure_text("http://host:1", error, "try again") == f"{said}; try again"


def test_what_fails_in_tls_is_said_without_source_files() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ssl.SSLError) as failed:
        ssl.create_default_context().wrap_bio(
            incoming, outgoing, server_hostname="h"
        ).do_handshake()
    assert plain_reason(failed.value) == "TLS failed: wrong version number"


async def test_a_certificate_that_is_not_accepted_is_told_by_what_is_wrong_with_it(
    tmp_path: Path,
) -> None:
    authority = Authority.make(tmp_path / "a")
    files = authority.issue("other.example")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.cert, files.key)
    cases = ((None, "unable to get local issuer"), (authority.cert, "IP address mismatch"))
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for trusted, why in cases:
            context = client_context(ClientTls(ca=trusted))
            with pytest.raises(Unavailable, match=f"cannot fetch {url}: TLS failed: {why}"):
                await fetch_https(url, timeout_s=5, max_bytes=9, context=context)


@pytest.mark.parametrize(
    "url, port", [("http://host", 1), ("http://host:3", 3), ("https://[::1]", 2)]
)
def test_a_url_without_port_gets_the_default_port(url: str, port: int) -> None:
    assert (
        connection_to(url, ClientTls(), http_port=1, https_port=2, timeout_s=1, example="").port
        == port
    )


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_server_that_is_not_echo_is_recognized(stranger: str, answer: str) -> None:
    with pytest.raises(Unavailable, match="not like Echo's API"):
        EchoClient(stranger).ask(answer, {})
