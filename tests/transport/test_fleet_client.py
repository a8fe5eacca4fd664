"""The client of Fleet's HTTP API: decoded answers, and one message for every failure."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from ingero.contract.api_paths import FLEET_SILENCES, FLEET_STATUS
from ingero.contract.fleet_api import NodeStatus, SilenceList, Status
from ingero.contract.node_api import ErrorReply
from ingero.contract.silence import LiftRequest, Silence
from ingero.errors import AuthError, TooLarge, Unavailable
from ingero.fleet.allowed_clusters import not_allowed
from ingero.transport import fleet_client
from ingero.transport.access import lacks_scope
from ingero.transport.bearer import TokenScope
from ingero.transport.fleet_client import FleetClient
from ingero.transport.tls import ClientTls


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[FleetClient, list[str | None]]]:
    """A server with one answer to every request, and the Authorization headers that it received."""
    received: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            received.append(self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        yield FleetClient(url=url, tls=ClientTls(), token="s3cret"), received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_answer_is_decoded_and_the_token_is_sent() -> None:
    silence = b'{"target":"n1","cluster":null,"since":1.0,"until":61.0,"why":"fan"}'
    expected = Silence(target="n1", since=1.0, until=61.0, why="fan")
    with answering(200, b'{"silences":[%s]}' % silence) as (client, received):
        assert client.get(FLEET_SILENCES, SilenceList) == SilenceList([expected])
    with answering(200, silence) as (client, more):
        assert client.post(FLEET_SILENCES, LiftRequest(target="n1"), Silence) == expected
    assert received + more == ["Bearer s3cret"] * 2


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"clusters":[{"name":"x"}]}', b"\xff"])
def test_answer_of_another_server_is_an_error(body: bytes) -> None:
    with (
        answering(200, body) as (client, _),
        pytest.raises(Unavailable, match=r"answered, but not like Fleet; .*port 8080"),
    ):
        client.get(FLEET_STATUS, Status[NodeStatus])


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (401, b"", AuthError, "wants a token"),
        (403, b'{"error":"this token lacks it"}', AuthError, "refuses: this token lacks it; take"),
        (404, b'{"error":"Not Found"}', Unavailable, r"404: Not Found; is it the address"),
        (500, b"upstream gone", Unavailable, "answered 500: upstream gone"),
        (302, b"", Unavailable, "answered 302"),
    ],
)
def test_refusal_names_its_reason(
    status: int, body: bytes, error: type[Exception], words: str
) -> None:
    with answering(status, body) as (client, _), pytest.raises(error, match=words):
        client.get(FLEET_STATUS, Status[NodeStatus])


@pytest.mark.parametrize("reason", [lacks_scope((TokenScope.OPERATE,)), not_allowed("train")])
def test_who_needs_another_token_is_told_where_it_may_be(reason: str) -> None:
    body = msgspec.json.encode(ErrorReply(reason))
    with answering(403, body) as (client, _), pytest.raises(AuthError) as refused:
        client.get(FLEET_STATUS, Status[NodeStatus])
    assert str(refused.value) == (
        f"Fleet at {client.url} refuses: {reason}; take a token that may, in "
        "$INGERO_FLEET_TOKEN, or operator/ingero.yaml of `ingero fleet init` in $INGERO_CONFIG"
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            b'{"error":"\'fleet\' is not a name of this machine; use localhost, or set a token"}',
            "'fleet' is not a name of this machine; use localhost, or set a token",
        ),
        (
            b'{"error":"changes from other machines need a token: extensions.x.token_file"}',
            "changes from other machines need a token: extensions.x.token_file",
        ),
        (b"<h1>Forbidden</h1>", "<h1>Forbidden</h1>"),
        (b"", "HTTP 403"),
    ],
)
def test_who_is_refused_for_another_reason_is_not_sent_for_a_token(body: bytes, said: str) -> None:
    with answering(403, body) as (client, _), pytest.raises(AuthError) as refused:
        client.get(FLEET_STATUS, Status[NodeStatus])
    assert str(refused.value) == f"Fleet at {client.url} refuses: {said}"


def test_answer_beyond_the_limit_is_an_error() -> None:
    body = b" " * (fleet_client.MAX_REPLY_BYTES + 1)
    with answering(200, body) as (client, _), pytest.raises(TooLarge, match="larger than"):
        client.get(FLEET_STATUS, Status[NodeStatus])
