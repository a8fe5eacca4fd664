"""Bodies of OTLP over HTTP: media types, bounded decompression, and the receiver's responses."""

import zlib
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from ingero.contract.names import JSON_TYPE, PROTOBUF_TYPE
from ingero.contract.otlp.codec import count_protobuf_items, decode_json, decode_protobuf
from ingero.contract.otlp.values import (
    Kind,
    LogsRequest,
    MetricsRequest,
    Request,
    TracesRequest,
    count_items,
)
from ingero.errors import MalformedPush, TooLarge

# As received. A push takes 1 to 3 KB, the collectives of a busy rank some 100 KB.
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_DECODED_BYTES: Final = 32 * 1024 * 1024  # after decompression
MAX_EXPANSION: Final = 200  # times the received size; OTLP usually shrinks 5 to 50 times
ANY_EXPANSION_BYTES: Final = 1024 * 1024  # up to this size a body may expand without limit
R = TypeVar("R", bound=Request)

_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_REJECTED: Final[dict[type, tuple[str, str]]] = {  # in protobuf, in JSON
    MetricsRequest: ("rejected_data_points", "rejectedDataPoints"),
    TracesRequest: ("rejected_spans", "rejectedSpans"),
    LogsRequest: ("rejected_log_records", "rejectedLogRecords"),
}


class Encoding(StrEnum):
    """The two encodings of OTLP over HTTP; a receiver answers in the encoding of the request."""

    PROTOBUF = PROTOBUF_TYPE
    JSON = JSON_TYPE


class PartialSuccess(msgspec.Struct, frozen=True):
    """How many items a receiver rejected, and why."""

    rejected: int = 0
    message: str = ""


def encoding_of(content_type: str) -> Encoding | None:
    """Return the encoding that a Content-Type names; None for any other media type."""
    media = content_type.partition(";")[0].strip().lower()
    if media in (PROTOBUF_TYPE, "application/protobuf"):
        return Encoding.PROTOBUF
    return Encoding.JSON if media == JSON_TYPE else None


def decompress(body: bytes, content_encoding: str, limit_bytes: int = MAX_DECODED_BYTES) -> bytes:
    """Return the body without its Content-Encoding.

    Raises MalformedPush, and TooLarge before more than `limit_bytes` are in memory, or more than
    MAX_EXPANSION times the size of the body.
    """
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return body
    bits = _WINDOW_BITS.get(name)
    if bits is None:
        raise MalformedPush(
            f"Content-Encoding {name!r} is not supported; use gzip, deflate or none"
        )
    if name == "deflate" and body[:1] and body[0] & 0x0F != 8:
        bits = -15  # raw deflate, which some clients send under this name
    expanded_bytes = min(limit_bytes, max(ANY_EXPANSION_BYTES, MAX_EXPANSION * len(body)))
    inflater = zlib.decompressobj(bits)
    try:
        decoded = inflater.decompress(body, expanded_bytes + 1)
    except zlib.error as error:
        raise MalformedPush(f"the body is not valid {name}: {error}") from None
    if len(decoded) > limit_bytes:
        raise TooLarge(f"the body is larger than {limit_bytes} bytes after decompression")
    if len(decoded) > expanded_bytes:
        raise TooLarge(f"the body expands more than {MAX_EXPANSION} times")
    if not inflater.eof:
        raise MalformedPush(f"the {name} body ends too early")
    if inflater.unused_data:
        raise MalformedPush(f"the {name} body has bytes after its end")
    return decoded


def decode(kind: type[R], body: bytes, encoding: Encoding) -> R:
    """Return the request of a body in either encoding; raises MalformedPush or TooLarge."""
    return decode_json(kind, body) if encoding is Encoding.JSON else decode_protobuf(kind, body)


def count_received(kind: Kind, body: bytes, encoding: Encoding) -> int:
    """Return the number of spans or log records; raises what `decode` raises."""
    if encoding is Encoding.JSON:
        return count_items(decode_json(kind, body))
    return count_protobuf_items(kind, body)


def encode_response(kind: Kind, encoding: Encoding, partial: PartialSuccess | None = None) -> bytes:
    """Return the body of a reply with status 200: empty, or what was rejected."""
    if encoding is Encoding.JSON:
        if partial is None:
            return b"{}"
        rejected_key = _REJECTED[kind][1]
        return msgspec.json.encode(
            {
                "partialSuccess": {
                    rejected_key: str(partial.rejected),
                    "errorMessage": partial.message,
                }
            }
        )
    if partial is None:
        return b""
    from ingero.contract.otlp.messages import RESPONSES  # noqa: PLC0415 - loaded at the first use

    message = RESPONSES[kind]()
    setattr(message.partial_success, _REJECTED[kind][0], partial.rejected)
    message.partial_success.error_message = partial.message
    encoded: bytes = message.SerializeToString()
    return encoded


def decode_response(kind: Kind, body: bytes, encoding: Encoding) -> PartialSuccess:
    """Return what a receiver rejected, which is nothing for an empty body; raises MalformedPush."""
    if not body:
        return PartialSuccess()
    from ingero.contract.otlp.messages import (  # noqa: PLC0415 - loaded at the first use
        RESPONSES,
        DecodeError,
    )

    field, rejected_key = _REJECTED[kind]
    try:
        if encoding is Encoding.JSON:
            partial = (
                msgspec.json.decode(body, type=dict[str, dict[str, int | str] | None]).get(
                    "partialSuccess"
                )
                or {}
            )
            return PartialSuccess(
                int(partial.get(rejected_key, 0)), str(partial.get("errorMessage", ""))
            )
        message = RESPONSES[kind].FromString(body)
    except (DecodeError, msgspec.DecodeError, ValueError) as error:
        raise MalformedPush(f"the reply is not an OTLP response: {error}") from None
    return PartialSuccess(
        int(getattr(message.partial_success, field)), message.partial_success.error_message
    )
