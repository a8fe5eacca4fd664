"""Limits of a request: counted on its bytes, the same by compiled and by pure code."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.compiled import needs_codecs
from tests.support.otlp_strategies import values

from ingero.contract.otlp import limits
from ingero.contract.otlp.body import MAX_EXPANSION, decompress
from ingero.contract.otlp.codec import decode_json, decode_protobuf, encode_json, encode_protobuf
from ingero.contract.otlp.values import (
    KeyValue,
    Kind,
    LogsRequest,
    MetricsRequest,
    Plain,
    Resource,
    ResourceMetrics,
    TracesRequest,
    any_value,
)
from ingero.contract.timeline.varint import varint
from ingero.errors import MalformedPush, TooLarge

KINDS: tuple[Kind, ...] = (MetricsRequest, TracesRequest, LogsRequest)
# By kind: the tags from the request down to what it lists, innermost first.
NESTS = {
    "resources": (b"\x0a",),
    "scopes": (b"\x12", b"\x0a"),
    "items": (b"\x12", b"\x12", b"\x0a"),
    "resource attributes": (b"\x0a", b"\x0a", b"\x0a"),
    "unknown fields": (b"\x7a",),
    "attribute values": (b"\x0a", b"\x0a", b"\x2a", b"\x12", b"\x0a", b"\x0a", b"\x0a"),
}
small_limits = st.tuples(st.integers(0, 40), st.integers(0, 6), st.integers(1, 9))


def many(tags: tuple[bytes, ...], count: int) -> bytes:
    """A request with `count` empty messages at the innermost tag."""
    body = (tags[0] + b"\x00") * count
    for tag in tags[1:]:
        body = tag + varint(len(body)) + body
    return body


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nest", NESTS)
def test_empty_messages_are_counted_before_they_are_decoded(kind: Kind, nest: str) -> None:
    with pytest.raises(TooLarge, match="more than 600000 fields"):
        decode_protobuf(kind, many(NESTS[nest], limits.MAX_FIELDS + 1))
    decode_protobuf(kind, many(NESTS[nest], 1000))


def test_numbers_in_packed_lists_are_counted() -> None:
    for tag, octets in ((b"\x32", 8 * (limits.MAX_FIELDS + 1)), (b"\x3a", 8 * limits.MAX_FIELDS)):
        point = tag + varint(octets) + bytes(octets)  # bucket counts, bounds
        for outer in (b"\x0a", b"\x4a", b"\x12", b"\x12", b"\x0a"):
            point = outer + varint(len(point)) + point
        with pytest.raises(TooLarge, match="fields"):
            decode_protobuf(MetricsRequest, point)


@pytest.mark.parametrize("item", [b"{}", b"null", b"[]", b"0", b'""'])
def test_items_of_json_are_counted_before_they_are_decoded(item: bytes) -> None:
    listed = b",".join([item] * (limits.MAX_FIELDS + 1))
    for body in (b'{"resourceMetrics":[%b]}' % listed, b'{"unknown":[%b]}' % listed):
        with pytest.raises(TooLarge, match="fields"):
            decode_json(MetricsRequest, body)


def test_nesting_is_limited() -> None:
    value: Plain = "deep"
    for depth in range(60):
        value = [value]
        nested = _with_attribute(value)
        if depth < 20:  # eight messages around the value, and two for each list
            assert decode_protobuf(MetricsRequest, encode_protobuf(nested)) == nested
            assert decode_json(MetricsRequest, encode_json(nested)) == nested
    with pytest.raises(TooLarge, match="levels deep"):
        decode_protobuf(MetricsRequest, encode_protobuf(nested))
    with pytest.raises(TooLarge, match="levels deep"):
        decode_json(MetricsRequest, encode_json(nested))


def _with_attribute(value: Plain) -> MetricsRequest:
    attribute = KeyValue(key="k", value=any_value(value))
    return MetricsRequest((ResourceMetrics(resource=Resource(attributes=(attribute,))),))


def test_long_texts_are_refused() -> None:
    longest = _with_attribute("x" * limits.MAX_TEXT_BYTES)
    assert decode_protobuf(MetricsRequest, encode_protobuf(longest)) == longest
    assert decode_json(MetricsRequest, encode_json(longest)) == longest
    longer = _with_attribute("x" * (limits.MAX_TEXT_BYTES + 1))
    with pytest.raises(TooLarge, match="text of more than"):
        decode_protobuf(MetricsRequest, encode_protobuf(longer))
    with pytest.raises(TooLarge, match="text of more than"):
        decode_json(MetricsRequest, encode_json(longer))


def test_a_body_may_not_expand_without_end() -> None:
    with pytest.raises(TooLarge, match=f"expands more than {MAX_EXPANSION} times"):
        decompress(gzip.compress(bytes(31 << 20)), "gzip")
    assert decompress(gzip.compress(bytes(1 << 20)), "gzip") == bytes(1 << 20)


@given(st.sampled_from(KINDS).flatmap(values))
def test_requests_within_the_limits_pass(request: MetricsRequest) -> None:
    limits.check_protobuf(type(request), encode_protobuf(request))
    limits.check_json(encode_json(request))


@needs_codecs
@given(
    st.sampled_from(range(34)),
    st.binary(max_size=60) | st.sampled_from(KINDS).flatmap(values).map(encode_protobuf),
    small_limits,
)
def test_compiled_and_pure_scan_of_protobuf_agree(
    row: int, body: bytes, bounds: tuple[int, int, int]
) -> None:
    assert len(limits.field_table()[0]) == 34 * limits.ROW_OCTETS
    found = limits.scan_protobuf(body, limits.field_table()[0], row, bounds)
    assert found == limits.scan_protobuf_purely(body, limits.field_table()[0], row, bounds)


@needs_codecs
@given(
    st.text('{}[],:"\\a1', max_size=60).map(str.encode)
    | st.sampled_from(KINDS).flatmap(values).map(encode_json),
    small_limits,
)
def test_compiled_and_pure_scan_of_json_agree(body: bytes, bounds: tuple[int, int, int]) -> None:
    assert limits.scan_json(body, bounds) == limits.scan_json_purely(body, bounds)


@given(st.binary(max_size=40))
def test_what_the_scan_calls_malformed_is_malformed(body: bytes) -> None:
    """Groups excepted: OTLP never had any, and the decoder skips them."""
    found = limits.scan_protobuf(
        body,
        limits.field_table()[0],
        0,
        (limits.MAX_FIELDS, limits.MAX_TEXT_BYTES, limits.MAX_DEPTH),
    )
    try:
        decode_protobuf(MetricsRequest, body)
    except MalformedPush:
        return
    assert found >= 0
