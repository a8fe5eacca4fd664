"""The plain push: one whole `POST /v1/metrics` over HTTP/1.1 in one TCP segment.

Agents send nothing else, so a service can answer such a segment without an HTTP parser. Everything
else (partial requests, pipelining, other compression than gzip, chunks, unusual or repeated
headers) decodes to None and is left to a real parser.
"""

import re
from typing import Final, NamedTuple

from ingero.compiled import CODECS, compiled_or_pure
from ingero.contract.api_paths import OTLP_METRICS
from ingero.contract.names import CLUSTER_HEADER

_START: Final = re.compile(
    rb"POST " + re.escape(OTLP_METRICS.encode()) + rb"(\?[!-~]*)? HTTP/1\.1\r\n"
)
_HEADER: Final = re.compile(
    rb"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*"
    rb"((?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?)[ \t]*\r\n"
)
_MAX_HEADERS: Final = 64
_PACKED: Final = b"content-encoding"
_UNUSUAL: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"trailer"})
_ONCE: Final = frozenset(
    {b"content-type", b"content-length", b"authorization", CLUSTER_HEADER.encode(), _PACKED}
)
_TYPES: Final = {b"application/x-protobuf": False, b"application/json": True}


class PlainRequest(NamedTuple):
    """What a service needs of a plain push."""

    is_json: bool
    query: bytes
    cluster: bytes | None
    authorization: bytes | None
    body: bytes
    is_gzip: bool = False


def decode_segment_purely(segment: bytes) -> PlainRequest | None:
    """Return the request, or None.

    This is the definition of the compiled twin, and what runs without it.
    """
    start = _START.match(segment)
    if start is None:
        return None
    at = start.end()
    found: dict[bytes, bytes] = {}
    for _ in range(_MAX_HEADERS):
        if segment.startswith(b"\r\n", at):
            break
        header = _HEADER.match(segment, at)
        if header is None:
            return None
        name, value, at = header[1].lower(), header[2], header.end()
        if name in _UNUSUAL or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
        if name in _ONCE:
            if name in found:
                return None
            found[name] = value
    else:
        return None
    is_json, length = _TYPES.get(found.get(b"content-type", b"")), found.get(b"content-length", b"")
    body, packed = segment[at + 2 :], found.get(_PACKED)
    if packed is not None and packed.lower() != b"gzip":
        return None
    if is_json is None or not length.isdigit() or len(length) > 9 or int(length) != len(body):
        return None
    query = (start[1] or b"?")[1:]
    cluster, authorization = found.get(CLUSTER_HEADER.encode()), found.get(b"authorization")
    return PlainRequest(is_json, query, cluster, authorization, body, packed is not None)


decode_segment = compiled_or_pure(CODECS, "decode_segment", decode_segment_purely)
