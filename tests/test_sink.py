"""The straggler sink: published counts, limits, expiry, readiness, and a real socket."""

import asyncio
import time
from pathlib import Path

import pytest
from tests.support.shared_data import shared
from tests.support.waiting import PATIENCE_S, until_async

from ingero.contract.exposition import render
from ingero.contract.straggler import MAX_LINE_BYTES
from ingero.sink import MAX_TYPES, Sink, SinkSettings, follow_socket, sink_app
from ingero.transport.uds import LineServer


def sink(**settings: object) -> Sink:
    return Sink(SinkSettings(**({"socket_path": Path("unused")} | settings)))  # type: ignore[arg-type] # a test's own dictionary


def state(node: str, kind: str = "straggler_state") -> bytes:
    return b'{"type":"%b","node_id":"%b","cluster_id":"c"}\n' % (kind.encode(), node.encode())


def text(one: Sink, now_s: float = 0.0) -> str:
    return render(one.families(now_s, 0.0)).decode()


def test_published_lines_vector_84_f012() -> None:
    one = sink()
    one.take(
        b'{"type":"memory","pid":1}\n{"type":"memory"}\n{"type":"straggle"}\nnot-json\n'
        b'{"type":""}\n\n   \n',
        1.0,
    )
    assert (one.events["memory"], one.events["straggle"], one.parse_errors) == (2, 1, 2)
    one.take(state("n"), 2.0)
    assert one.events["straggler_state"] == 1  # the stream goes on


def test_twenty_three_states_and_one_resolved_f011() -> None:
    one = sink()
    for second in range(23):
        one.take(state("n1"), float(second))
    assert one.stragglers(22.0) == [("c", "n1")]
    one.take(state("n1", "straggler_resolved"), 23.0)
    assert one.stragglers(23.0) == []
    found = text(one)
    assert 'ingero_sink_events_total{type="straggler_state"} 23' in found
    assert 'ingero_sink_events_total{type="straggler_resolved"} 1' in found
    assert "ingero_sink_parse_errors_total 0" in found
    assert "ingero_sink_active_stragglers" not in found


def test_recorded_socket_is_read() -> None:
    one = sink()
    one.take(shared("data/ingero-wire/socket.ndjson").read_bytes() + b"\n", 0.0)
    assert (dict(one.events), one.parse_errors) == (
        {"straggler_state": 5, "straggler_resolved": 1},
        0,
    )


def test_lines_may_arrive_in_pieces() -> None:
    one = sink()
    for byte in state("n1") + state("n2"):
        one.take(bytes([byte]), 0.0)
    assert one.stragglers(0.0) == [("c", "n1"), ("c", "n2")]


def test_tracked_nodes_are_bounded_vector_85() -> None:
    one = sink(max_tracked_nodes=3)
    for node in ("n0", "n1", "n2", "n99"):
        one.take(state(node), 0.0)
    assert one.stragglers(0.0) == [("c", "n1"), ("c", "n2"), ("c", "n99")]
    assert one.dropped["cap_reached"] == 1
    two = sink(max_tracked_nodes=2)
    for node in ("n0", "n1", "n1", "n1"):
        two.take(state(node), 0.0)
    assert two.dropped["cap_reached"] == 0


@pytest.mark.parametrize(
    ("connected", "silence_s", "ready"),
    [(True, None, True), (False, 90.0, False), (False, 10.0, True), (False, None, False)],
)
def test_readiness_vector_86(connected: bool, silence_s: float | None, ready: bool) -> None:
    one = sink(readiness_window_s=60.0)
    one.is_connected = connected
    if silence_s is not None:
        one.take(state("n"), 100.0 - silence_s)
    assert one.is_ready(100.0) is ready


def test_bug_a_silent_straggler_is_forgotten() -> None:
    """A lost `resolved`, or an agent that ended, left the series of the reference at 1 for ever."""
    one = sink(silence_s=30.0)
    one.take(state("dead"), 0.0)
    one.take(state("alive"), 25.0)
    assert one.stragglers(31.0) == [("c", "alive")]
    assert one.dropped["silent"] == 1


def test_bug_an_over_long_line_is_counted_and_reading_continues() -> None:
    one = sink()
    one.take(b"x" * (3 * MAX_LINE_BYTES), 0.0)
    one.take(b"x" * MAX_LINE_BYTES + b"\n" + state("n"), 0.0)
    one.take(b"y" * (MAX_LINE_BYTES + 1) + b"\n" + state("m"), 0.0)
    assert (one.dropped["line_too_long"], one.parse_errors, one.events["straggler_state"]) == (
        2,
        0,
        2,
    )


def test_bug_type_labels_are_bounded() -> None:
    one = sink()
    for number in range(1000):
        one.take(b'{"type":"t%d"}\n' % number, 0.0)
    assert len(one.events) <= MAX_TYPES + 1
    assert sum(one.events.values()) == 1000


def test_labels_are_escaped_and_output_is_stable() -> None:
    one = sink()
    one.take(
        b'{"type":"straggler_state","node_id":"a\\"b\\\\c\\nd","cluster_id":"c"}\n' + state("a"),
        0.0,
    )
    assert 'node_id="a\\"b\\\\c\\nd"' in text(one)
    assert text(one) == text(one)


async def test_sink_reads_a_real_socket_and_reconnects(tmp_path: Path) -> None:
    path = tmp_path / "run" / "s.sock"
    one = sink(socket_path=path, reconnect_delay_s=0.02)
    stop = asyncio.Event()
    following = asyncio.create_task(follow_socket(one, stop))
    for _ in range(2):
        server = LineServer(path, snapshot=lambda: [state("n1")])
        await server.start()
        async with asyncio.timeout(PATIENCE_S):
            while not (one.is_connected and one.stragglers(time.monotonic())):
                await asyncio.sleep(0.005)
            server.send(state("n1", "straggler_resolved"))
            while one.stragglers(time.monotonic()):
                await asyncio.sleep(0.005)
            await server.close()
            while one.is_connected:
                await asyncio.sleep(0.005)
    stop.set()
    await asyncio.wait_for(following, PATIENCE_S)
    assert dict(one.events) == {"straggler_state": 2, "straggler_resolved": 2}


async def test_sink_logs_once_that_the_socket_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, stop = sink(socket_path=tmp_path / "s.sock", reconnect_delay_s=0.001), asyncio.Event()
    following = asyncio.create_task(follow_socket(one, stop))
    await until_async(lambda: caplog.records)
    await asyncio.sleep(0.05)  # many more tries, and not a word about them
    stop.set()
    await asyncio.wait_for(following, PATIENCE_S)
    assert [record.getMessage() for record in caplog.records] == ["sink_waiting"]


def test_sink_serves_health_and_readiness() -> None:
    from starlette.testclient import TestClient

    with TestClient(sink_app(sink())) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503
        assert (
            client.get("/metrics").headers["content-type"]
            == "text/plain; version=0.0.4; charset=utf-8"
        )
