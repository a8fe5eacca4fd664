import gzip
import zlib

import pytest

from ingero.contract.otlp.body import (
    Encoding,
    PartialSuccess,
    decode_response,
    decompress,
    encode_response,
    encoding_of,
)
from ingero.contract.otlp.values import LogsRequest, MetricsRequest, TracesRequest
from ingero.errors import MalformedPush, TooLarge


def test_media_types() -> None:
    assert encoding_of("application/json; charset=utf-8") is Encoding.JSON
    assert encoding_of("Application/X-Protobuf") is Encoding.PROTOBUF
    assert encoding_of("text/plain") is None


@pytest.mark.parametrize("name", ["gzip", "GZIP", "deflate", "", "identity"])
def test_compressed_bodies_come_back(name: str) -> None:
    body = b"a push" * 100
    packed = {"gzip": gzip.compress, "deflate": zlib.compress}.get(name.lower(), bytes)(body)
    assert decompress(packed, name) == body


def test_raw_deflate_is_understood() -> None:
    packer = zlib.compressobj(wbits=-15)
    assert decompress(packer.compress(b"a push") + packer.flush(), "deflate") == b"a push"


def test_a_bomb_is_refused_before_it_fills_memory() -> None:
    with pytest.raises(TooLarge):
        decompress(gzip.compress(bytes(10_000_000)), "gzip", limit_bytes=1_000_000)
    assert (
        len(decompress(gzip.compress(bytes(1_000_000)), "gzip", limit_bytes=1_000_000)) == 1_000_000
    )


@pytest.mark.parametrize(
    "body",
    [
        b"not gzip",
        gzip.compress(b"cut short", mtime=0)[:-3],
        gzip.compress(b"a", mtime=0) + b"tail",
    ],
)
def test_broken_compression_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedPush):
        decompress(body, "gzip")


def test_unknown_compression_is_refused() -> None:
    with pytest.raises(MalformedPush, match="br"):
        decompress(b"", "br")


@pytest.mark.parametrize("kind", [MetricsRequest, TracesRequest, LogsRequest])
@pytest.mark.parametrize("encoding", list(Encoding))
def test_partial_success_round_trips(kind: type, encoding: Encoding) -> None:
    partial = PartialSuccess(3, "score 7 is outside 0..1")
    assert decode_response(kind, encode_response(kind, encoding, partial), encoding) == partial
    assert decode_response(kind, encode_response(kind, encoding), encoding) == PartialSuccess()
