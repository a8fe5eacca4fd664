import gzip
import json
import os
import time
import zlib
from functools import partial

import pytest
from tests.support.pushes import JSON, NEVER_S, PB, as_json, post, protobuf
from tests.support.pushes import running as running_fleet
from tests.support.shared_data import shared
from tests.support.tokens import access_of
from tests.support.waiting import PATIENCE_S

from ingero.contract import names
from ingero.contract.otlp.body import Encoding, PartialSuccess, decode_response, encode_response
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.segment import PlainRequest
from ingero.core.health.threshold import ThresholdPolicy
from ingero.fleet.processor import FleetProcessor, Taken
from ingero.fleet.receive import Receiver
from ingero.fleet.series import ReceivedSeries
from ingero.transport.access import Access
from ingero.transport.bearer import Key
from ingero.transport.http import _NO_PAGE
from ingero.transport.otlp.server_http import Inbound, Reply

running = partial(running_fleet, tick_s=NEVER_S)  # no tick comes between two pushes


async def test_push_answers_both_headers() -> None:
    """F005, F065: JSON and protobuf, the same values on both."""
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics?cluster_id=train"
        for node in "abcde":
            status, headers, body = await post(url, protobuf(node, 0.9), PB)
        assert (status, body, headers["content-type"]) == (200, b"", names.PROTOBUF_TYPE)
        assert headers["x-ingero-threshold"] == "0.880000"
        fleet.processor.tick(time.monotonic())
        status, headers, body = await post(url, as_json("a", 0.9), JSON)
        assert (status, body) == (200, b"{}")
        assert headers["x-ingero-quorum-met"] == "true"
        assert "date" in headers


async def test_plain_pushes_and_all_others_get_the_same_reply() -> None:
    """uvicorn handles a deflate body; everything that a client sees must be equal."""
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics?cluster_id=train"
        for body, headers in (
            (protobuf("a", 0.9, sent_ns=5), PB),
            (as_json("a", 0.9, sent_ns=5), JSON),
            (protobuf("a", 7.0), PB),
            (as_json("a", 7.0), JSON),
            (b"\xff\xff\xff", PB),
            (b"{", JSON),
            (b"", PB),
        ):
            plain = await post(url, body, headers)
            packed = await post(url, gzip.compress(body), {**headers, "Content-Encoding": "gzip"})
            long = {**headers, "Content-Encoding": "deflate"}
            deflated = await post(url, zlib.compress(body), long)
            for reply in (plain, packed, deflated):
                # headers for browsers, which refusals of uvicorn have and no sender reads
                for name in ("date", *(header.decode() for header, _ in _NO_PAGE)):
                    reply[1].pop(name, None)
            assert plain == packed == deflated


async def test_identical_state_from_both_encodings_and_both_transports() -> None:
    """F033 over HTTP; test_grpc has the rest."""
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        await post(url, protobuf("a", 0.9, sent_ns=5), PB)
        await post(url, as_json("b", 0.9, sent_ns=5), JSON)
        await post(
            url, zlib.compress(protobuf("c", 0.9, sent_ns=5)), {**PB, "Content-Encoding": "deflate"}
        )
        roster = fleet.processor.clusters["train"].roster
        rows = [roster.row(node, 0.0) for node in "abc"]
        assert {
            (row.score, row.state, row.pushes, row.report.workload, row.report.sent_ns)
            for row in rows
        } == {(0.9, "active", 1, "training", 5)}


async def test_cluster_by_query_header_or_resource() -> None:
    """F040."""
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        await post(
            f"{url}?node_id=a&cluster_id=by%20query",
            protobuf("a", 0.9),
            {**PB, "ingero.cluster.id": "header"},
        )
        await post(url, protobuf("a", 0.9), {**PB, "ingero.cluster.id": "header"})
        await post(url, protobuf("a", 0.9), PB)
        assert sorted(fleet.processor.clusters) == ["by query", "header", "train"]
        assert fleet.processor.counters.mismatched == 2


@pytest.mark.parametrize("headers", [PB, JSON])
async def test_partial_success_states_count_and_reason(headers: dict[str, str]) -> None:
    async with running() as fleet:
        encode = protobuf if headers is PB else as_json
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        status, _, body = await post(url, encode("a", 7.0), headers)
        encoding = Encoding.PROTOBUF if headers is PB else Encoding.JSON
        partial = decode_response(MetricsRequest, body, encoding)
        assert (status, partial) == (200, PartialSuccess(1, "1 x health score is outside 0 to 1"))


