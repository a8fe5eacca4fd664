"""Lines of the remediation socket: their exact shape, which consumers rely on."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.shared_data import shared

from ingero.contract.straggler import (
    Heartbeat,
    Memory,
    SocketLine,
    Straggle,
    StragglerResolved,
    StragglerState,
    decode_envelope,
    decode_line,
    encode_line,
    verdict_line,
)
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.errors import MalformedInput

text = st.text(max_size=20)
score = st.floats(0, 1)
ids = {"node_id": text, "cluster_id": text, "timestamp": text, "event_id": text}
ranks = {"rank": st.none() | st.integers(0, 9), "world_size": st.none() | st.integers(1, 9)}
lines = st.one_of(
    st.builds(Memory, pid=st.integers(0, 2**32 - 1), utilization_pct=score, comm=text),
    st.builds(
        Straggle, preempting_pids=st.lists(st.integers(0, 9)), throughput_drop_pct=score, **ranks
    ),
    st.builds(StragglerState, score=score, threshold=score, **ids, **ranks),
    st.builds(StragglerResolved, reason=text, **ids, **ranks),
    st.builds(Heartbeat, score=st.none() | score),
)


@given(lines)
def test_round_trip(line: SocketLine) -> None:
    encoded = encode_line(line)
    assert encoded.endswith(b"\n")
    assert encoded.count(b"\n") == 1
    assert encoded.startswith(b'{"type":')
    assert decode_line(encoded) == line


def test_recorded_lines_have_our_shape_key_by_key() -> None:
    recorded = shared("data/ingero-wire/socket.ndjson").read_bytes().splitlines()
    assert [encode_line(decode_line(line)).rstrip() for line in recorded] == recorded


@pytest.mark.parametrize(
    ("cls", "required"),
    [
        (
            Memory,
            "pid gpu_id allocated_bytes total_vram utilization_pct last_alloc_size timestamp_ns",
        ),
        (
            Straggle,
            "pid throughput_drop_pct sched_switch_count preempting_pids timestamp_ns sustained",
        ),
        (
            StragglerState,
            "node_id cluster_id score threshold detection_mode dominant_signal timestamp",
        ),
        (StragglerResolved, "node_id cluster_id timestamp"),
    ],
)
def test_required_fields_do_not_drift(cls: type[msgspec.Struct], required: str) -> None:
    fields = msgspec.structs.fields(cls)
    assert [field.name for field in fields if field.required] == required.split()


def test_rank_zero_is_visible() -> None:
    line = StragglerState(
        node_id="n", cluster_id="c", score=0.5, threshold=0.8, detection_mode="fleet",
        dominant_signal="cpu",
        timestamp="t", rank=0, world_size=8,
    )  # fmt: skip
    assert json.loads(encode_line(line))["rank"] == 0


def test_a_verdict_is_one_flat_line() -> None:
    verdict = Verdict(
        episode="e1",
        state=VerdictState.STRAGGLER,
        node="n1",
        rank=3,
        cause_class=CauseClass.COMPUTE,
        since=5.0,
        excess=0.2,
    )
    line = encode_line(verdict_line(verdict, "train-a", 1_794_709_942_103_534_806))
    assert json.loads(line) == {
        "type": "verdict", "episode": "e1", "state": "straggler", "node": "n1", "rank": 3,
        "class": "compute",
        "excess": 0.2, "since": 5.0, "cluster_id": "train-a",
        "timestamp": "2026-11-15T02:32:22.103534806Z",
    }  # fmt: skip
    assert decode_line(line) == verdict_line(verdict, "train-a", 1_794_709_942_103_534_806)


def test_unknown_types_have_an_envelope_and_unknown_fields_are_ignored() -> None:
    line = b'{"type":"from_the_future","node_id":"n","x":[1,{"y":2}]}'
    assert decode_envelope(line).type == "from_the_future"
    with pytest.raises(MalformedInput):
        decode_line(line)


@pytest.mark.parametrize(
    "line", [b"not-json", b'{"type":""}', b"{}", b"[]", b"\xff", b'{"type":3}', b"[" * 100_000, b""]
)
def test_malformed_lines_are_refused(line: bytes) -> None:
    with pytest.raises(MalformedInput):
        decode_envelope(line)
    with pytest.raises(MalformedInput):
        decode_line(line)
