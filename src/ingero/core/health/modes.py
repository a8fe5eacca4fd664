"""Which threshold an agent trusts right now: Fleet's, a remembered one, or its own; and whether it may name itself."""

from dataclasses import dataclass, replace
from enum import StrEnum

from ingero.contract.types import DetectionMode
from ingero.errors import ConfigError

LOCAL_SHARE = (
    0.9  # of the node's own usual score: a node that always scores 0.40 is not slow at 0.40
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModePolicy:
    """Ages follow the push interval, so that a slow cadence never looks like a lost Fleet."""

    push_interval_s: float = 5.0
    cached_max_age_s: float = 300.0
    local_baseline_factor: float = 0.85

    def __post_init__(self) -> None:
        if not self.push_interval_s > 0:
            raise ConfigError("push_interval must be above 0")
        if not self.cached_max_age_s > 0:
            raise ConfigError("cached_max_age must be above 0")
        if not 0.0 < self.local_baseline_factor < 1.0:
            raise ConfigError("local_baseline_factor must be above 0 and below 1")

    def fresh_max_age_s(self, backoff_s: float) -> float:
        """A value may be two pushes old, plus the pause Fleet itself asked for."""
        return 2.0 * self.push_interval_s + backoff_s

    def kept_max_age_s(self, backoff_s: float) -> float:
        """How long a value that is no longer fresh is better than none."""
        return max(self.cached_max_age_s, 2.0 * self.fresh_max_age_s(backoff_s))


class PushOutcome(StrEnum):
    """What became of a push. An answer that blames the request or asks for patience is still an answer."""

    OK = "ok"
    TRANSPORT = "transport"  # no answer: refused, reset, timed out
    AUTH = "auth"  # 401, 403 or a certificate that does not fit
    SERVER_ERROR = "server_error"
    SHED = "shed"  # 429, or 503 with a time to come back
    REFUSED = "refused"  # any other 4xx, or a redirect, which is never followed


UNREACHABLE_AFTER = 3  # pushes in a row
_FAILURES = {PushOutcome.TRANSPORT, PushOutcome.AUTH, PushOutcome.SERVER_ERROR}


def count_failures(failures: int, outcome: PushOutcome) -> int:
    """Failures in a row; shed and refused pushes neither add nor forgive."""
    if outcome is PushOutcome.OK:
        return 0
    return failures + 1 if outcome in _FAILURES else failures


@dataclass(frozen=True, slots=True)
class FleetThreshold:
    """A threshold as Fleet delivered it; `at_s` is our monotonic clock."""

    value: float
    quorum_met: bool
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The last good threshold, and by which way thresholds reach us, each with its own time.

    A poll never counts as header delivery: polling stops only while replies to pushes carry thresholds, and starts
    again when they do not, or when there are no replies at all.
    """

    threshold: FleetThreshold | None = None
    header_at_s: float | None = None
    poll_at_s: float | None = None


def by_header(delivery: Delivery, threshold: FleetThreshold | None, now_s: float) -> Delivery:
    """After a reply that carried a threshold pair; `threshold` is None when its content was refused."""
    return replace(delivery, threshold=threshold or delivery.threshold, header_at_s=now_s)


def by_poll(delivery: Delivery, threshold: FleetThreshold | None, now_s: float) -> Delivery:
    """After an answered poll; a cold-start answer (None) says Fleet is there and leaves the last good value alone."""
    return replace(delivery, threshold=threshold or delivery.threshold, poll_at_s=now_s)


def without_header(delivery: Delivery) -> Delivery:
    """After a reply without a threshold pair."""
    return replace(delivery, header_at_s=None)


def should_poll(delivery: Delivery, now_s: float, max_age_s: float) -> bool:
    """Whether replies to pushes have stopped carrying thresholds."""
    return delivery.header_at_s is None or not 0 <= now_s - delivery.header_at_s <= max_age_s


@dataclass(frozen=True, slots=True)
class ModeDecision:
    """The mode, its threshold, and whether a new straggler may be named; without quorum only open episodes close."""

    mode: DetectionMode
    threshold: float | None = None
    may_raise: bool = False


def decide_mode(
    cached: FleetThreshold | None,
    *,
    reachable: bool,
    is_warm: bool,
    now_s: float,
    policy: ModePolicy,
    backoff_s: float = 0.0,
    usual_score: float | None = None,
) -> ModeDecision:
    """First match wins; there is no gap between fresh and kept, so a usable value is always used."""
    age_s = now_s - cached.at_s if cached is not None else -1.0
    if cached is not None and 0 <= age_s <= policy.kept_max_age_s(backoff_s):
        if cached.quorum_met and age_s <= policy.fresh_max_age_s(backoff_s):
            return ModeDecision(DetectionMode.FLEET, cached.value, may_raise=True)
        if reachable or not cached.quorum_met:
            return ModeDecision(
                DetectionMode.FLEET_CACHED, cached.value, may_raise=cached.quorum_met
            )
        return ModeDecision(DetectionMode.LOCAL_CACHED, cached.value, may_raise=True)
    if is_warm and (cached is not None or not reachable):
        return ModeDecision(
            DetectionMode.LOCAL_BASELINE, local_threshold(usual_score, policy), may_raise=True
        )
    return ModeDecision(DetectionMode.NONE)


def local_threshold(usual_score: float | None, policy: ModePolicy) -> float:
    """The line of a node on its own, in score space: the factor, or less for a node whose usual score is low."""
    factor = policy.local_baseline_factor
    return factor if usual_score is None else min(factor, LOCAL_SHARE * usual_score)
