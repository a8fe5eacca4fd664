"""Pages of strangers: they may be slow, endless, broken or missing, and cost a bounded time."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ingero.agent.engines import scrape
from ingero.agent.engines.ports import (
    Listening,
    PortTable,
    addresses_of_port,
    reachable_address,
)
from ingero.agent.engines.scrape import Reply, get_page


@contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve one connection with a function of the test."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                try:
                    answer(connection)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(5.0)


def test_a_page_is_read_in_any_framing() -> None:
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd"
    chunked = b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    with peer(lambda c: c.sendall(plain)) as port:
        assert get_page("127.0.0.1", port, "/metrics") == Reply(200, "abcd")
    with peer(lambda c: c.sendall(chunked)) as port:
        assert get_page("127.0.0.1", port, "/metrics") == Reply(503, "ab")


@pytest.mark.parametrize("body", [b"", b"\x00" * 50, b"HTTP/1.1 x y\r\n\r\n", b"HTTP/1.1 200 OK"])
def test_what_is_no_answer_is_none(body: bytes) -> None:
    with peer(lambda c: c.sendall(body)) as port:
        found = get_page("127.0.0.1", port, "/metrics")
    assert found is None or found.body == ""


def test_an_endless_page_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MAX_PAGE_BYTES", 100_000)

    def flood(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"x" * 65_536)

    with peer(flood) as port:
        assert get_page("127.0.0.1", port, "/metrics") is None


def test_a_peer_that_sends_byte_by_byte_gets_no_more_time() -> None:
    def drip(connection: socket.socket) -> None:
        for _ in range(100):
            connection.sendall(b"x")
            time.sleep(0.02)

    begin_s = time.monotonic()
    with peer(drip) as port:
        assert get_page("127.0.0.1", port, "/metrics", timeout_s=0.2) is None
        assert time.monotonic() - begin_s < 5.0


def test_a_closed_port_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert get_page("127.0.0.1", port, "/metrics") is None


def test_the_ports_of_this_process_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert Listening(port, "127.0.0.1") in PortTable().of_process(os.getpid())
        assert addresses_of_port(port) == ["127.0.0.1"]
        assert PortTable().of_process(os.getpid(), lambda other: other != port) == []


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000", "127.0.0.1"),
        ("0100007F", "127.0.0.1"),
        ("00000000000000000000000000000000", "::1"),
        ("0000000000000000FFFF00000100007F", "127.0.0.1"),
    ],
)
def test_an_address_of_the_kernel_becomes_one_that_is_reached(text: str, address: str) -> None:
    assert reachable_address(text) == address
