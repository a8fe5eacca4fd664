"""Messages about an episode: a socket line and an event for Fleet, sent together with one id."""

from dataclasses import dataclass
from typing import Any

from ingero.contract.push.encode import StragglerEvent
from ingero.contract.straggler import StragglerResolved, StragglerState
from ingero.contract.timestamps import rfc3339_ns
from ingero.contract.types import Identity
from ingero.core.health.classifier import Classification, Closing
from ingero.core.health.modes import ModeDecision


@dataclass(frozen=True, slots=True)
class StragglerMessage:
    """One message as sent to the socket and to Fleet."""

    line: StragglerState | StragglerResolved
    event: StragglerEvent


def episode_message(
    identity: Identity,
    now: Classification,
    decision: ModeDecision,
    score: float,
    dominant: str,
    now_ns: int,
) -> StragglerMessage:
    """Return the message that the node is a straggler, or that its episode has ended.

    `reason` is empty when the node recovered.
    """
    event = StragglerEvent(
        at_ns=now_ns,
        is_straggler=now.is_straggler,
        mode=decision.mode,
        threshold=decision.threshold or 0.0,
        score=score,
        dominant_signal=dominant,
        event_id=now.episode or now.closed or "",
    )
    shared: dict[str, Any] = {
        "node_id": identity.node,
        "cluster_id": identity.cluster,
        "timestamp": rfc3339_ns(now_ns),
        "event_id": event.event_id,
        "rank": identity.rank,
        "world_size": identity.world_size,
        "sequence": now.sequence,
    }
    if not now.is_straggler:
        reason = "" if now.closing in (None, Closing.RECOVERED) else now.closing.value
        return StragglerMessage(StragglerResolved(**shared, reason=reason), event)
    line = StragglerState(
        **shared,
        score=score,
        threshold=event.threshold,
        detection_mode=event.mode.value,
        dominant_signal=dominant,
    )
    return StragglerMessage(line, event)
