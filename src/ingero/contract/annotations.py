"""Annotations: what a job reports about itself, one JSON object per line on a Unix socket.

`{"labels": {"step": "120"}, "pid": 4711}` marks a point in time; `span_start` and `span_end` mark
an interval. Times are Unix nanoseconds. `start_time` is when the process started, in clock ticks
since boot; it distinguishes the process from a later one with the same pid.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ingero.errors import MalformedInput

PROTOCOL: Final = 1
SOCKET_NAME: Final = "annotate.sock"
MAX_LINE_BYTES: Final = 16 * 1024
MAX_LABELS: Final = 32
MAX_KEY_BYTES: Final = 64
MAX_VALUE_BYTES: Final = 256
MAX_LINES_PER_S: Final = 1000  # per connection
_KEY: Final = re.compile(r"[A-Za-z0-9_.-]+")
_LAST_NS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """One annotation.

    Zero has a meaning: the time of arrival for `at_ns`, the whole node for `pid`, and a point in
    time instead of an interval for the ends of the span.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    at_ns: int = 0
    pid: int = 0
    start_time: int = 0
    span_start_ns: int = 0
    span_end_ns: int = 0


class _Line(msgspec.Struct, omit_defaults=True):
    labels: dict[str, str | int | float | bool]
    ts: int = 0
    pid: int = 0
    start_time: int = 0
    span_start: int = 0
    span_end: int = 0
    v: int = PROTOCOL


_DECODER: Final = msgspec.json.Decoder(_Line)


def decode_annotation(line: bytes) -> Annotation:
    """Read and check a line; the MalformedInput it raises names what is wrong."""
    if len(line) > MAX_LINE_BYTES:
        raise MalformedInput(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        found = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedInput(f"not an annotation: {error}") from None
    if found.v != PROTOCOL:
        raise MalformedInput(f"annotation protocol {found.v} is not supported; use {PROTOCOL}")
    labels = {key: _text(value) for key, value in found.labels.items()}
    note = Annotation(
        labels=labels,
        at_ns=found.ts,
        pid=found.pid,
        start_time=found.start_time,
        span_start_ns=found.span_start,
        span_end_ns=found.span_end,
    )
    check_annotation(note)
    return note


def encode_annotation(note: Annotation) -> bytes:
    """Check an annotation and return its line with the newline."""
    check_annotation(note)
    line = _Line(
        dict(note.labels),
        note.at_ns,
        note.pid,
        note.start_time,
        note.span_start_ns,
        note.span_end_ns,
    )
    encoded = msgspec.json.encode(line) + b"\n"
    if len(encoded) > MAX_LINE_BYTES:
        raise MalformedInput(f"the annotation is longer than {MAX_LINE_BYTES} bytes")
    return encoded


def check_annotation(note: Annotation) -> None:
    """Check every limit that does not depend on the machine; raises MalformedInput."""
    if not 1 <= len(note.labels) <= MAX_LABELS:
        raise MalformedInput(f"{len(note.labels)} labels; 1 to {MAX_LABELS} are allowed")
    for key, value in note.labels.items():
        if not _KEY.fullmatch(key) or len(key) > MAX_KEY_BYTES:
            raise MalformedInput(
                f"the key {key[:80]!r} must be 1 to {MAX_KEY_BYTES} "
                "letters, digits, `_`, `.` and `-`"
            )
        if len(value.encode()) > MAX_VALUE_BYTES:
            raise MalformedInput(f"the value of {key!r} is longer than {MAX_VALUE_BYTES} bytes")
        if any(ord(character) < 32 or ord(character) == 127 for character in value):
            raise MalformedInput(f"the value of {key!r} contains a control character")
    numbers = (note.at_ns, note.pid, note.start_time, note.span_start_ns, note.span_end_ns)
    if any(not 0 <= number <= _LAST_NS for number in numbers):
        raise MalformedInput("times, pid and start_time must not be negative")
    if bool(note.span_start_ns) != bool(note.span_end_ns):
        raise MalformedInput("span_start and span_end must be given together")
    if note.span_end_ns < note.span_start_ns:
        raise MalformedInput("span_end is before span_start")


def _text(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else f"{value!r}"
