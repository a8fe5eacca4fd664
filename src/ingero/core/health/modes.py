"""The detection mode: which threshold an agent uses now, and whether it may raise a new episode."""

from dataclasses import dataclass, replace
from enum import StrEnum

from ingero.contract.threshold import QuorumReason
from ingero.contract.types import DetectionMode
from ingero.errors import ConfigError

LOCAL_SHARE = 0.9  # of the baseline score: a node that always scores 0.40 is not slow at 0.40


@dataclass(frozen=True, slots=True, kw_only=True)
class ModePolicy:
    """How old a threshold may be.

    Ages scale with the push interval, so that a long one never looks like an outage.
    """

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
        """Return the age up to which a threshold is fresh.

        That is two push intervals plus the pause Fleet asked for.
        """
        return 2.0 * self.push_interval_s + backoff_s

    def kept_max_age_s(self, backoff_s: float) -> float:
        """Return the age up to which a threshold that is no longer fresh is still used."""
        return max(self.cached_max_age_s, 2.0 * self.fresh_max_age_s(backoff_s))


class PushOutcome(StrEnum):
    """The outcome of a push. A refused or shed push was answered, so Fleet is reachable."""

    OK = "ok"
    TRANSPORT = "transport"  # no answer: connection refused, reset or timed out
    AUTH = "auth"  # 401, 403 or a certificate that was not accepted
    SERVER_ERROR = "server_error"
    SHED = "shed"  # 429, or 503 with Retry-After
    REFUSED = "refused"  # any other 4xx, or a redirect, which is never followed


UNREACHABLE_AFTER = 3  # pushes in a row
_FAILURES = {PushOutcome.TRANSPORT, PushOutcome.AUTH, PushOutcome.SERVER_ERROR}


def count_failures(failures: int, outcome: PushOutcome) -> int:
    """Return the number of failures in a row; shed and refused pushes leave it unchanged."""
    if outcome is PushOutcome.OK:
        return 0
    return failures + 1 if outcome in _FAILURES else failures


@dataclass(frozen=True, slots=True)
class FleetThreshold:
    """A threshold received from Fleet at `at_s` of the monotonic clock."""

    value: float
    quorum_met: bool
    at_s: float
    reason: QuorumReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The last valid threshold, and when a threshold last arrived by reply header and by poll.

    `quorum_seen` is True once a threshold with quorum arrived. A poll never counts as delivery by
    header: the agent polls whenever replies to pushes carry no threshold, or when there are no
    replies.
    """

    threshold: FleetThreshold | None = None
    header_at_s: float | None = None
    poll_at_s: float | None = None
    quorum_seen: bool = False


def by_header(delivery: Delivery, threshold: FleetThreshold | None, now_s: float) -> Delivery:
    """Record a reply with both threshold headers.

    `threshold` is None when their content was rejected.
    """
    return replace(_with_threshold(delivery, threshold), header_at_s=now_s)


def by_poll(delivery: Delivery, threshold: FleetThreshold | None, now_s: float) -> Delivery:
    """Record an answered poll; after a cold start (None) the last valid threshold is kept."""
    return replace(_with_threshold(delivery, threshold), poll_at_s=now_s)


def _with_threshold(delivery: Delivery, threshold: FleetThreshold | None) -> Delivery:
    if threshold is None:
        return delivery
    quorum_seen = delivery.quorum_seen or threshold.quorum_met
    return replace(delivery, threshold=threshold, quorum_seen=quorum_seen)


def without_header(delivery: Delivery) -> Delivery:
    """Record a reply without threshold headers."""
    return replace(delivery, header_at_s=None)


def should_poll(delivery: Delivery, now_s: float, max_age_s: float) -> bool:
    """Return whether replies to pushes no longer carry thresholds."""
    return delivery.header_at_s is None or not 0 <= now_s - delivery.header_at_s <= max_age_s


@dataclass(frozen=True, slots=True)
class ModeDecision:
    """The mode, its threshold, and whether a new episode may be raised.

    Without quorum, open episodes can only close.
    """

    mode: DetectionMode
    threshold: float | None = None
    may_raise: bool = False


def is_alone(threshold: FleetThreshold, quorum_seen: bool) -> bool:
    """Return whether a node has too few peers, so that its own baseline must judge it.

    A Fleet of an earlier version sends no reason; there, a lost quorum may be a panic.
    """
    if threshold.quorum_met:
        return False
    if threshold.reason is None:
        return not quorum_seen
    return threshold.reason is QuorumReason.FEW_NODES


def decide_mode(
    cached: FleetThreshold | None,
    *,
    quorum_seen: bool = False,
    reachable: bool,
    is_warm: bool,
    now_s: float,
    policy: ModePolicy,
    backoff_s: float = 0.0,
    baseline_score: float | None = None,
) -> ModeDecision:
    """Return the first mode that applies.

    Fresh and kept ages leave no gap, so a usable threshold is always used.
    """
    age_s = now_s - cached.at_s if cached is not None else -1.0
    local = ModeDecision(
        DetectionMode.LOCAL_BASELINE, local_limit(baseline_score, policy), may_raise=True
    )
    if cached is not None and 0 <= age_s <= policy.kept_max_age_s(backoff_s):
        # Before its own score is known, a node that is always low would look slow.
        if is_warm and baseline_score is not None and is_alone(cached, quorum_seen):
            return local
        if cached.quorum_met and age_s <= policy.fresh_max_age_s(backoff_s):
            return ModeDecision(DetectionMode.FLEET, cached.value, may_raise=True)
        if reachable or not cached.quorum_met:
            return ModeDecision(
                DetectionMode.FLEET_CACHED, cached.value, may_raise=cached.quorum_met
            )
        return ModeDecision(DetectionMode.LOCAL_CACHED, cached.value, may_raise=True)
    if is_warm and (cached is not None or not reachable):
        return local
    return ModeDecision(DetectionMode.NONE)


def local_limit(baseline_score: float | None, policy: ModePolicy) -> float:
    """Return the limit for a node without Fleet: the factor, or less for a low baseline score."""
    factor = policy.local_baseline_factor
    return factor if baseline_score is None else min(factor, LOCAL_SHARE * baseline_score)
