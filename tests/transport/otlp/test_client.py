"""Pushes: the outcome of each reply, what it carries, and redirects that are refused."""

import asyncio
import contextlib
import email.utils
import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.own_times import rank_push
from tests.support.scripted_fleet import Answer, ScriptedFleet, black_hole, scripted_fleet
from tests.support.tls_files import Authority
from tests.support.waiting import PATIENCE_S

from ingero.contract import names
from ingero.contract.causes import Ask, encode_asks
from ingero.contract.otlp.body import Encoding, PartialSuccess, encode_response
from ingero.contract.otlp.codec import decode_json, decode_protobuf
from ingero.contract.otlp.values import Metric, MetricsRequest, ResourceMetrics, ScopeMetrics
from ingero.contract.threshold import Delivery, ServedThreshold
from ingero.contract.verdict import Verdict, VerdictState, encode_verdicts
from ingero.core.health.modes import PushOutcome
from ingero.errors import ConfigError
from ingero.transport.connect import NEEDS_TLS, NO_TLS
from ingero.transport.endpoint import Protocol, parse_endpoint
from ingero.transport.otlp.client import ClientOptions, HttpPush, PushReply, parse_retry_after

REQUEST = MetricsRequest(
    resource_metrics=(ResourceMetrics(scope_metrics=(ScopeMetrics(metrics=(Metric(name="m"),)),)),)
)
GOOD = {names.THRESHOLD_HEADER: "0.82", names.QUORUM_HEADER: "true"}


@contextlib.asynccontextmanager
async def pushing(
    url: str, protocol: Protocol = Protocol.HTTP_JSON, timeout_s: float = PATIENCE_S
) -> AsyncIterator[HttpPush]:
    endpoint = parse_endpoint(url, protocol=protocol)
    client = HttpPush(
        endpoint,
        "c 1",
        "n/1",
        ClientOptions(timeout_s=timeout_s, headers={"X-A": "b"}),
        random.Random(1),
    )
    try:
        yield client
    finally:
        await client.close()


async def reply_to(answer: Answer) -> tuple[PushReply, ScriptedFleet]:
    async with scripted_fleet() as fleet, pushing(fleet.url) as client:
        fleet.answer = lambda _: answer
        return await client.push(REQUEST), fleet


@pytest.mark.parametrize("protocol", [Protocol.HTTP_JSON, Protocol.HTTP_PROTOBUF])
async def test_a_push_carries_its_identity_and_body(protocol: Protocol) -> None:
    async with scripted_fleet() as fleet, pushing(fleet.url, protocol) as client:
        assert (await client.push(REQUEST)).outcome is PushOutcome.OK
        [(request, body)] = fleet.requests
    assert request.method == "POST"
    assert request.path_qs == "/v1/metrics?cluster_id=c%201&node_id=n%2F1"
    assert request.headers["X-A"] == "b"
    is_json = protocol is Protocol.HTTP_JSON
    assert request.headers["Content-Type"] == (
        "application/json" if is_json else "application/x-protobuf"
    )
    assert (decode_json if is_json else decode_protobuf)(MetricsRequest, body) == REQUEST


@pytest.mark.parametrize(("ranks", "encoding"), [(8, "gzip"), (0, None)])
async def test_large_pushes_are_compressed_where_that_is_asked_for(
    ranks: int, encoding: str | None
) -> None:
    request = decode_protobuf(MetricsRequest, rank_push(0, 0)) if ranks else REQUEST
    options = ClientOptions(timeout_s=PATIENCE_S, is_compressed=True)
    async with scripted_fleet() as fleet:
        endpoint = parse_endpoint(fleet.url, protocol=Protocol.HTTP_PROTOBUF)
        client = HttpPush(endpoint, "c", "n", options, random.Random(1))
        assert (await client.push(request)).outcome is PushOutcome.OK
        await client.close()
        [(sent, body)] = fleet.requests
    assert sent.headers.get("Content-Encoding") == encoding
    assert decode_protobuf(MetricsRequest, body) == request
    if encoding:
        assert int(sent.headers["Content-Length"]) < len(body) / 4


