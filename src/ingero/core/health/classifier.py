"""The classifier: a node is healthy or a straggler, and each episode has one id.

An episode begins after several evaluations below the threshold and ends with hysteresis.
"""

import math
import uuid
from dataclasses import dataclass, replace
from enum import StrEnum

from ingero.core.setting import check_settings, setting

EPSILON = 1e-9  # 0.80 + 0.02 is not exactly 0.82
# So many evaluations in a row at or above the threshold end an episode, even where
# threshold + hysteresis is never reached.
RECOVERY_DWELL = 6
_EPISODES = uuid.UUID("5b0d4f0e-7c0f-5d7e-9a43-1d4c2f6f3a10")  # namespace of episode ids


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierPolicy:
    """How many evaluations below the threshold make a straggler, and how far above it recovers."""

    hysteresis: float = setting(
        0.02,
        range=(0.0, None),
        below=0.5,
        flag="--fleet-classifier-hysteresis",
        help="Margin above the threshold at which a straggler recovers at once.",
    )
    confirmations: int = setting(
        3,
        range=(1, 1000),
        flag="--confirmations",
        help="Evaluations in a row below the threshold before a node is a straggler.",
    )

    def __post_init__(self) -> None:
        check_settings(self)


class Closing(StrEnum):
    """Why an episode ended."""

    RECOVERED = "recovered"
    LEFT_ACTIVE = "left_active"  # idle, stale or calibrating: whether it is still slow is unknown
    MODE_LOST = "mode_lost"  # no threshold left to compare with
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """Whether the node is a straggler.

    `episode` is set exactly while it is; `sequence` counts its messages.
    """

    episode: str | None = None
    since_ns: int = 0
    sequence: int = 0
    recent: tuple[float, ...] = ()  # before an episode: scores in a row below the threshold
    above: int = 0  # within an episode: evaluations in a row at or above the threshold
    raised: bool = False  # by this evaluation
    closing: Closing | None = None  # by this evaluation
    closed: str | None = None  # the episode it closed

    @property
    def is_straggler(self) -> bool:
        return self.episode is not None


def classify(
    before: Classification,
    score: float,
    threshold: float,
    policy: ClassifierPolicy,
    *,
    node: str,
    now_ns: int,
    may_raise: bool = True,
) -> Classification:
    """Return the classification after one evaluation; a score that is NaN changes nothing."""
    state = replace(before, raised=False, closing=None, closed=None)
    if math.isnan(score) or math.isnan(threshold):
        return state
    is_below = score + EPSILON < threshold
    if state.is_straggler:
        return _in_episode(state, score, threshold, policy, is_below)
    recent = (*state.recent, score)[-policy.confirmations :] if is_below and may_raise else ()
    # When all nodes slow down, the threshold falls below the older scores: check those as well.
    is_confirmed = len(recent) == policy.confirmations and max(recent) + EPSILON < threshold
    if not is_confirmed:
        return replace(state, recent=recent)
    return Classification(
        episode=episode_id(node, now_ns), since_ns=now_ns, sequence=1, raised=True
    )


def _in_episode(
    state: Classification, score: float, threshold: float, policy: ClassifierPolicy, is_below: bool
) -> Classification:
    above = 0 if is_below else state.above + 1
    if score + EPSILON >= threshold + policy.hysteresis or above >= RECOVERY_DWELL:
        return close(state, Closing.RECOVERED)
    return replace(state, above=above, sequence=state.sequence + 1)


def close(state: Classification, closing: Closing) -> Classification:
    """End the open episode, if there is one, and discard unconfirmed evaluations."""
    if state.episode is None:
        return Classification()
    return Classification(
        closing=closing, closed=state.episode, since_ns=state.since_ns, sequence=state.sequence + 1
    )


def episode_id(node: str, started_ns: int) -> str:
    """Return an id that depends only on node and time, so that a replay yields the same ids."""
    return str(uuid.uuid5(_EPISODES, f"{node}\n{started_ns}"))