async def test_errors_carry_the_threshold_too() -> None:
    async with running(
        receivers={"otlp": {"protocols": {"http": {"max_body_bytes": 100_000}}}}
    ) as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics?cluster_id=train"
        await post(url, protobuf("a", 0.9), PB)
        bomb = gzip.compress(bytes(33 << 20), 9)
        for body, headers, expected in (
            (b"\xff", PB, 400),
            (b"\xff", {**PB, "Content-Encoding": "gzip"}, 400),
            (b"{}", {"Content-Type": "text/plain"}, 415),
            (b"{}", {}, 415),
            (b"{}", {**JSON, "Content-Encoding": "br"}, 400),
            (bytes(100_001), PB, 413),
            (bomb, {**PB, "Content-Encoding": "gzip"}, 413),
        ):
            status, reply, _ = await post(url, body, headers)
            assert (status, reply["x-ingero-threshold"], reply["x-ingero-quorum-met"]) == (
                expected,
                "0.880000",
                "false",
            ), (body[:10], headers)
        assert fleet.processor.clusters["train"].roster.row("a", 0.0).pushes == 1
        counts = {status: count for (_, status), count in fleet.receiver.reply_counts().items()}
        assert counts == {200: 1, 400: 3, 413: 2, 415: 2}


async def test_too_many_requests_are_refused_with_a_delay() -> None:
    async with running(
        receivers={"otlp": {"protocols": {"http": {"max_requests_per_s": 1}}}}
    ) as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        assert (await post(url, protobuf("a", 0.9), PB))[0] == 200, "in the first second, too"
        status, headers, _ = await post(url, protobuf("b", 0.9), PB)
        assert (status, headers["retry-after"]) == (429, "10")
        assert "b" not in fleet.processor.clusters["train"].roster.rows
        fleet.receiver.second_passed()
        assert (await post(url, protobuf("b", 0.9), PB))[0] == 200


async def test_draining_refuses_with_503_and_retry_after() -> None:
    async with running() as fleet:
        fleet.receiver.refuses = "shutting down"
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        for headers in (PB, {**PB, "Content-Encoding": "identity"}):
            status, reply, _ = await post(url, protobuf("a", 0.9), headers)
            assert (status, reply["retry-after"]) == (503, "1")


async def test_bearer_token(tmp_path: object) -> None:
    token = tmp_path / "token"
    token.write_text("a-first-s3cret-0123\n")
    token.chmod(0o600)
    async with running(
        receivers={"otlp": {"protocols": {"http": {"token_file": str(token)}}}}
    ) as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"

        async def pushed(authorization: str) -> tuple[int, dict[str, str], bytes]:
            return await post(url, protobuf("a", 0.9), {**PB, "Authorization": authorization})

        first, second = "a-first-s3cret-0123", "a-n3w-s3cret-0123456"
        refused = [await post(url, protobuf("a", 0.9), PB)]
        refused += [await pushed(text) for text in ("Bearer no", f"Basic {first}")]
        assert [status for status, _, _ in refused] == [401, 401, 401]
        assert len({body for _, _, body in refused}) == 1, (
            "missing, wrong and malformed look the same"
        )
        assert (await pushed(f"Bearer {first}"))[0] == 200
        token.write_text(second)
        fleet.reload()
        assert (await pushed(f"Bearer {first}"))[0] == 401
        assert (await pushed(f"Bearer {second}"))[0] == 200


async def test_verdict_is_part_of_the_reply() -> None:
    async with running() as fleet:
        fleet.receiver.answers.verdict_texts = {("train", "slow"): '[{"node":"slow"}]'}
        fleet.receiver.answers.ask_texts = {("train", "slow"): '[{"episode":"e"}]'}
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        for headers in (PB, {**PB, "Content-Encoding": "identity"}):
            reply = (await post(url, protobuf("slow", 0.2), headers))[1]
            assert reply["x-ingero-verdict"] == '[{"node":"slow"}]'
            assert reply["x-ingero-ask"] == '[{"episode":"e"}]'
            reply = (await post(url, protobuf("fast", 0.9), headers))[1]
            assert not {"x-ingero-verdict", "x-ingero-ask"} & set(reply)


