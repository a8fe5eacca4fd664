"""Faults of real clusters: wrong certificates, wrong answers, many nodes, wrong clocks."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.support.fanout_nodes import SQL, ask, host_and_port, node, node_listener
from tests.support.fault_proxy import FaultProxy
from tests.support.tls_files import Authority
from tests.support.trace_databases import database
from tests.support.waiting import PATIENCE_S, until_async

from ingero.cli.commands.query_nodes import ask_rows
from ingero.cli.fanout.options import FanoutOptions
from ingero.errors import Unavailable
from ingero.transport.certificates import kept_certificate
from ingero.transport.fanout.ask import Fanout
from ingero.transport.fanout.client import Question
from ingero.transport.fanout.failures import NO_SERVER
from ingero.transport.fanout.nodes import FanoutPolicy, parse_nodes
from ingero.transport.http import TimedProtocol
from ingero.transport.tls import ClientTls, ServerTls, fingerprint_of_file, server_context

GOOD = b'{"columns":["n"],"rows":[[3]]}'


@contextlib.asynccontextmanager
async def raw_server(
    answer: bytes, *, endless: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Answer every request with these bytes, and without end if `endless`."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer)
                await writer.drain()
                while endless and not writer.is_closing():
                    writer.write(b"x" * 65536)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def http(body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), *headers, b"", body]
    return b"\r\n".join(lines)


@pytest.mark.parametrize(
    ("days", "name", "other_ca", "reason"),
    [
        (-1, "127.0.0.1", False, "certificate has expired"),
        (10, "10.9.8.7", False, "certificate is not valid for '127.0.0.1'"),
        (10, "127.0.0.1", True, "certificate"),
    ],
)
async def test_tls_failures_say_why(
    tmp_path: Path, days: int, name: str, other_ca: bool, reason: str
) -> None:
    authority = Authority.make(tmp_path / "ca")
    trusted = Authority.make(tmp_path / "other") if other_ca else authority
    async with node(database(tmp_path / "a.db"), tls=authority.issue(name, days=days)) as address:
        (reply,) = await ask([address], tls=ClientTls(ca=trusted.cert))
    failure = reply.failure or ""
    assert failure.startswith(f"its certificate is not accepted with {trusted.cert}: ")
    assert reason in failure
    assert "fingerprint " in failure


async def test_f137_client_certificate_is_wanted_and_accepted(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ca")
    own, client = authority.issue("127.0.0.1"), authority.issue("client", for_client=True)
    stranger = Authority.make(tmp_path / "other").issue("client", for_client=True)
    mutual = ServerTls(cert=own.cert, key=own.key, client_ca=authority.cert)
    async with node(database(tmp_path / "a.db"), tls=mutual) as address:
        replies = [
            (await ask([address], tls=ClientTls(ca=authority.cert, cert=cert, key=key)))[0]
            for cert, key in (
                (client.cert, client.key),
                (stranger.cert, stranger.key),
                (None, None),
            )
        ]
    assert (replies[0].failure, replies[0].body) == (None, GOOD)
    assert "--client-cert" in (replies[1].failure or "")
    assert "give --client-cert and --client-key" in (replies[2].failure or "")


@pytest.mark.parametrize("is_known", [True, False])
async def test_f137_a_pin_counts_beside_a_client_certificate(
    is_known: bool, tmp_path: Path
) -> None:
    """The authority of the node is unknown, and the node requires a client certificate."""
    own = kept_certificate(tmp_path / "server", ["elsewhere"])
    authority = Authority.make(tmp_path / "ca")
    client = authority.issue("client", for_client=True)
    print_of = fingerprint_of_file(own.cert if is_known else authority.cert)
    mutual = ServerTls(cert=own.cert, key=own.key, client_ca=authority.cert)
    async with node(database(tmp_path / "a.db"), tls=mutual) as address:
        mine = ClientTls(cert=client.cert, key=client.key)
        replies = await ask([address, f"https://{address}"], tls=mine, trusted={address: print_of})
        (bare,) = await ask([address], trusted={address: print_of})
    if is_known:
        assert [(reply.failure, reply.body) for reply in replies] == [(None, GOOD)] * 2
    else:
        assert all("not the trusted one" in (reply.failure or "") for reply in replies)
    assert bare.failure


async def test_f136_tls_12_is_refused_on_both_sides(tmp_path: Path) -> None:
    tls = kept_certificate(tmp_path / "tls", ["127.0.0.1"])
    old_client = ssl.create_default_context(cafile=str(tls.cert))
    old_client.maximum_version = ssl.TLSVersion.TLSv1_2
    async with node(database(tmp_path / "a.db"), tls=tls) as address:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.open_connection(*host_and_port(address), ssl=old_client)
    old_server = server_context(tls, ssl.TLSVersion.TLSv1_2)
    old_server.maximum_version = ssl.TLSVersion.TLSv1_2
    async with raw_server(http(GOOD), tls=old_server) as address:
        (reply,) = await ask([address], tls=ClientTls(ca=tls.cert))
    assert "TLS" in (reply.failure or "")


def test_a_kept_certificate_torn_by_a_crash_is_made_again(tmp_path: Path) -> None:
    first = kept_certificate(tmp_path / "a", ["n"])
    other = kept_certificate(tmp_path / "b", ["n"])
    first.key.write_bytes(other.key.read_bytes())
    server_context(kept_certificate(tmp_path / "a", ["n"]))
    first.cert.write_bytes(b"")
    server_context(kept_certificate(tmp_path / "a", ["n", "n\u00f6de"]))
    again = kept_certificate(tmp_path / "a", ["n", "n\u00f6de"]).cert.read_bytes()
    assert kept_certificate(tmp_path / "a", ["n", "n\u00f6de"]).cert.read_bytes() == again


HOSTILE = {
    "not JSON": http(b"<html>"),
    "not an object": http(b"[1,2]"),
    "not UTF-8": http(b'{"columns":["n"],"rows":[["\xff"]]}'),
    "wrong types": http(b'{"columns":[1],"rows":{}}'),
    "nested": http(b'{"columns":["n"],"rows":' + b"[" * 100_000),
    "objects in rows": http(b'{"columns":["n"],"rows":[[{"a":1}]]}'),
    "short row": http(b'{"columns":["n","m"],"rows":[[1,2],[1]]}'),
    "long row": http(b'{"columns":["n"],"rows":[[1,2]]}'),
    "row without node": http(b'{"columns":["a","node"],"rows":[[1]]}'),
    "huge header": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "negative length": b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
    "redirect": b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    "unknown encoding": http(b"abc", b"content-encoding: gzip"),
}


async def test_servers_that_lie_are_warnings_and_the_others_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        good = await stack.enter_async_context(node(database(tmp_path / "a.db")))
        hostile = [
            await stack.enter_async_context(raw_server(answer)) for answer in HOSTILE.values()
        ]
        endless = await stack.enter_async_context(
            raw_server(b"HTTP/1.1 200 OK\r\n\r\n", endless=True)
        )
        options = FanoutOptions(
            [good, *hostile, endless], FanoutPolicy(timeout_s=2 * PATIENCE_S), 1000.0
        )
        status = await asyncio.to_thread(
            ask_rows, options, "SELECT count(*) AS n FROM events", 10, "json"
        )
    captured = capsys.readouterr()
    assert (status, msgspec.json.decode(captured.out)) == (0, [{"node": "n1", "n": 3}])
    warned = [
        line
        for line in captured.err.splitlines()
        if line.startswith("WARNING: node http://127.0.0.1:")
    ]
    assert len(warned) == len(HOSTILE) + 1, captured.err
    assert "larger than 32 MiB" in warned[-1]


FORGED = b"\x1b[31mro\xff\xc2\x9bot"


@pytest.mark.parametrize("form", ["table", "json"])
async def test_a_name_or_column_cannot_forge_the_terminal(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = b'{"columns":["\\u001b[2J","b"],"rows":[["\\u001b]0;x\\u0007",1]],"truncated":true}'
    async with raw_server(http(body, b"x-ingero-node: " + FORGED)) as address:
        options = FanoutOptions([address], FanoutPolicy(timeout_s=PATIENCE_S), 1000.0)
        await asyncio.to_thread(ask_rows, options, "SELECT 1", 10, form)
    captured = capsys.readouterr()
    assert "?[31mro??ot" in captured.out
    assert "?[31mro??ot; raise --limit" in captured.err
    for forbidden in ("\x1b", "\x9b"):
        assert forbidden not in captured.out + captured.err
    (captured.out + captured.err).encode()


async def test_an_error_of_a_node_is_one_clean_line_of_bounded_length(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = msgspec.json.encode({"error": "\x1b[31mno\nWARNING: node b: forged " + "x" * 3000})
    answer = b"HTTP/1.1 500 Oh\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    async with raw_server(answer) as address:
        options = FanoutOptions([address], FanoutPolicy(timeout_s=PATIENCE_S), 1000.0)
        with pytest.raises(Unavailable) as raised:
            await asyncio.to_thread(ask_rows, options, "SELECT 1", 10, "json")
    head, line = str(raised.value).split("\n")
    assert head == "no node answered:"
    assert line.startswith(f"  node {address}: HTTP 500: ?[31mno WARNING: node b: forged xxx")
    assert len(line) < 600
    assert capsys.readouterr().out == "", "an error is no empty answer"


async def test_f151_clocks_do_not_lengthen_a_question(tmp_path: Path) -> None:
    """The answer does not wait for the clock, which answers only once the answer was read."""
    arrived = asyncio.Event()
    async with (
        node(database(tmp_path / "a.db")) as address,
        FaultProxy(host_and_port(address), hold=(b"/api/v1/time", arrived)) as proxy,
        Fanout(FanoutPolicy(timeout_s=PATIENCE_S)) as fanout,
    ):
        plain = f"http://{proxy.address}"
        async for reply in fanout.ask([plain], SQL):
            assert (reply.failure, fanout.offsets([plain])) == (None, {})
            arrived.set()
        assert list(fanout.offsets([plain])) == ["n1"]
    assert proxy.accepted == 1, "three short questions on a warm connection"


async def test_f152_sixty_nodes_in_under_five_seconds(tmp_path: Path) -> None:
    """CPU seconds of both sides together, so that other processes do not count."""
    db = database(tmp_path / "a.db")
    tls = kept_certificate(tmp_path / "tls", ["127.0.0.1"])
    names = [f"gpu-{i:02}" for i in range(60)]
    nodes = [node(db, name, tls=tls) for name in names]
    addresses = await asyncio.gather(*(one.__aenter__() for one in nodes))
    begin = time.process_time()
    replies = await ask(addresses, tls=ClientTls(ca=tls.cert))
    elapsed = time.process_time() - begin
    await asyncio.gather(*(one.__aexit__(None, None, None) for one in nodes))
    assert [(reply.name, reply.failure, reply.body) for reply in replies] == [
        (name, None, GOOD) for name in names
    ]
    assert elapsed < 5.0


class HurriedProtocol(TimedProtocol):
    request_timeout_s = 0.5


async def test_slow_and_half_open_clients_do_not_keep_a_node_busy(tmp_path: Path) -> None:
    """200 incomplete requests: others are answered meanwhile, then the connections are closed."""
    starts = [
        b"",
        b"GET /api/v1/ti",
        b"POST /api/v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    ]
    async with node_listener(database(tmp_path / "a.db"), HurriedProtocol) as listener:
        slow = [await asyncio.open_connection(*host_and_port(listener.address)) for _ in range(200)]
        for number, (_, writer) in enumerate(slow):
            writer.write(starts[number % 3])
        (reply,) = await ask([listener.address])
        assert reply.failure is None
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(reader.read() for reader, _ in slow), return_exceptions=True)
        await until_async(lambda: listener.connections <= 1)
        for _, writer in slow:
            writer.close()


async def test_a_client_that_does_not_read_its_answer_is_disconnected(tmp_path: Path) -> None:
    sql = (
        "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c LIMIT 9000) "
        "SELECT printf('%01000d', i) FROM c"
    )
    body = msgspec.json.encode({"sql": sql, "limit": 10_000})
    async with node_listener(database(tmp_path / "a.db"), HurriedProtocol) as listener:
        _, writer = await asyncio.open_connection(*host_and_port(listener.address), limit=1024)
        writer.write(
            b"POST /api/v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        await writer.drain()
        await until_async(lambda: listener.connections)
        await until_async(lambda: not listener.connections)
        writer.close()


async def test_a_node_name_cannot_add_headers(tmp_path: Path) -> None:
    async with node(database(tmp_path / "a.db"), "a\r\nset-cookie: x=1") as address:
        (reply,) = await ask([address], Question("/api/v1/time"))
    assert (reply.failure, reply.name) == (None, "a??set-cookie: x=1")


def test_ipv6_addresses_keep_their_brackets() -> None:
    assert parse_nodes("[fe80::1]:80,[::1]:81") == ["[fe80::1]:80", "[::1]:81"]
    assert parse_nodes("[[::1]:80, b:1]") == ["[::1]:80", "b:1"]


async def test_replies_behind_a_slow_node_are_bounded_and_all_arrive(tmp_path: Path) -> None:
    """Without room for waiting replies, nodes are asked one by one, and nothing is lost."""
    async with (
        node(database(tmp_path / "a.db")) as address,
        FaultProxy(host_and_port(address), delay_s=0.3) as late,
    ):
        replies = await ask([late.address, *[address] * 20], backlog_bytes=1)
    assert [reply.body for reply in replies] == [GOOD] * 21


async def test_a_single_question_leaves_no_connection_behind(tmp_path: Path) -> None:
    async with (
        node_listener(database(tmp_path / "a.db")) as listener,
        Fanout(FanoutPolicy(timeout_s=PATIENCE_S), keep_open=False) as fanout,
    ):
        assert [reply.failure async for reply in fanout.ask([listener.address], SQL)] == [None]
        assert len(fanout.offsets([listener.address])) == 1
        await until_async(lambda: not listener.connections)


async def test_another_service_of_ours_is_no_node() -> None:
    """Fleet, or the metrics of an agent, answer on that port."""
    answer = b'HTTP/1.1 404 Not Found\r\ncontent-length: 21\r\n\r\n{"error":"Not Found"}'
    async with raw_server(answer) as address:
        (reply,) = await ask([address])
    assert reply.failure == f"HTTP 404: Not Found; {NO_SERVER}"
