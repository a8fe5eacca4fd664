"""Messages about an episode: a socket line and an event for Fleet, sent together with one id."""

from dataclasses import dataclass

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


def straggler_message(
    identity: Identity,
    now: Classification,
    decision: ModeDecision,
    score: float,
    dominant: str,
    now_ns: int,
) -> StragglerMessage:
    """Return the message that the node is a straggler."""
    event = _event(now, decision, score, dominant, now_ns)
    line = StragglerState(
        node_id=identity.node,
        cluster_id=identity.cluster,
        score=score,
        threshold=event.threshold,
        detection_mode=event.mode.value,
        dominant_signal=dominant,
        timestamp=rfc3339_ns(now_ns),
        event_id=event.event_id,
        rank=identity.rank,
        world_size=identity.world_size,
        sequence=now.sequence,
    )
    return StragglerMessage(line, event)


def resolved_message(
    identity: Identity,
    now: Classification,
    decision: ModeDecision,
    score: float,
    dominant: str,
    now_ns: int,
) -> StragglerMessage:
    """Return the message that the episode ended; `reason` is empty when the node recovered."""
    event = _event(now, decision, score, dominant, now_ns)
    line = StragglerResolved(
        node_id=identity.node,
        cluster_id=identity.cluster,
        timestamp=rfc3339_ns(now_ns),
        event_id=event.event_id,
        rank=identity.rank,
        world_size=identity.world_size,
        sequence=now.sequence,
        reason="" if now.closing in (None, Closing.RECOVERED) else now.closing.value,
    )
    return StragglerMessage(line, event)


def _event(
    now: Classification, decision: ModeDecision, score: float, dominant: str, now_ns: int
) -> StragglerEvent:
    return StragglerEvent(
        at_ns=now_ns,
        is_straggler=now.is_straggler,
        mode=decision.mode,
        threshold=decision.threshold or 0.0,
        score=score,
        dominant_signal=dominant,
        event_id=now.episode or now.closed or "",
    )