@pytest.mark.parametrize(
    ("answer", "outcome", "retry_after_s"),
    [
        pytest.param(Answer(200), PushOutcome.OK, None, id="200"),
        pytest.param(Answer(204, body=b""), PushOutcome.OK, None, id="204"),
        pytest.param(Answer(429, {"Retry-After": "7"}), PushOutcome.SHED, 7.0, id="60"),
        pytest.param(
            Answer(503, {"Retry-After": "12"}), PushOutcome.SHED, 12.0, id="503-with-time"
        ),
        pytest.param(Answer(429), PushOutcome.SHED, None, id="62-no-header"),
        pytest.param(Answer(503), PushOutcome.SERVER_ERROR, None, id="503-silent"),
        pytest.param(Answer(400, {"Retry-After": "30"}), PushOutcome.REFUSED, None, id="62-400"),
        pytest.param(Answer(401), PushOutcome.AUTH, None, id="401"),
        pytest.param(Answer(403), PushOutcome.AUTH, None, id="403"),
        pytest.param(Answer(500), PushOutcome.SERVER_ERROR, None, id="500"),
        pytest.param(
            Answer(200, body=b"x" * 70_000), PushOutcome.SERVER_ERROR, None, id="reply-too-large"
        ),
    ],
)
async def test_answers_are_final_and_mean_something(
    answer: Answer, outcome: PushOutcome, retry_after_s: float | None
) -> None:
    answer.headers |= GOOD
    reply, fleet = await reply_to(answer)
    assert (reply.outcome, reply.retry_after_s) == (outcome, retry_after_s)
    assert len(fleet.requests) == 1  # no retry of an answer
    assert reply.threshold == ServedThreshold(0.82, True)  # read on errors too


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_bug_redirects_are_refused(status: int) -> None:
    """Following a redirect would present the client certificate to another server."""
    reply, fleet = await reply_to(Answer(status, {"Location": "/elsewhere"}))
    assert reply.outcome is PushOutcome.REFUSED
    assert [request.path for request, _ in fleet.requests] == ["/v1/metrics"]


async def test_network_errors_are_tried_once_more() -> None:
    async with scripted_fleet() as fleet, pushing(fleet.url, timeout_s=1.0) as client:
        fleet.answer = lambda count: Answer(delay_s=1.5 if count == 1 else 0.0)
        assert (await client.push(REQUEST)).outcome is PushOutcome.OK
        assert len(fleet.requests) == 2
        fleet.answer = lambda _: Answer(delay_s=1.5)
        assert (await client.push(REQUEST, retry=False)).outcome is PushOutcome.TRANSPORT
        assert len(fleet.requests) == 3


@pytest.mark.parametrize(("delay_s", "sent"), [(1.5, 1), (None, 2)])
async def test_a_patient_client_does_not_repeat_what_a_busy_fleet_may_still_read(
    delay_s: float | None, sent: int
) -> None:
    """A timeout is final, a connection that breaks is not."""
    options = ClientOptions(timeout_s=1.0, is_patient=True)
    async with scripted_fleet() as fleet:
        endpoint = parse_endpoint(fleet.url, protocol=Protocol.HTTP_JSON)
        client = HttpPush(endpoint, "c", "n", options, random.Random(1))
        fleet.answer = lambda _: Answer(delay_s=delay_s or 0.0, breaks=delay_s is None)
        reply = await client.push(REQUEST)
        await client.close()
    assert (reply.outcome, reply.timed_out) == (PushOutcome.TRANSPORT, delay_s is not None)
    assert len(fleet.requests) == sent


async def test_an_unreachable_fleet_is_a_value_not_an_exception() -> None:
    async with pushing("http://127.0.0.1:1") as client:
        reply = await client.push(REQUEST)
    assert (reply.outcome, reply.detail) == (PushOutcome.TRANSPORT, "Connection refused")


