"""The elements of a Perfetto timeline: Trace Event JSON objects and native packets.

The encoders of slices take columns and have compiled twins.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingero.compiled import CODECS, compiled_or_pure
from ingero.contract.events import Source
from ingero.contract.timeline.varint import varint

Columns = NDArray[np.int64]

CATEGORY: Final = {
    int(Source.CUDA): "cuda",
    int(Source.HOST): "host",
    int(Source.DRIVER): "driver",
    int(Source.IO): "io",
    int(Source.TCP): "tcp",
    int(Source.NET): "net",
    int(Source.GRAPH): "graph",
    int(Source.NCCL): "nccl",
}
OTHER_CATEGORY: Final = "other"
CHAIN_CATEGORY: Final = "causal_chain"
SEVERITY_COLOUR: Final = {"CRITICAL": "terrible", "HIGH": "bad", "MEDIUM": "yellow", "LOW": "good"}

_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4
_SEQUENCE: Final = 1
_CLEARED, _NEEDS_STATE = 1, 2


def json_process(track: int, name: str) -> bytes:
    """Return the metadata element that names a process track."""
    element = {
        "name": "process_name",
        "ph": "M",
        "ts": 0,
        "pid": track,
        "args": {"name": _whole(name)},
    }
    return msgspec.json.encode(element)


def json_head(name: str, category: str) -> bytes:
    """Return the text with which all slices of one kind begin."""
    return msgspec.json.encode({"name": name, "cat": category})[:-1]


def json_chain(
    track: int,
    at_ns: int,
    severity: str,
    summary: str,
    root_cause: str,
    recommendations: Sequence[str],
) -> bytes:
    """Return a causal chain as a marker across all tracks, coloured by severity."""
    return msgspec.json.encode(
        {
            "name": _whole(f"{severity}: {summary}"),
            "cat": CHAIN_CATEGORY,
            "ph": "i",
            "ts": at_ns // 1000,
            "pid": track,
            "s": "g",
            "cname": SEVERITY_COLOUR.get(severity.upper(), "grey"),
            "args": {
                "severity": _whole(severity),
                "root_cause": _whole(root_cause),
                "recommendations": _whole("; ".join(recommendations)),
            },
        }
    )


def _whole(text: str) -> str:
    """Replace lone surrogates, which JSON in a database may contain and UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()


def json_slices_purely(
    ts_us: Columns,
    dur_us: Columns,
    head: Columns,
    pid: Columns,
    tid: Columns,
    gpu_id: Columns,
    ret_code: Columns,
    heads: list[bytes],
) -> bytes:
    """Return Trace Event objects joined by `,\\n`.

    Slices shorter than a microsecond become instants.
    """
    texts = [text.decode() for text in heads]
    lines = []
    columns = zip(
        *(c.tolist() for c in (ts_us, dur_us, head, pid, tid, gpu_id, ret_code)), strict=True
    )
    for ts, dur, kind, process, thread, gpu, ret in columns:
        shape = f',"ph":"X","ts":{ts},"dur":{dur}' if dur > 0 else f',"ph":"i","s":"t","ts":{ts}'
        args = ",".join(
            f'"{key}":{value}' for key, value in (("gpu_id", gpu), ("ret_code", ret)) if value
        )
        tail = f',"args":{{{args}}}}}' if args else "}"
        lines.append(f'{texts[kind]}{shape},"pid":{process},"tid":{thread}{tail}')
    return ",\n".join(lines).encode()


def packet_slices_purely(
    ts_ns: Columns, dur_ns: Columns, name_iid: Columns, category_iid: Columns, track: Columns
) -> bytes:
    """Return begin and end packets of every slice; one instant where the duration is zero."""
    out = bytearray()
    columns = zip(
        *(c.tolist() for c in (ts_ns, dur_ns, name_iid, category_iid, track)), strict=True
    )
    for ts, dur, name, category, uuid in columns:
        named = _field(3, category), _field(10, name)
        if dur > 0:
            out += event_packet(ts, uuid, _SLICE_BEGIN, *named)
            out += event_packet(ts + dur, uuid, _SLICE_END)
        else:
            out += event_packet(ts, uuid, _INSTANT, *named)
    return bytes(out)


