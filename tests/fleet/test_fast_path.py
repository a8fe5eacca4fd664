"""The compiled fast path against `Receiver.answer`: the same replies and state, or no change."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.compiled import needs_fast_path
from tests.support.pushes import as_json, protobuf, running

from ingero.contract import names
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.segment import decode_segment_purely
from ingero.core.health.threshold import ThresholdPolicy
from ingero.errors import MalformedPush
from ingero.fleet import receive
from ingero.fleet.kept import KeptBodiesPurely
from ingero.fleet.processor import FleetProcessor, Taken
from ingero.fleet.receive import Receiver
from ingero.fleet.roster import REORDER_NS
from ingero.fleet.series import ReceivedSeries
from ingero.transport.access import Access
from ingero.transport.bearer import Key, token_digest
from ingero.transport.otlp.server_http import Inbound

SECOND = 10**9
UNLIMITED = Key("k", b"")
MAX_BODY_BYTES = 4096


@dataclass(frozen=True)
class Step:
    """One push, sent after a tick where `ticks` is true."""

    node: str = "n0"
    score: float = 0.9
    state: str = "active"
    cluster: str | None = "train"
    sent_ns: int = 100 * SECOND
    is_json: bool = False
    query: bytes = b""
    headers: tuple[bytes, ...] = ()
    ticks: bool = False
    draining: bool = False

    def body(self) -> bytes:
        return (as_json if self.is_json else protobuf)(
            self.node, self.score, state=self.state, cluster=self.cluster, sent_ns=self.sent_ns
        )

    def segment(self) -> bytes:
        kind = names.JSON_TYPE if self.is_json else names.PROTOBUF_TYPE
        body = self.body()
        lines = [b"POST /v1/metrics" + self.query + b" HTTP/1.1", *self.headers]
        lines += [f"Content-Type: {kind}".encode(), b"Content-Length: %d" % len(body)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body


steps = st.builds(
    Step,
    node=st.sampled_from(["n0", "n1", "n2", "", "n\x7f"]),
    score=st.sampled_from([0.9, 0.2, 0.0, 1.0, 7.0]),
    state=st.sampled_from(["active", "calibrating", "idle", "odd"]),
    cluster=st.sampled_from(["train", "other", None]),
    sent_ns=st.sampled_from(
        [
            0,
            100 * SECOND,
            101 * SECOND,
            200 * SECOND,
            2**64 - 1,
            100 * SECOND - REORDER_NS,
            101 * SECOND - REORDER_NS,
        ]
    ),
    is_json=st.booleans(),
    query=st.sampled_from(
        [b"", b"?cluster_id=train", b"?cluster_id=other&node_id=n0", b"?node_id=n0", b"?"]
    ),
    headers=st.sampled_from(
        [
            (),
            (),
            (b"Authorization: Bearer t",),
            (b"ingero.cluster.id: other",),
            (b"ingero.cluster.id:",),
            (b"Expect: x",),
        ]
    ),
    ticks=st.booleans(),
    draining=st.sampled_from([False, False, False, True]),
)


class Copies:
    """A sink that keeps every push, as exporters that forward do."""

    def __init__(self) -> None:
        self.taken: list[tuple[Any, ...]] = []

    def offer(self, kind: Any, body: bytes, encoding: Any, taken: Taken) -> None:
        self.taken.append((kind, body, encoding, taken))


class Service:
    """A receiver with or without the fast path, at times that the test sets."""

    def __init__(self, has_fast_path: bool, token: str | None = None, max_nodes: int = 2) -> None:
        self.series, self.copies = ReceivedSeries("prometheus", 60.0, 1000), Copies()
        if not has_fast_path:
            self.series.kept = KeptBodiesPurely(1 << 20, 1 << 20, 100)
        self.receiver = Receiver(FleetProcessor(ThresholdPolicy(), max_nodes=max_nodes))
        self.receiver.sinks = {MetricsRequest: (self.series, self.copies)}
        of_job = '[{"job":"j"}]'
        self.receiver.answers.verdict_texts = {
            ("train", "n0"): of_job, ("other", "n0"): of_job, ("train", "n1"): '[{"node":"n1"}]'
        }  # fmt: skip
        self.receiver.answers.ask_texts = {("train", "n1"): '[{"episode":"e"}]'}
        self.receiver.http_token = Access([Key("k", token_digest(token))] if token else None)
        self.fast_path = (
            self.receiver.fast_path(MAX_BODY_BYTES) if has_fast_path else receive.no_fast_path
        )
        self.on_fast_path = 0
        compiled = receive.PushFastPath
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(receive, "PushFastPath", compiled if has_fast_path else None)
            self.receive_call = self.receiver.grpc_service(Access(None)).receive

    def push(self, step: Step, now_s: float) -> bytes | None:
        wall_ns = int(now_s * SECOND)
        self.prepare(step, now_s)
        with clocks_at(now_s):
            reply = self.fast_path(step.segment(), now_s, wall_ns)
            if reply is not None:
                self.on_fast_path += 1
                return reply
            request = decode_segment_purely(step.segment())
            return None if request is None else self.receiver.answer(request, b"")

    def call(self, step: Step, now_s: float, sender: Key, named: str | None) -> Any:
        """Hand over an admitted call as the gRPC listener does, and return the reply or error."""
        inbound = Inbound(MetricsRequest, step.body(), Encoding.PROTOBUF, named, sender)
        self.prepare(step, now_s)
        with clocks_at(now_s):
            try:
                return self.receive_call(inbound)
            except MalformedPush as error:
                return str(error)

    def prepare(self, step: Step, now_s: float) -> None:
        if step.ticks:
            self.receiver.second_passed()
            self.receiver.processor.tick(now_s)
        self.receiver.refuses = "shutting down" if step.draining else ""

    def state(self) -> Any:
        processor = self.receiver.processor
        clusters = {
            name: (
                cluster.served,
                [cluster.roster.row(node, 500.0) for node in cluster.roster.rows],
            )
            for name, cluster in processor.clusters.items()
        }
        kept = {
            key: (each.at_s, each.body, each.encoding)
            for key, each in self.series.kept.bodies.items()
        }
        return (
            clusters,
            processor.counters,
            self.receiver.reply_counts(),
            kept,
            self.series.kept.size_bytes,
            self.copies.taken,
        )


@contextmanager
def clocks_at(now_s: float) -> Iterator[None]:
    clock = SimpleNamespace(monotonic=lambda: now_s, time_ns=lambda: int(now_s * SECOND))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingero.fleet.receive.time", clock)
        patch.setattr("ingero.fleet.series.time", clock)
        yield


@needs_fast_path
@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=12), st.sampled_from([None, None, "t"]))
def test_fast_path_and_receiver_agree(pushes: list[Step], token: str | None) -> None:
    ours, oracle = Service(True, token), Service(False, token)
    known = [
        Step(),
        Step(node="n2", score=0.8, sent_ns=0),
        Step(is_json=True),
        Step(cluster="other"),
    ]
    for number, step in enumerate([*known, *pushes]):
        now_s = 100.0 + number / 4
        assert ours.push(step, now_s) == oracle.push(step, now_s)
    assert ours.state() == oracle.state()


@needs_fast_path
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(steps, st.sampled_from([None, None, "", "train", "other", "new"])), max_size=12
    ),
    st.sampled_from([UNLIMITED, UNLIMITED, Key("k", b"", frozenset({"train"}))]),
)
def test_calls_that_one_step_stores_and_all_others_agree(
    calls: list[tuple[Step, str | None]], sender: Key
) -> None:
    ours, oracle = Service(True), Service(False)
    known = [(step, None) for step in (Step(), Step(node="n2"), Step(), Step(cluster="other"))]
    for number, (step, named) in enumerate([*known, *calls]):
        now_s = 100.0 + number / 4
        assert ours.call(step, now_s, sender, named) == oracle.call(step, now_s, sender, named)
    assert ours.state() == oracle.state()


@needs_fast_path
@pytest.mark.parametrize(
    ("sender", "known"), [(UNLIMITED, 5), (Key("k", b"", node="n0"), 0)], ids=["any", "one node"]
)
def test_calls_of_registered_nodes_are_stored_in_one_step(
    monkeypatch: pytest.MonkeyPatch, sender: Key, known: int
) -> None:
    """A token of one node is compared with every node that a body names."""
    service, slow = Service(True), []
    push = service.receiver.processor.push
    monkeypatch.setattr(
        service.receiver.processor, "push", lambda *given: slow.append(given) or push(*given)
    )
    for number in range(6):
        step = Step(sent_ns=(100 + number) * SECOND)
        reply = service.call(step, 100.0 + number, sender, None)
        assert dict(reply.headers)["ingero-threshold"]
    assert len(slow) == 6 - known
    assert service.receiver.processor.clusters["train"].roster.row("n0", 105.0).pushes == 6


@needs_fast_path
def test_pushes_of_registered_nodes_take_the_fast_path() -> None:
    """Otherwise the property above would compare the receiver with itself."""
    service = Service(True)
    for number in range(6):
        service.push(Step(sent_ns=(100 + number) * SECOND, is_json=number % 2 == 1), 100.0 + number)
    assert service.on_fast_path == 4
    service.push(Step(ticks=True, score=0.4, sent_ns=150 * SECOND), 150.0)
    service.push(Step(score=0.5, sent_ns=151 * SECOND), 151.0)
    assert service.on_fast_path == 5, "the first push after a tick renders the reply anew"
    assert service.receiver.processor.clusters["train"].roster.row("n0", 151.0).score == 0.5


@needs_fast_path
def test_nodes_with_the_verdict_of_their_job_take_the_fast_path_unless_they_are_asked() -> None:
    service = Service(True, max_nodes=9)
    texts = {("train", f"n{number}"): '[{"job":"j"}]' for number in range(4)}
    service.receiver.answers.verdict_texts = texts
    for second in range(3):
        for number in range(4):
            step = Step(node=f"n{number}", sent_ns=(100 + second) * SECOND)
            reply = service.push(step, 100.0 + second) or b""
            assert b'X-Ingero-Verdict: [{"job":"j"}]\r\n' in reply
            assert (b"X-Ingero-Ask" in reply) == (number == 1)
    assert service.on_fast_path == 6, "all pushes but the first of a node, and those of n1"


@needs_fast_path
def test_fast_path_follows_a_roster_that_grows() -> None:
    service = Service(True, max_nodes=1000)
    for number in range(300):
        for sent_s in (100, 101):
            service.push(
                Step(node=f"node-{number}", score=number / 300, sent_ns=sent_s * SECOND), 100.0
            )
    roster = service.receiver.processor.clusters["train"].roster
    assert service.on_fast_path >= 290
    assert np.allclose(
        [roster.row(f"node-{number}", 100.0).score or 0.0 for number in range(300)],
        np.arange(300) / 300,
    )
    assert {roster.row(node, 100.0).pushes for node in roster.rows} == {2}


@needs_fast_path
def test_forgotten_nodes_are_admitted_again() -> None:
    service = Service(True)
    for _ in range(3):
        service.push(Step(), 100.0)
    service.push(Step(ticks=True), 10_000.0)
    assert service.receiver.processor.counters.forgotten == 1
    assert service.receiver.processor.clusters["train"].roster.row("n0", 10_000.0).pushes == 1


async def test_one_connection_mixes_fast_path_receiver_and_other_requests() -> None:
    async with running() as fleet:
        host, port = fleet.addresses["http"].rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))

        async def ask(*pieces: bytes) -> int:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if b"content-length" in line
            )
            await reader.readexactly(length)
            return int(head.split(b" ")[1])

        push = [Step(node="a", sent_ns=number).segment() for number in range(1, 9)]
        other = b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"
        found = [await ask(push[0]), await ask(push[1]), await ask(push[2]), await ask(other)]
        found += [
            await ask(push[3]),
            await ask(push[4]),
            await ask(push[5][:30], push[5][30:]),
            await ask(push[6]),
        ]
        assert found == [200, 200, 200, 404, 200, 200, 200, 200]
        writer.write(push[7] + other + push[7])
        assert [await ask(), await ask(), await ask()] == [200, 404, 200]
        writer.close()
        row = fleet.processor.clusters["train"].roster.row("a", 0.0)
        assert (row.pushes, row.report.sent_ns) == (9, 8)
        assert fleet.processor.counters.pushes == 9
        assert fleet.receiver.reply_counts() == {("http", 200): 9}
