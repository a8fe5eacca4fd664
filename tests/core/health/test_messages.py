"""Messages of an episode: every field of the line and of the event."""

from ingero.contract.push.encode import StragglerEvent
from ingero.contract.straggler import StragglerResolved, StragglerState
from ingero.contract.types import DetectionMode, Identity
from ingero.core.health.classifier import Classification, Closing
from ingero.core.health.messages import StragglerMessage, episode_message
from ingero.core.health.modes import ModeDecision

IDENTITY = Identity(node="n1", cluster="c", rank=3, world_size=8)
FLEET = ModeDecision(DetectionMode.FLEET, 0.8, may_raise=True)
AT = "1970-01-01T00:00:01.500000000Z"
SHARED = {
    "node_id": "n1", "cluster_id": "c", "timestamp": AT, "event_id": "e1", "rank": 3,
    "world_size": 8, "sequence": 4,
}  # fmt: skip


def message(now: Classification, decision: ModeDecision = FLEET) -> StragglerMessage:
    return episode_message(IDENTITY, now, decision, 0.5, "compute", 1_500_000_000)


def test_a_straggler_is_told_with_its_score_threshold_and_mode() -> None:
    found = message(Classification(episode="e1", sequence=4))
    assert found.line == StragglerState(
        **SHARED, score=0.5, threshold=0.8, detection_mode="fleet", dominant_signal="compute"
    )
    assert found.event == StragglerEvent(
        at_ns=1_500_000_000, is_straggler=True, mode=DetectionMode.FLEET, threshold=0.8, score=0.5,
        dominant_signal="compute", event_id="e1",
    )  # fmt: skip


def test_the_end_has_the_id_of_the_episode_and_a_reason_unless_it_recovered() -> None:
    recovered = message(Classification(closed="e1", sequence=4, closing=Closing.RECOVERED))
    assert recovered.line == StragglerResolved(**SHARED, reason="")
    assert (recovered.event.is_straggler, recovered.event.event_id) == (False, "e1")
    lost = message(Classification(closed="e1", sequence=4, closing=Closing.MODE_LOST))
    assert lost.line == StragglerResolved(**SHARED, reason="mode_lost")


def test_without_a_threshold_or_an_episode_the_fields_are_empty() -> None:
    found = message(Classification(), ModeDecision(DetectionMode.NONE))
    assert (found.event.threshold, found.event.event_id) == (0.0, "")
