"""Encoders of timelines: compiled and pure ones agree, and the official schema reads packets."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

from ingero.contract.events import Source, op_name
from ingero.contract.timeline import json_writer, perfetto
from ingero.contract.timeline.json_writer import JsonTimeline
from ingero.contract.timeline.model import (
    SliceChunk,
    TimelineChain,
    TimelineCounter,
    TimelineNode,
    TimelineProcess,
    TimelineWriter,
)
from ingero.contract.timeline.packet_writer import PacketTimeline

NODES = [TimelineNode("gpu-node-01", 0), TimelineNode("")]


def chunk(rows: list[tuple[int, ...]]) -> SliceChunk:
    """Rows of (ts_ns, dur_ns, source, op, pid, tid, gpu, ret, node)."""
    columns = (
        list(zip(*((*row, i) for i, row in enumerate(rows)), strict=True)) if rows else [()] * 10
    )
    return SliceChunk(*(np.array(column, np.int64) for column in columns))


def events() -> st.SearchStrategy[list[tuple[int, ...]]]:
    instant = st.integers(2**40, 2**62)
    small = st.integers(0, 5)
    row = st.tuples(
        instant,
        st.integers(0, 2**40),
        st.integers(1, 9),
        st.integers(0, 13),
        small,
        small,
        small,
        st.integers(-5, 999),
        st.integers(0, 1),
    )
    return st.lists(row, max_size=30).map(sorted)


def began(row: tuple[int, ...]) -> int:
    """Return when an event began: the stored time is the end of host events, else the beginning."""
    return row[0] - row[1] if row[2] in (Source.HOST, Source.IO, Source.TCP, Source.NET) else row[0]


def whole(writer: TimelineWriter, chunks: list[SliceChunk]) -> bytes:
    return writer.begin() + b"".join(writer.slices(part) for part in chunks) + writer.end()


@given(events())
@settings(max_examples=60)
def test_compiled_and_pure_text_are_equal_and_json(rows: list[tuple[int, ...]]) -> None:
    compiled = whole(JsonTimeline(NODES), [chunk(rows)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_writer, "json_slices", perfetto.json_slices_purely)
        assert whole(JsonTimeline(NODES), [chunk(rows)]) == compiled
    assert len(json.loads(compiled)) == len(NODES) + len(rows)


@given(events())
@settings(max_examples=60)
def test_compiled_and_pure_packets_are_equal(rows: list[tuple[int, ...]]) -> None:
    part = chunk(rows)
    arguments = [
        perfetto.as_columns(column)
        for column in (part.ts_ns, part.dur_ns, part.op + 1, part.source, part.tid + 7)
    ]
    assert perfetto.packet_slices(*arguments) == perfetto.packet_slices_purely(*arguments)


@given(events(), st.integers(1, 5))
@settings(max_examples=60)
def test_official_schema_reads_back_every_slice(rows: list[tuple[int, ...]], pieces: int) -> None:
    """Names, times and tracks survive, and no slices overlap on a track, whatever the chunks."""
    size = max(1, len(rows) // pieces)
    chunks = [chunk(rows[i : i + size]) for i in range(0, len(rows), size)]
    trace = schema.Trace.FromString(whole(PacketTimeline(NODES), chunks))
    names = {e.iid: e.name for p in trace.packet for e in p.interned_data.event_names}
    open_since: dict[int, Any] = {}
    found = []
    for packet in trace.packet:
        event = packet.track_event
        if event.type == schema.TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in open_since
            open_since[event.track_uuid] = (packet.timestamp, names[event.name_iid])
        elif event.type == schema.TrackEvent.TYPE_SLICE_END:
            begin, name = open_since.pop(event.track_uuid)
            found.append((begin, packet.timestamp - begin, name))
        elif event.type == schema.TrackEvent.TYPE_INSTANT:
            found.append((packet.timestamp, 0, names[event.name_iid]))
    assert sorted(found) == sorted((began(row), row[1], op_name(row[2], row[3])) for row in rows)
    described = {p.track_descriptor.uuid for p in trace.packet if p.HasField("track_descriptor")}
    assert {
        p.track_event.track_uuid for p in trace.packet if p.HasField("track_event")
    } <= described


def test_v16_duration_and_instant() -> None:
    rows = [
        (1775218723111028000, 460_000, 5, 1, 1887, 1887, 0, 0, 0),
        (1775218723111030000, 900, 5, 1, 1887, 1887, 1, 7, 1),
    ]
    first, second = json.loads(whole(JsonTimeline(NODES), [chunk(rows)]))[2:]
    assert first == {
        "name": "block_read", "cat": "io", "ph": "X", "ts": 1775218723111028, "dur": 460,
        "pid": 1, "tid": 1887,
    }  # fmt: skip
    assert second == {
        "name": "block_read", "cat": "io", "ph": "i", "s": "t", "ts": 1775218723111030,
        "pid": 2, "tid": 1887, "args": {"gpu_id": 1, "ret_code": 7},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("severity", "colour"),
    [("CRITICAL", "terrible"), ("HIGH", "bad"), ("MEDIUM", "yellow"), ("LOW", "good")],
)
def test_v16b_f147_chains_are_coloured_markers_and_tracks_are_named(
    severity: str, colour: str
) -> None:
    writer = JsonTimeline(NODES)
    chain = TimelineChain(
        node=0,
        at_ns=5000,
        severity=severity,
        summary='a "b"',
        root_cause="c",
        recommendations=["d", "e"],
    )
    elements = json.loads(writer.begin() + writer.chains([chain]) + writer.end())
    assert [element["args"]["name"] for element in elements[:2]] == [
        "gpu-node-01 (rank 0)",
        "local",
    ]
    assert elements[2] == {
        "name": f'{severity}: a "b"', "cat": "causal_chain", "ph": "i", "ts": 5,
        "pid": 1, "s": "g", "cname": colour,
        "args": {"severity": severity, "root_cause": "c", "recommendations": "d; e"},
    }  # fmt: skip


def test_arrows_run_from_cause_through_symptom_to_the_chain() -> None:
    writer = PacketTimeline(NODES)
    chain = TimelineChain(
        node=0, at_ns=900, severity="HIGH", summary="s", root_cause="r", rows=[0, 1]
    )
    writer.expect_chains([chain])
    rows = [
        (10, 50, 3, 1, 7, 7, 0, 0, 0),
        (100, 200, 4, 1, 7, 7, 0, 0, 0),
        (400, 5, 4, 1, 7, 7, 0, 0, 0),
    ]
    trace = schema.Trace.FromString(
        writer.begin() + writer.slices(chunk(rows)) + writer.chains([chain])
    )
    flows = [sorted(p.track_event.flow_ids) for p in trace.packet if p.track_event.flow_ids]
    assert len(flows) == 3
    assert flows[2] == sorted(flows[0] + flows[1])


def test_counters_carry_unit_and_values() -> None:
    writer = PacketTimeline(NODES)
    counter = TimelineCounter(0, "CPU busy", "%", np.array([1, 2], np.int64), [0.5, 99.0])
    trace = schema.Trace.FromString(writer.begin() + writer.counters([counter]))
    assert [
        p.track_event.double_counter_value for p in trace.packet if p.HasField("track_event")
    ] == [0.5, 99.0]
    assert trace.packet[-3].track_descriptor.counter.unit_name == "%"


@pytest.mark.parametrize(
    ("ranks", "label"),
    [((), "a (rank 9)"), ((None, None), "a (rank 9)"), ((None, 3), "a (rank 3)"), ((2, 3), "a")],
)
def test_a_node_shows_the_one_rank_of_its_processes(
    ranks: tuple[int | None, ...], label: str
) -> None:
    processes = {(0, pid): TimelineProcess(pid, "python3", rank) for pid, rank in enumerate(ranks)}
    writer = PacketTimeline(
        [TimelineNode("a", 9)], processes | {(1, 7): TimelineProcess(7, rank=5)}
    )
    trace = schema.Trace.FromString(
        writer.begin() + writer.slices(chunk([(5, 1, 1, 1, 1, 1, 0, 0, 0)]))
    )
    tracks = [p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")]
    assert tracks[0].process.process_name == label
    known = {(): "process 1", (None, None): "python3 1"}.get(ranks, "python3 1 (rank 3)")
    assert [track.name for track in tracks[1:]] == [known, "thread 1 cuda"]
