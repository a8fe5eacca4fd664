"""The threshold of one cluster: the published formula and the steps we add to it.

raw      median - k · 1.4826 · MAD over the active nodes (``compute_threshold``)
clamp    raw limited to [min, max]
EMA      updated every push interval, but not in panic and not without quorum
served   min(EMA, lowest median of the last 30 s - min_gap), always within [min, 0.99]
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from ingero.contract.threshold import QuorumReason
from ingero.core.robust import MAD_TO_SIGMA, Column, median_and_mad
from ingero.core.setting import check_settings, setting
from ingero.errors import ConfigError

SERVED_MAX = 0.99  # agents reject higher values
SERVED_MIN = 0.10  # and lower ones
GAP_WINDOW_S = 30.0  # how long the lowest median of a cluster keeps the threshold down
PANIC_SHARE = 0.5  # a larger share of nodes below the threshold is a panic, not many stragglers
PANIC_FALL = 0.30  # so is a median that loses more than this share in one tick
PANIC_RECOVERED = 0.90  # of the median before the panic
PANIC_MAX_S = 300.0  # after this long the new level is accepted as normal


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdPolicy:
    """How a cluster's threshold is computed.

    An out-of-range value raises ConfigError with its key.
    """

    k: float = setting(
        2.0,
        range=(1.0, 4.0),
        help="Robust standard deviations below the median at which a node counts as slow.",
    )
    ema_alpha: float = setting(
        0.2,
        above=0.0,
        range=(None, 1.0),
        help="Share of the newest raw value in the smoothed threshold, once per push interval.",
    )
    min: float = setting(
        0.10,
        range=(SERVED_MIN, None),
        below=SERVED_MAX,
        help="Lower limit of the raw value and of the threshold that agents receive.",
    )
    max: float = setting(
        0.90,
        above=SERVED_MIN,
        range=(None, SERVED_MAX),
        help="Upper limit of the raw value; must be above `min`.",
    )
    min_gap: float = setting(
        0.02,
        range=(0.0, None),
        below=0.5,
        help="Least distance of the threshold below the lowest median of the last 30 s.",
    )
    statistical_min: int = setting(
        5, range=(1, None), help="Active nodes that are needed for a quorum."
    )
    coverage_fraction: float = setting(
        0.80,
        range=(0.0, 1.0),
        help="Share of the expected nodes below which `coverage_low` is 1; blocks nothing.",
    )
    push_interval_s: float = setting(
        10.0,
        key="push_interval",
        duration=True,
        range=(1.0, 3600.0),
        help="Interval at which agents are expected to push.",
    )
    ttl_multiplier: int = setting(
        5,
        range=(2, 1000),
        help="Push intervals without a push after which a node leaves the statistics.",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.min < self.max:
            raise ConfigError(
                f"max: {self.max:g} is out of range; allowed: above min, at most {SERVED_MAX}"
            )

    @property
    def ttl_s(self) -> float:
        """How long after its last push a node still counts as active."""
        return self.push_interval_s * self.ttl_multiplier


class PanicReason(StrEnum):
    """Why a cluster is in panic."""

    MAJORITY_BELOW = "majority_below"
    MEDIAN_FELL = "median_fell"


@dataclass(frozen=True, slots=True)
class Threshold:
    """The published formula applied to one set of scores.

    `value` is neither clamped nor smoothed.
    """

    value: float
    median: float
    mad: float
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterThreshold:
    """The state of `update_threshold` for one cluster. `served` is None before the first score."""

    stats: Threshold | None = None  # None while no node is active
    ema: float | None = None
    ema_at_s: float = 0.0
    served: float | None = None
    quorum_met: bool = False
    quorum_seen_s: float = 0.0
    coverage: float = 0.0
    coverage_low: bool = False
    below: int = 0  # active nodes below `served`
    panic: PanicReason | None = None
    panic_since_s: float = 0.0
    median_before: float = 0.0  # before the panic
    low_medians: tuple[tuple[float, float], ...] = ()  # (at_s, median), lowest of the window first


def reason_without_quorum(state: ClusterThreshold, policy: ThresholdPolicy) -> QuorumReason | None:
    """Return why there is no quorum, None where there is one.

    Few nodes after a panic are what is left of it: they are not compared with their own past.
    """
    if state.quorum_met:
        return None
    enough = state.stats is not None and state.stats.nodes >= policy.statistical_min
    return QuorumReason.PANIC if state.panic or enough else QuorumReason.FEW_NODES


def compute_threshold(scores: ArrayLike, policy: ThresholdPolicy) -> Threshold:
    """Return median - k · 1.4826 · MAD of the scores; raise ValueError without scores."""
    column = np.asarray(scores, dtype=np.float64)
    centre, mad = median_and_mad(column)
    return Threshold(centre - policy.k * MAD_TO_SIGMA * mad, centre, mad, column.size)


def clamp_raw(value: float, policy: ThresholdPolicy) -> float:
    """Limit the raw threshold to [min, max]."""
    return min(max(value, policy.min), policy.max)


def smooth(previous: float | None, value: float, alpha: float) -> float:
    """Return the next value of the exponential moving average; the first value starts it."""
    return value if previous is None else previous + alpha * (value - previous)


def update_threshold(
    state: ClusterThreshold, scores: ArrayLike, expected: int, now_s: float, policy: ThresholdPolicy
) -> ClusterThreshold:
    """Return the state after one tick (every second).

    `scores` are those of the active nodes; `expected` is the number of nodes there should be.
    """
    column = np.asarray(scores, dtype=np.float64)
    coverage = column.size / expected if expected > 0 else 1.0
    state = replace(state, coverage=coverage, coverage_low=coverage < policy.coverage_fraction)
    if column.size == 0:
        return _without_scores(state, now_s, policy)
    stats = compute_threshold(column, policy)
    state = _update_panic(state, stats, column, now_s, policy)
    state = _update_quorum(state, stats, column, now_s, policy)
    state = _update_ema(state, stats, now_s, policy)
    low_medians = _lowest(state.low_medians, stats.median, now_s)
    smoothed = clamp_raw(stats.value, policy) if state.ema is None else state.ema
    served = min(max(min(smoothed, low_medians[0][1] - policy.min_gap), policy.min), SERVED_MAX)
    below = int(np.count_nonzero(column < served))
    return replace(state, stats=stats, low_medians=low_medians, served=served, below=below)


def _without_scores(
    state: ClusterThreshold, now_s: float, policy: ThresholdPolicy
) -> ClusterThreshold:
    if now_s - state.quorum_seen_s > policy.ttl_s:
        return ClusterThreshold(coverage=state.coverage, coverage_low=state.coverage_low)
    return replace(state, stats=None, quorum_met=False, below=0, panic=None)


def _update_quorum(
    state: ClusterThreshold, stats: Threshold, scores: Column, now_s: float, policy: ThresholdPolicy
) -> ClusterThreshold:
    """Quorum needs enough nodes, and not most of them below the lowest possible threshold."""
    enough = stats.nodes >= policy.statistical_min
    if enough and not _share_below(scores, policy.min) > PANIC_SHARE:
        return replace(state, quorum_met=True, quorum_seen_s=now_s)
    expired = now_s - state.quorum_seen_s > policy.ttl_s
    return replace(state, quorum_met=False, ema=None if expired else state.ema)


def _update_ema(
    state: ClusterThreshold, stats: Threshold, now_s: float, policy: ThresholdPolicy
) -> ClusterThreshold:
    due = state.ema is None or now_s - state.ema_at_s >= policy.push_interval_s
    if not due or not state.quorum_met or state.panic:
        return state
    value = smooth(state.ema, clamp_raw(stats.value, policy), policy.ema_alpha)
    return replace(state, ema=value, ema_at_s=now_s)


def _update_panic(
    state: ClusterThreshold, stats: Threshold, scores: Column, now_s: float, policy: ThresholdPolicy
) -> ClusterThreshold:
    reason = _panic_reason(state, stats, scores, policy)
    if state.panic is None:
        if reason is None or state.stats is None:
            return state
        return replace(state, panic=reason, panic_since_s=now_s, median_before=state.stats.median)
    if now_s - state.panic_since_s >= PANIC_MAX_S:
        return replace(state, panic=None, ema=None)  # the new level is accepted
    if reason is None and stats.median >= PANIC_RECOVERED * state.median_before:
        return replace(state, panic=None)
    return state


def _panic_reason(
    state: ClusterThreshold, stats: Threshold, scores: Column, policy: ThresholdPolicy
) -> PanicReason | None:
    if state.stats is None or stats.nodes < policy.statistical_min:
        return None
    if stats.median < (1.0 - PANIC_FALL) * state.stats.median:
        return PanicReason.MEDIAN_FELL
    if state.served is not None and _share_below(scores, state.served) > PANIC_SHARE:
        return PanicReason.MAJORITY_BELOW
    return None


def _share_below(scores: Column, value: float) -> float:
    return int(np.count_nonzero(scores < value)) / scores.size


def _lowest(
    window: tuple[tuple[float, float], ...], value: float, now_s: float
) -> tuple[tuple[float, float], ...]:
    """Add a median to the window and drop those too old or too high to become the lowest."""
    kept = tuple(entry for entry in window if now_s - entry[0] <= GAP_WINDOW_S and entry[1] < value)
    return (*kept, (now_s, value))
