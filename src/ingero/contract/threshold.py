"""The threshold as Fleet returns it to an agent: reply headers, gRPC metadata, the GET answer."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

MIN_DELIVERED: Final = 0.1  # agents reject thresholds below this and above MAX_DELIVERED
MAX_DELIVERED: Final = 0.99
_DECIMAL: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


class QuorumReason(StrEnum):
    """Why a cluster has no quorum."""

    FEW_NODES = "few_nodes"  # a node can only be compared with its own past
    PANIC = "panic"  # most nodes fell together; a node's own past says nothing about it


@dataclass(frozen=True, slots=True)
class ServedThreshold:
    """The threshold of one cluster as Fleet serves it; before the first one, 0 without quorum.

    `reason` is None with quorum, and where a Fleet of an earlier version does not send it.
    """

    value: float
    quorum_met: bool
    reason: QuorumReason | None = None


COLD_START: Final = ServedThreshold(0.0, False)


class Delivery(StrEnum):
    """What an agent makes of the two headers of a reply."""

    HIT = "hit"  # both are there and valid
    MISS = "miss"  # at least one is missing
    REJECTED = "rejected"  # not valid; the agent keeps its old threshold


def encode_threshold(value: float) -> str:
    """Return six decimals, which other agents and dashboards expect."""
    return f"{value:.6f}"


def encode_quorum(quorum_met: bool) -> str:
    """Return `true` or `false`, the only two spellings that agents accept."""
    return "true" if quorum_met else "false"


def decode_headers(
    threshold: str | None, quorum: str | None, reason: str | None = None
) -> tuple[Delivery, ServedThreshold | None]:
    """Return what the reply headers contain.

    The first two must be there, and the threshold must be a finite number within bounds. 0 without
    quorum means that Fleet has no threshold yet. An unknown reason counts as none.
    """
    threshold, quorum = (threshold or "").strip(), (quorum or "").strip()
    if not threshold or not quorum:
        return Delivery.MISS, None
    value = float(threshold) if _DECIMAL.fullmatch(threshold) else None
    flag = {"true": True, "false": False}.get(quorum.lower())
    if value == 0.0 and flag is False:
        return Delivery.HIT, COLD_START
    if value is None or flag is None or not MIN_DELIVERED <= value <= MAX_DELIVERED:
        return Delivery.REJECTED, None
    return Delivery.HIT, ServedThreshold(value, flag, None if flag else _reason(reason))


def _reason(text: str | None) -> QuorumReason | None:
    known = {str(reason): reason for reason in QuorumReason}
    return known.get((text or "").strip().lower())


class _Answer(msgspec.Struct, forbid_unknown_fields=False):
    threshold: float
    quorum_met: bool


def encode_answer(served: ServedThreshold) -> bytes:
    """Return the body of the answer to `GET /api/v1/threshold`, of two keys.

    Why there is no quorum is a header, as in replies to pushes: others expect these two keys.
    """
    return b'{"threshold":%b,"quorum_met":%b}' % (
        (encode_threshold(served.value) if served.value else "0").encode(),
        encode_quorum(served.quorum_met).encode(),
    )


def decode_answer(
    body: bytes, reason: str | None = None
) -> tuple[Delivery, ServedThreshold | None]:
    """Read that answer, with its header, by the rules for headers; both keys are required."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Delivery.REJECTED, None
    if answer.threshold == 0.0 and not answer.quorum_met:
        return Delivery.HIT, COLD_START
    if not MIN_DELIVERED <= answer.threshold <= MAX_DELIVERED:
        return Delivery.REJECTED, None
    why = None if answer.quorum_met else _reason(reason)
    return Delivery.HIT, ServedThreshold(answer.threshold, answer.quorum_met, why)
