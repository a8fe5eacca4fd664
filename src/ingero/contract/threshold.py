"""The threshold as it travels back to an agent: reply headers, gRPC metadata, the GET answer."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

MIN_DELIVERED: Final = 0.1  # agents drop anything outside, inclusive
MAX_DELIVERED: Final = 0.99
_DECIMAL: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ServedThreshold:
    """What Fleet serves for one cluster; a cold start is 0 without quorum."""

    value: float
    quorum_met: bool


COLD_START: Final = ServedThreshold(0.0, False)


class Delivery(StrEnum):
    """What a reply's two headers amount to."""

    HIT = "hit"  # both there and valid
    MISS = "miss"  # none, or one without the other
    REJECTED = "rejected"  # there, but not to be trusted; the old value stays


def encode_threshold(value: float) -> str:
    """Six decimals, as other agents and dashboards of this wire expect."""
    return f"{value:.6f}"


def encode_quorum(quorum_met: bool) -> str:
    """The only two spellings agents accept."""
    return "true" if quorum_met else "false"


def decode_headers(
    threshold: str | None, quorum: str | None
) -> tuple[Delivery, ServedThreshold | None]:
    """The pair of reply headers; both or neither count, and nothing but a finite number within bounds is believed."""
    threshold, quorum = (threshold or "").strip(), (quorum or "").strip()
    if not threshold or not quorum:
        return Delivery.MISS, None
    value = float(threshold) if _DECIMAL.fullmatch(threshold) else None
    flag = {"true": True, "false": False}.get(quorum.lower())
    if value == 0.0 and flag is False:
        return (
            Delivery.HIT,
            COLD_START,
        )  # the same as in an answer to GET: Fleet is there and has no line yet
    if value is None or flag is None or not MIN_DELIVERED <= value <= MAX_DELIVERED:
        return Delivery.REJECTED, None
    return Delivery.HIT, ServedThreshold(value, flag)


class _Answer(msgspec.Struct, forbid_unknown_fields=False):
    threshold: float
    quorum_met: bool


def encode_answer(served: ServedThreshold) -> bytes:
    """The body of GET /api/v1/threshold."""
    return b'{"threshold":%b,"quorum_met":%b}' % (
        (encode_threshold(served.value) if served.value else "0").encode(),
        encode_quorum(served.quorum_met).encode(),
    )


def decode_answer(body: bytes) -> tuple[Delivery, ServedThreshold | None]:
    """The same rules as for headers, with both keys required; 0 without quorum is Fleet's cold start, not an error."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Delivery.REJECTED, None
    if answer.threshold == 0.0 and not answer.quorum_met:
        return Delivery.HIT, COLD_START
    if not MIN_DELIVERED <= answer.threshold <= MAX_DELIVERED:
        return Delivery.REJECTED, None
    return Delivery.HIT, ServedThreshold(answer.threshold, answer.quorum_met)