async def test_what_does_not_speak_http_is_a_sentence_without_its_bytes() -> None:
    """Port 4317 of a Fleet answers with frames of HTTP/2."""

    async def frames(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x1e\x04\x00\x00\x00\x00\x00\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(frames, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with pushing(f"http://127.0.0.1:{port}") as client:
            reply = await client.push(REQUEST, retry=False)
    assert reply.outcome is PushOutcome.TRANSPORT
    assert reply.detail.startswith("the server there does not answer in HTTP/1.1; ")


async def test_tls_to_a_plaintext_listener_is_not_called_a_matter_of_certificates() -> None:
    async with scripted_fleet() as fleet, pushing(fleet.url.replace("http:", "https:")) as client:
        reply = await client.push(REQUEST, retry=False)
    assert (reply.outcome, reply.detail) == (PushOutcome.TRANSPORT, NO_TLS)


async def test_a_listener_with_tls_asks_for_https(tmp_path: Path) -> None:
    files = Authority.make(tmp_path / "a").issue("127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.cert, files.key)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        async with pushing(f"http://127.0.0.1:{port}") as client:
            reply = await client.push(REQUEST, retry=False)
    assert (reply.outcome, reply.detail) == (PushOutcome.TRANSPORT, NEEDS_TLS)


async def test_a_black_hole_ends_with_the_timeout() -> None:
    async with black_hole() as url, pushing(url, timeout_s=0.1) as client:
        assert (await client.push(REQUEST)).outcome is PushOutcome.TRANSPORT


async def test_bug_partial_success_is_read() -> None:
    partial = encode_response(
        MetricsRequest, Encoding.JSON, PartialSuccess(2, "score_out_of_range")
    )
    reply, _ = await reply_to(Answer(body=partial))
    assert (reply.outcome, reply.rejected_points, reply.detail) == (
        PushOutcome.OK,
        2,
        "score_out_of_range",
    )


async def test_verdicts_come_with_the_reply_and_garbage_is_ignored() -> None:
    verdict = Verdict(episode="e", state=VerdictState.STRAGGLER, node="n", since=1.0)
    reply, _ = await reply_to(Answer(headers={names.VERDICT_HEADER: encode_verdicts([verdict])}))
    assert reply.verdicts == (verdict,)
    reply, _ = await reply_to(Answer(headers={names.VERDICT_HEADER: '[{"episode": 1}'}))
    assert (reply.outcome, reply.verdicts) == (PushOutcome.OK, ())
    deep = '[{"episode":"e","state":"straggler","node":"n","since":1,"more":' + "[" * 8000
    reply, _ = await reply_to(Answer(headers={names.VERDICT_HEADER: deep}))
    assert (reply.outcome, reply.verdicts) == (PushOutcome.OK, ())


async def test_asks_come_with_the_reply_and_garbage_is_ignored() -> None:
    ask = Ask(episode="e", job="j", rank=3, late=0.2)
    reply, _ = await reply_to(Answer(headers={names.ASK_HEADER: encode_asks([ask])}))
    assert reply.asks == (ask,)
    for garbage in ("[", '[{"number": 1}]', "[" * 3000):
        reply, _ = await reply_to(Answer(headers={names.ASK_HEADER: garbage}))
        assert (reply.outcome, reply.asks) == (PushOutcome.OK, ())


@pytest.mark.parametrize(
    ("headers", "delivery"),
    [
        (GOOD, Delivery.HIT),
        ({names.THRESHOLD_HEADER: "0.82"}, Delivery.MISS),
        ({}, Delivery.MISS),
        ({names.THRESHOLD_HEADER: "NaN", names.QUORUM_HEADER: "true"}, Delivery.REJECTED),
    ],
)
async def test_threshold_headers(headers: dict[str, str], delivery: Delivery) -> None:
    assert (await reply_to(Answer(headers=headers)))[0].delivery is delivery


def test_headers_with_line_breaks_are_refused() -> None:
    with pytest.raises(ConfigError, match="line break"):
        ClientOptions(timeout_s=1.0, headers={"X-A": "b\r\nX-B: c"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7.0), ("0", 0.0), (" 7 ", 7.0), ("", None), ("   ", None), ("abc", None),
        ("-1", None), ("1_0", None),
        ("٧", None), (None, None), ("999999", 300.0), ("99999999999999999999", None),
    ],
)  # fmt: skip
def test_retry_after_vector_61(text: str | None, expected: float | None) -> None:
    assert parse_retry_after(text, 1000.0) == expected


def test_retry_after_dates_v18() -> None:
    now = 1_794_709_942.0
    assert parse_retry_after(email.utils.formatdate(now - 60, usegmt=True), now) == 0.0
    assert parse_retry_after(email.utils.formatdate(now + 30, usegmt=True), now) == pytest.approx(
        30.0
    )
    assert parse_retry_after(email.utils.formatdate(now + 10**6, usegmt=True), now) == 300.0
