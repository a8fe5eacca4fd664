"""A message parsed in pieces is the message that is parsed at once, damaged ones included."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.support.hostile_bodies import nested
from tests.support.otlp_strategies import values

from ingero.contract.otlp import pieces
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.pieces import parse_in_pieces
from ingero.contract.otlp.values import MetricsRequest


def at_once(body: bytes) -> Any:
    message = ExportMetricsServiceRequest()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return None
    return message


def in_pieces(body: bytes, piece_bytes: int) -> Any:
    message = ExportMetricsServiceRequest()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pieces, "PIECE_BYTES", piece_bytes)
        try:
            parse_in_pieces(message, body)
        except DecodeError:
            return None
    return message


@given(
    request=values(MetricsRequest),
    piece_bytes=st.integers(0, 40),
    cut=st.integers(0, 400),
    changes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=3),
)
def test_pieces_make_the_same_message(
    request: MetricsRequest, piece_bytes: int, cut: int, changes: list[tuple[int, int]]
) -> None:
    body = bytearray(encode_protobuf(request))
    assert in_pieces(bytes(body), piece_bytes) == at_once(bytes(body))
    for place, byte in changes:
        if place < len(body):
            body[place] = byte
    damaged = bytes(body[: len(body) - cut] if cut < len(body) else body)
    assert in_pieces(damaged, piece_bytes) == at_once(damaged)


@given(st.binary(max_size=60), st.integers(0, 8))
def test_any_bytes_are_read_alike(body: bytes, piece_bytes: int) -> None:
    assert in_pieces(body, piece_bytes) == at_once(body)


class Counting:
    """Stands for a message, and notes the size of what it is given to parse."""

    DESCRIPTOR = ExportTraceServiceRequest.DESCRIPTOR

    def __init__(self, sizes: list[int], descriptor: Any = None) -> None:
        self.sizes = sizes
        self.DESCRIPTOR = descriptor or self.DESCRIPTOR

    def MergeFromString(self, piece: bytes) -> None:
        self.sizes.append(len(piece))

    def __getattr__(self, name: str) -> Any:
        self._child = self.DESCRIPTOR.fields_by_name[name].message_type
        return self

    def add(self) -> "Counting":
        return Counting(self.sizes, self._child)


@pytest.mark.parametrize("tags", [b"", b"\x0a", b"\x0a\x12"], ids=["resources", "scopes", "spans"])
def test_no_piece_is_large(tags: bytes) -> None:
    """What holds the lock: 600 kB of empty messages are parsed some 32 KiB at a time."""
    innermost = b"\x0a\x00" if not tags else b"\x12\x00"
    sizes: list[int] = []
    parse_in_pieces(Counting(sizes), nested(tags, innermost * 299_990))
    assert sum(sizes) == 2 * 299_990
    assert max(sizes) <= pieces.PIECE_BYTES + 16
