"""Replies to senders: the status and retry time of refusals, the number in acknowledgements."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.echo_samples import metrics_body

from ingero.contract import names
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.values import MetricsRequest
from ingero.echo.engine import Engine, EngineSettings
from ingero.echo.receive import Receiver
from ingero.transport.access import Access
from ingero.transport.bearer import Key, token_digest
from ingero.transport.otlp.server_http import Inbound, Reply


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    settings = EngineSettings(
        database=tmp_path / "echo.db", segment_bytes=1 << 20, max_backlog_bytes=4000
    )
    started = Engine(settings)
    await started.start()
    yield started
    await started.stop()


KEY = Key("k", token_digest("a-good-token-0123"))


def inbound(body: bytes, wait: bool = False) -> Inbound:
    return Inbound(MetricsRequest, body, Encoding.PROTOBUF, None, KEY, wait=wait)


async def test_replies_of_the_receiver(engine: Engine) -> None:
    receiver = Receiver(engine, Access([KEY]))
    http, grpc = receiver.service("http"), receiver.service("grpc")
    receive_http, receive_grpc = http.receive, grpc.receive
    assert http.admit("Bearer a-good-token-0123", None) == KEY
    assert http.admit("Bearer another-token-012", None) == Reply(
        401, message="a bearer token is needed"
    )
    assert (await receive_grpc(inbound(b"\xff"))).status == 400
    assert (await receive_http(inbound(bytes(9 << 20)))).status == 413
    reply = await receive_http(inbound(metrics_body(), wait=True))
    assert (reply.status, reply.headers) == (200, ((names.SEQUENCE_HEADER, "1"),))
    assert engine.store.applied_seq == 1
    reply = await receive_grpc(inbound(metrics_body(first=5)))
    assert reply.headers == ((names.SEQUENCE_METADATA, "2"),)
    assert engine.store.pid is not None
    os.kill(engine.store.pid, signal.SIGSTOP)
    while (
        reply := await receive_http(inbound(metrics_body(first=engine.ingest.durable_seq * 9)))
    ).status == 200:
        assert engine.ingest.durable_seq < 1000
    assert (reply.status, reply.retry_after_s) == (429, 2)
    os.kill(engine.store.pid, signal.SIGCONT)
    engine.ingest.draining = True
    reply = await receive_http(inbound(metrics_body(first=10**6)))
    assert (reply.status, reply.retry_after_s, reply.message) == (
        503,
        5,
        "Echo is stopping; send it again in 5 s",
    )
    assert sum(receiver.ack_counts) == engine.ingest.durable_seq
    http.count(200)
    grpc.count(413)
    assert receiver.replies == {("http", 200): 1, ("grpc", 413): 1}
