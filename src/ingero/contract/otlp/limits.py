"""Limits of one OTLP request, checked on its bytes before anything of it is decoded.

A body of a few kilobytes can decompress to millions of empty messages, and each would become an
object of a hundred bytes. Counting them first takes a few nanoseconds per field and no memory.
"""

import functools
import re
from typing import Any, Final

from ingero.compiled import CODECS, compiled_or_pure
from ingero.contract.otlp.values import Kind
from ingero.errors import IngeroError, MalformedPush, TooLarge

# Of one request: fields in protobuf, where a message counts twice, and in JSON values, arrays and
# objects. A point takes about eight, and six for each of its attributes: 8,192 points with 10
# attributes each are allowed. The runtime parses this many in 30 ms, during which no other Python
# code runs.
MAX_FIELDS: Final = 600_000
MAX_DEPTH: Final = 64  # of nested messages; a value in an attribute of a point is eight deep
MAX_JSON_DEPTH: Final = 2 * MAX_DEPTH  # of nested arrays and objects; each level needs about two
MAX_TEXT_BYTES: Final = 1 << 20  # of one text: a name, an attribute, the body of a log record

# What a scan returns in place of a count.
MALFORMED, TOO_MANY, TOO_DEEP, TOO_LONG = -1, -2, -3, -4

# The table that drives the scan has a row of 64 octets for each message type, with one octet for
# each field number: what a length-delimited field holds. Numbers from MESSAGE on stand for the
# row of a nested message. Other fields are counted and skipped.
SKIP, TEXT, VARINTS, WORDS, MESSAGE = range(5)
ROW_OCTETS: Final = 64
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


@functools.cache
def field_table() -> tuple[bytes, dict[type, int]]:
    """Return the table of all message types, and the row of each kind of request."""
    from ingero.contract.otlp.messages import (  # noqa: PLC0415 - loaded at the first use
        REQUESTS,
        FieldDescriptor,
    )

    texts = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    words = (
        FieldDescriptor.TYPE_FIXED64,
        FieldDescriptor.TYPE_SFIXED64,
        FieldDescriptor.TYPE_DOUBLE,
    )
    roots: dict[type, Any] = {kind: message().DESCRIPTOR for kind, message in REQUESTS.items()}
    types: list[Any] = list(roots.values())
    rows: list[bytearray] = []
    for message in types:  # grows while the fields of its members are read
        row = bytearray(ROW_OCTETS)
        for field in message.fields:
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                if field.message_type not in types:
                    types.append(field.message_type)
                row[field.number] = MESSAGE + types.index(field.message_type)
            elif field.type in texts:
                row[field.number] = TEXT
            elif field.is_repeated:
                row[field.number] = WORDS if field.type in words else VARINTS
        rows.append(row)
    return b"".join(rows), {kind: types.index(root) for kind, root in roots.items()}


def check_protobuf(kind: Kind, body: bytes) -> None:
    """Raise TooLarge for a body beyond a limit, and MalformedPush for one that is not protobuf."""
    table, roots = field_table()
    found = scan_protobuf(body, table, roots[kind], (MAX_FIELDS, MAX_TEXT_BYTES, MAX_DEPTH))
    if found < 0:
        raise _error(found, MAX_DEPTH, f"an OTLP {kind.__name__} in protobuf")


def check_json(body: bytes) -> None:
    """Raise TooLarge for a body beyond a limit. Whether it is JSON is left to the decoder."""
    found = scan_json(body, (MAX_FIELDS, MAX_TEXT_BYTES, MAX_JSON_DEPTH))
    if found < 0:
        raise _error(found, MAX_JSON_DEPTH, "JSON")


def _error(found: int, max_depth: int, expected: str) -> IngeroError:
    if found == TOO_MANY:
        return TooLarge(f"the request holds more than {MAX_FIELDS} fields; send smaller batches")
    if found == TOO_DEEP:
        return TooLarge(f"the request is nested more than {max_depth} levels deep")
    if found == TOO_LONG:
        return TooLarge(f"the request holds a text of more than {MAX_TEXT_BYTES} bytes")
    return MalformedPush(f"the body is not {expected}")


class _Stopped(Exception):
    """A scan ends early; the argument is what it returns."""


class _FieldCount:
    """One scan of a protobuf body."""

    def __init__(self, body: bytes, table: bytes, limits: tuple[int, int, int]) -> None:
        self.body, self.table = body, table
        self.max_fields, self.max_text_bytes, self.max_depth = limits
        self.fields = 0

    def message(self, at: int, end: int, row: int, depth: int) -> None:
        if depth > self.max_depth:
            raise _Stopped(TOO_DEEP)
        while at < end:
            tag, at = self.varint(at, end)
            self.count(1)
            kind = tag & 7
            if kind == _DELIMITED:
                size, at = self.varint(at, end)
                if size > end - at:
                    raise _Stopped(MALFORMED)
                number = tag >> 3
                holds = self.table[row * ROW_OCTETS + number] if number < ROW_OCTETS else SKIP
                if holds >= MESSAGE:
                    self.count(1)
                    self.message(at, at + size, holds - MESSAGE, depth + 1)
                elif holds == TEXT and size > self.max_text_bytes:
                    raise _Stopped(TOO_LONG)
                elif holds in (VARINTS, WORDS):
                    self.count(size if holds == VARINTS else size // 8)
                at += size
            elif kind == _VARINT:
                _, at = self.varint(at, end)
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                raise _Stopped(MALFORMED)  # a group, which OTLP never had
        if at > end:
            raise _Stopped(MALFORMED)

    def count(self, fields: int) -> None:
        self.fields += fields
        if self.fields > self.max_fields:
            raise _Stopped(TOO_MANY)

    def varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for position in range(at, min(end, at + 10)):
            octet = self.body[position]
            value |= (octet & 0x7F) << (7 * (position - at))
            if octet < 0x80:
                if value >= 1 << 64:
                    break
                return value, position + 1
        raise _Stopped(MALFORMED)


def scan_protobuf_purely(body: bytes, table: bytes, row: int, limits: tuple[int, int, int]) -> int:
    """Return the number of fields in a message of the type in `row`, or why the scan stopped.

    This is the definition of the compiled twin, and what runs without it.
    """
    scan = _FieldCount(body, table, limits)
    try:
        scan.message(0, len(body), row, 1)
    except _Stopped as stopped:
        reason: int = stopped.args[0]
        return reason
    return scan.fields


_JSON_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{},]', re.DOTALL)


def scan_json_purely(body: bytes, limits: tuple[int, int, int]) -> int:
    """Return the number of separators and openings outside texts, or why the scan stopped.

    This is the definition of the compiled twin, and what runs without it.
    """
    max_fields, max_text_bytes, max_depth = limits
    fields = depth = 0
    for token in _JSON_TOKEN.finditer(body):
        first = body[token.start()]
        if first == 0x22:
            if token.end() - token.start() > max_text_bytes + 2:
                return TOO_LONG
        elif first in b"]}":
            depth -= 1
        else:
            fields += 1
            if fields > max_fields:
                return TOO_MANY
            if first in b"[{":
                depth += 1
                if depth > max_depth:
                    return TOO_DEEP
    return fields


scan_protobuf: Any = compiled_or_pure(CODECS, "scan_protobuf", scan_protobuf_purely)
scan_json: Any = compiled_or_pure(CODECS, "scan_json", scan_json_purely)
