import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.compiled import needs_codecs

from ingero.contract.push.segment import PlainRequest, decode_segment, decode_segment_purely

BODY = b"\n\0body"


def segment(
    *headers: bytes,
    start: bytes = b"POST /v1/metrics?cluster_id=a HTTP/1.1",
    body: bytes = BODY,
    length: bytes = b"",
) -> bytes:
    lines = [start, b"Host: x", b"Content-Type: application/x-protobuf", *headers]
    lines.append(b"Content-Length: " + (length or b"%d" % len(body)))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@pytest.mark.parametrize("read", [decode_segment, decode_segment_purely])
def test_plain_push_is_recognised(read: object) -> None:
    assert read(segment(b"Authorization: Bearer t", b"ingero.cluster.id:  b ")) == PlainRequest(
        False, b"cluster_id=a", b"b", b"Bearer t", BODY
    )
    assert read(segment(start=b"POST /v1/metrics HTTP/1.1", body=b"")) == PlainRequest(
        False, b"", None, None, b""
    )
    assert read(segment(b"CONNECTION: Keep-Alive")) is not None
    assert read(segment(b"content-encoding: GZip")) == PlainRequest(
        False, b"cluster_id=a", None, None, BODY, is_gzip=True
    )


@pytest.mark.parametrize("read", [decode_segment, decode_segment_purely])
@pytest.mark.parametrize(
    "odd",
    [
        segment(b"Content-Encoding: deflate"),
        segment(b"Content-Encoding: gzip, gzip"),
        segment(b"Content-Encoding:"),
        segment(b"Content-Encoding: gzip", b"Content-Encoding: gzip"),
        segment(b"Transfer-Encoding: chunked"),
        segment(b"Expect: 100-continue"),
        segment(b"Connection: close"),
        segment(b"Content-Length: 3"),
        segment(b"Content-Type: application/json"),
        segment(b"Bad Name: x"),
        segment(b"X: a\rb"),
        segment(b" folded"),
        segment(b"X: \x00"),
        segment(length=b"+6"),
        segment(length=b"7"),
        segment(length=b"5"),
        segment(length=b"0x6"),
        segment(start=b"GET /v1/metrics HTTP/1.1"),
        segment(start=b"POST /v1/metrics HTTP/1.0"),
        segment(start=b"POST /v1/metricsx HTTP/1.1"),
        segment(start=b"POST /v1/metrics?a b HTTP/1.1"),
        segment(start=b"POST  /v1/metrics HTTP/1.1"),
        segment() + segment(),
        segment()[:-1],
        segment()[:40],
        segment().replace(b"\r\n", b"\n"),
        segment(*[b"X: y"] * 64),
        b"",
    ],
)
def test_everything_unusual_is_left_to_the_parser(read: object, odd: bytes) -> None:
    assert read(odd) is None


pieces = st.sampled_from(
    [
        b"POST /v1/metrics", b"?cluster_id=a", b" HTTP/1.1", b"\r\n", b"\n", b"\r",
        b"Content-Type: ",
        b"content-LENGTH:", b"application/json", b"application/x-protobuf", b"0", b"2", b"{}",
        b" ", b"\t",
        b"Connection: keep-alive", b"Authorization: x", b"ingero.cluster.id: c", b":", b"X: y",
        b"Content-Encoding: ", b"gzip", b"Content-Encoding: gzip\r\n",
        b"\xff", b"\x00",
    ]
)  # fmt: skip


@needs_codecs
@settings(max_examples=400, deadline=None)
@given(
    st.lists(pieces, max_size=20).map(b"".join),
    st.lists(st.tuples(st.integers(0, 200), pieces), max_size=3),
)
def test_compiled_and_pure_agree(random: bytes, edits: list[tuple[int, bytes]]) -> None:
    near = segment(b"Authorization: x", b"X: y")
    for at, piece in edits:
        near = near[:at] + piece + near[at:]
    for data in (random, near):
        assert decode_segment(data) == decode_segment_purely(data)
