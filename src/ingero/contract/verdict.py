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
    LATE = "late"  # behind its peers, but the job does not lose time by it
    OVERLOADED = "overloaded"  # an inference engine gets more work than it can do; not a fault
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
    KV_CACHE = "kv_cache"  # of an inference engine: requests are pushed out of its memory
    QUEUE = "queue"  # of an inference engine: requests arrive faster than they are served
    FLEET = "fleet"
    UNKNOWN = "unknown"


class Verdict(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"cause_class": "class", "next_step": "next"},
    omit_defaults=True,
):
    """One decision with its evidence.

    `loss` is what the job loses: the share of the slow step that a calm step would save, give or
    take `loss_error`. With `at_most` it is an upper bound, because no calm steps were seen.
    `excess` and `error` are shares of own time and belong to the evidence. `cause` names the signal
    that sets the rank apart from its peers, with both values. `collective` is the operation at
    which the job waits for the rank, with its size and its ranks. `link` names the two ends of a
    slow link, and `shared` what the ranks of a group event have in common. `since` is in Unix
    seconds, `period` in steps.
    """

    episode: str
    state: VerdictState
    node: str
    rank: int | None = None
    job: str | None = None
    cause_class: CauseClass = CauseClass.UNKNOWN
    loss: float | None = None
    loss_error: float | None = None
    at_most: bool = False
    cause: str = ""
    collective: str = ""
    link: str = ""
    shared: str = ""
    excess: float | None = None
    error: float | None = None
    since: float
    period: int | None = None
    peers: int = 0
    usd_per_hour: float | None = None
    confidence: float | None = None
    evidence: str = ""
    next_step: str = ""
    engine: str = ""  # kind, port and process of an inference engine; `job` is then its model
    silenced: str = ""  # until when and why an operator silenced the node or job


_ENCODER = msgspec.json.Encoder(order="deterministic")
_LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
_FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_REQUIRED = frozenset({"episode", "state", "node", "since"})
_FIELD_DECODERS = {
    field.encode_name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(Verdict)
}
_ATTRIBUTES = {field.encode_name: field.name for field in msgspec.structs.fields(Verdict)}


def encode_one(verdict: Verdict) -> bytes:
    """Return the bytes of a verdict that are recorded, and that a replay compares."""
    return _ENCODER.encode(verdict)


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
    """Read what `encode_verdicts` of this or a later version returns.

    A verdict with an unknown state is left out, and a field with an unknown value has its default.
    Raises msgspec.DecodeError for what is not a list.
    """
    found = (_decode_verdict(raw) for raw in _LIST_DECODER.decode(text))
    return [verdict for verdict in found if verdict is not None]


def _decode_verdict(raw: msgspec.Raw) -> Verdict | None:
    values: dict[str, object] = {}
    try:
        for name, value in _FIELDS_DECODER.decode(raw).items():
            if name not in _FIELD_DECODERS:
                continue
            try:
                values[_ATTRIBUTES[name]] = _FIELD_DECODERS[name].decode(value)
            except msgspec.ValidationError:
                if name in _REQUIRED:
                    return None
        return Verdict(**values)  # type: ignore[arg-type]  # each value was decoded as its type
    except (msgspec.DecodeError, TypeError):  # not an object, or a required field is missing
        return None


def _ascii(encoded: bytes) -> str:
    if encoded.isascii():
        return encoded.decode()
    return "".join(c if c.isascii() else _escape(c) for c in encoded.decode())


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