def groups_purely(
    node: Columns, pid: Columns, tid: Columns, source: Columns, code: Columns
) -> list[int]:
    """Number the distinct (node, pid, tid, source) in order of appearance.

    Return the index at which each appears first.
    """
    _, first, inverse = np.unique(
        np.stack([node, pid, tid, source]), axis=1, return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    code[:] = np.argsort(order)[inverse.ravel()]
    return [int(index) for index in first[order]]


def overlaps_purely(
    code: Columns, ts_ns: Columns, dur_ns: Columns, ends_ns: Columns, overlaps: NDArray[np.uint8]
) -> None:
    """Mark groups in which a slice begins before an earlier one ended; update their `ends_ns`."""
    for group in range(len(ends_ns)):
        members = np.flatnonzero(code == group)
        reached = np.maximum.accumulate(
            np.concatenate([ends_ns[group : group + 1], (ts_ns + dur_ns)[members]])
        )
        overlaps[group] |= bool(np.any(ts_ns[members] < reached[:-1]))
        ends_ns[group] = reached[-1]


json_slices = compiled_or_pure(CODECS, "perfetto_json_slices", json_slices_purely)
packet_slices = compiled_or_pure(CODECS, "perfetto_packet_slices", packet_slices_purely)
groups = compiled_or_pure(CODECS, "perfetto_groups", groups_purely)
overlaps = compiled_or_pure(CODECS, "perfetto_overlaps", overlaps_purely)


def event_packet(
    ts_ns: int, track: int, kind: int, category: bytes = b"", name: bytes = b"", extra: bytes = b""
) -> bytes:
    """Return one TrackEvent.

    `category`, `name` and `extra` are encoded fields, in the order of their numbers.
    """
    event = category + _field(9, kind) + name + _field(11, track) + extra
    body = _field(8, ts_ns) + _field(10, _SEQUENCE) + _message(11, event) + _field(13, _NEEDS_STATE)
    return _message(1, body)


def instant_packet(
    ts_ns: int,
    track: int,
    name: str,
    flows: Iterable[int],
    notes: dict[str, str],
) -> bytes:
    """Return a marker with its name, the arrows through it, and notes shown when it is selected."""
    annotations = b"".join(
        _message(4, _text(10, key) + _text(6, value)) for key, value in notes.items()
    )
    event = (
        annotations + _field(9, _INSTANT) + _field(11, track) + _text(23, name) + _flow_ids(flows)
    )
    return _message(
        1, _field(8, ts_ns) + _field(10, _SEQUENCE) + _message(11, event) + _field(13, _NEEDS_STATE)
    )


def flow_slice_packets(
    ts_ns: int, dur_ns: int, track: int, name_iid: int, category_iid: int, flows: Iterable[int]
) -> bytes:
    """Return a slice through which arrows run."""
    kind = _SLICE_BEGIN if dur_ns > 0 else _INSTANT
    begin = event_packet(
        ts_ns, track, kind, _field(3, category_iid), _field(10, name_iid), _flow_ids(flows)
    )
    return begin + (event_packet(ts_ns + dur_ns, track, _SLICE_END) if dur_ns > 0 else b"")


def counter_packet(ts_ns: int, track: int, value: float) -> bytes:
    """Return one value of a counter track."""
    # field 44, double
    return event_packet(ts_ns, track, _COUNTER, extra=b"\xe1\x02" + np.float64(value).tobytes())


def interned_packet(names: dict[str, int], categories: dict[str, int], *, first: bool) -> bytes:
    """Return the packet that assigns numbers to names for all packets that follow."""
    data = b"".join(
        _message(1, _field(1, iid) + _text(2, name)) for name, iid in categories.items()
    )
    data += b"".join(_message(2, _field(1, iid) + _text(2, name)) for name, iid in names.items())
    flags = _CLEARED | _NEEDS_STATE if first else _NEEDS_STATE
    return _message(1, _field(10, _SEQUENCE) + _message(12, data) + _field(13, flags))


def process_track(uuid: int, name: str, pid: int) -> bytes:
    """Return a process track.

    `pid` must be unique in the trace; real pids are not unique across nodes.
    """
    return _track(uuid, None, _message(3, _field(1, pid) + _text(6, name)))


def named_track(uuid: int, parent: int | None, name: str) -> bytes:
    """Return a track that groups other tracks or holds slices."""
    return _track(uuid, parent, _text(2, name))


def counter_track(uuid: int, parent: int, name: str, unit: str) -> bytes:
    """Return a track of values over time."""
    return _track(uuid, parent, _text(2, name) + _message(8, _text(6, unit)))


def _track(uuid: int, parent: int | None, content: bytes) -> bytes:
    descriptor = _field(1, uuid) + (b"" if parent is None else _field(5, parent)) + content
    return _message(1, _field(10, _SEQUENCE) + _message(60, descriptor))


def _flow_ids(flows: Iterable[int]) -> bytes:
    return b"".join(_tag(47, 1) + int(flow).to_bytes(8, "little") for flow in flows)


def _tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def _field(number: int, value: int) -> bytes:
    return _tag(number, 0) + varint(value)


def _message(number: int, content: bytes) -> bytes:
    return _tag(number, 2) + varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode(errors="replace"))


def as_columns(values: Any) -> Columns:
    """Return integers in the form that the encoders take."""
    return np.ascontiguousarray(values, dtype=np.int64)