async def test_pipelined_split_and_odd_requests_over_one_connection() -> None:
    """Plain pushes inside uvicorn's protocol: order, pieces, keep-alive, other requests."""
    import asyncio

    async with running() as fleet:
        host, port = fleet.addresses["http"].rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        body = protobuf("a", 0.9)
        push = (
            "POST /v1/metrics?cluster_id=p HTTP/1.1\r\nHost: x\r\n"
            f"Content-Type: {names.PROTOBUF_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        other = b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(push + other + push)
        for chunk in (push[:20], push[20:150], push[150:]):
            await writer.drain()
            writer.write(chunk)
        statuses = []
        for _ in range(4):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
            statuses.append(int(head.split(b" ")[1]))
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if b"content-length" in line
            )
            await reader.readexactly(length)
        assert statuses == [200, 404, 200, 200]
        writer.write(push.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\n"))
        assert b" 200 " in await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        assert fleet.processor.clusters["p"].roster.row("a", 0.0).pushes == 4


async def test_recorded_pushes_of_the_reference_agent_are_accepted() -> None:
    """Every recorded request gets a 200 and leaves the recorded states."""
    lines = [
        json.loads(line)
        for line in (shared("data/ingero-wire") / "requests.jsonl").read_text().splitlines()
    ]
    async with running() as fleet:
        straggling: list[bool] = []
        for line in lines:
            body = (
                bytes.fromhex(line["hex"]) if "hex" in line else json.dumps(line["body"]).encode()
            )
            kept = {
                k: v
                for k, v in line["headers"].items()
                if k in ("Content-Type", "Content-Encoding")
            }
            status, _, reply = await post(
                f"http://{fleet.addresses['http']}{line['path']}", body, kept
            )
            encoding = (
                Encoding.JSON if kept["Content-Type"] == names.JSON_TYPE else Encoding.PROTOBUF
            )
            assert (status, reply) == (200, encode_response(MetricsRequest, encoding))
            if "body" not in line:
                continue
            row = fleet.processor.clusters["train-a"].roster.row("gpu-node-01", 0.0)
            metrics = line["body"]["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
            point = metrics[0]["gauge"]["dataPoints"][0]
            if metrics[0]["name"] == names.HEALTH_SCORE:
                assert row.score == point["asDouble"]
                assert row.state == point["attributes"][0]["value"]["stringValue"]
                straggling.append(row.straggling)
        assert (row.report.rank, row.report.world_size, row.report.mode) == (3, 8, "fleet")
        assert straggling.count(True) == 5
        assert not straggling[-1]
        assert fleet.receiver.items == {"TracesRequest": 1}


def packed_answer(receiver: Receiver, body: bytes, token: bytes | None = None) -> int | None:
    packed = gzip.compress(body)
    reply = receiver.answer(PlainRequest(False, b"", None, token, packed, is_gzip=True), b"")
    return None if reply is None else int(reply[9:12])


def test_small_gzip_bodies_of_known_senders_are_answered_at_once() -> None:
    is_open = Receiver(FleetProcessor(ThresholdPolicy()))
    assert packed_answer(is_open, protobuf("n", 0.9)) == 200
    assert set(is_open.processor.clusters["train"].roster.rows) == {"n"}
    assert packed_answer(is_open, bytes(70_000)) is None  # a body that unfolds
    assert packed_answer(is_open, os.urandom(5_000)) is None
    closed = Receiver(FleetProcessor(ThresholdPolicy()))
    closed.http_token = access_of("secret")
    assert packed_answer(closed, protobuf("n", 0.9), b"Bearer secret") == 200


def test_nothing_is_unpacked_or_decoded_before_its_sender_is_admitted() -> None:
    """A body that unfolds is not looked at, and a large plain one is left to a thread."""
    unfolds, large = bytes(70_000), protobuf("n", 0.9) * 400
    closed = Receiver(FleetProcessor(ThresholdPolicy()))
    closed.http_token = access_of("secret")
    for token in (None, b"Bearer other"):
        assert packed_answer(closed, unfolds, token) == 401
    limited = Receiver(FleetProcessor(ThresholdPolicy()))
    limited.limit_requests(2)
    assert [packed_answer(limited, unfolds) for _ in range(9)] == [None] * 9, "the long way counts"
    assert [packed_answer(limited, protobuf("n", 0.9)) for _ in range(3)] == [200, 200, 429]
    assert packed_answer(limited, unfolds) == 429
    limited.refuses = "shutting down"
    assert packed_answer(limited, unfolds) == 503
    for receiver in (closed, limited, Receiver(FleetProcessor(ThresholdPolicy()))):
        assert receiver.answer(PlainRequest(False, b"", None, None, large), b"") is None


def test_a_token_of_another_cluster_is_refused_and_nothing_is_stored() -> None:
    receiver = Receiver(FleetProcessor(ThresholdPolicy()))
    sender = Key("east", b"", clusters=frozenset({"east"}))
    pushed = Inbound(MetricsRequest, protobuf("n", 0.9), Encoding.PROTOBUF, "west", sender)
    reply = receiver.grpc_service(Access(None)).receive(pushed)
    assert isinstance(reply, Reply)
    assert reply.status == 403
    assert not receiver.processor.clusters


def test_long_queries_are_not_cached() -> None:
    """The sender decides how long a query is: cached, long ones could fill the memory."""
    receiver = Receiver(FleetProcessor(ThresholdPolicy()))
    long_query = b"cluster_id=b&" + b"x=1&" * 1000
    for query in (b"cluster_id=a", long_query):
        receiver.answer(PlainRequest(False, query, None, None, protobuf("n", 0.9)), b"")
    assert set(receiver.processor.clusters) == {"a", "b"}
    assert set(receiver.clusters_by_query) == {b"", b"cluster_id=a"}


def test_kept_bodies_are_bounded_in_number() -> None:
    kept = ReceivedSeries("prometheus", 60.0, 1000, max_bodies=100)
    for number in range(1000):
        kept.offer(MetricsRequest, b"", Encoding.PROTOBUF, Taken("c", f"n{number}"))
        assert len(kept.kept.bodies) <= 100
    assert kept.kept.dropped >= 900
