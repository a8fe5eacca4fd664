"""The verdict: what Fleet decided about one node or rank.

Reply headers, the remediation socket, Echo and Prometheus all use this shape.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

MAX_HEADER_BYTES = 2048  # size limit of the whole list in the reply to a push


class VerdictState(StrEnum):
    """The state of an episode."""

    SUSPECT = "suspect"
    STRAGGLER = "straggler"
    RECOVERING = "recovering"
    RESOLVED = "resolved"
    FLEET_EVENT = "fleet_event"
    NOT_SURE = "not_sure"


class CauseClass(StrEnum):
    """The class of a cause; `structural` and `data_imbalance` never blame a node."""

    COMPUTE = "compute"
    HOST = "host"
    NETWORK = "network"
    HANG = "hang"
    STALL = "stall"
    STRUCTURAL = "structural"
    DATA_IMBALANCE = "data_imbalance"
    FLEET = "fleet"
    UNKNOWN = "unknown"


class Verdict(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"cause": "class", "next_step": "next"},
    omit_defaults=True,
):
    """One decision with its evidence.

    `excess` and `error` are shares of own time; `since` is in Unix seconds.
    """

    episode: str
    state: VerdictState
    node: str
    rank: int | None = None
    job: str | None = None
    cause: CauseClass = CauseClass.UNKNOWN
    excess: float | None = None
    error: float | None = None
    since: float
    period: int | None = None
    peers: int = 0
    usd_per_hour: float | None = None
    confidence: float | None = None
    evidence: str = ""
    next_step: str = ""
    silenced: str = ""  # until when and why an operator silenced the node or job


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(list[Verdict])


def encode_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Return ASCII JSON for a reply header.

    Where it would be too long, the least confident verdicts are left out.
    """
    kept = sorted(verdicts, key=lambda verdict: -(verdict.confidence or 0.0))
    while True:
        text = _ascii(_ENCODER.encode(kept))
        if len(text) <= MAX_HEADER_BYTES or not kept:
            return text
        kept.pop()


def decode_verdicts(text: str | bytes) -> list[Verdict]:
    """Read what `encode_verdicts` returns; raises msgspec.DecodeError for anything else."""
    return _DECODER.decode(text)


def _ascii(encoded: bytes) -> str:
    if encoded.isascii():
        return encoded.decode()
    return "".join(c if c.isascii() else _escape(c) for c in encoded.decode())


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
