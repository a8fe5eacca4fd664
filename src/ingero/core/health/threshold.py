"""The peer threshold of one cluster: the published formula, and what we add around it, each step by name.

raw      median - k · 1.4826 · MAD over the active nodes (``compute_threshold``)
clamp    raw into [min, max]
EMA      advanced every push interval, standing still in panic and without quorum
served   min(EMA, lowest median of the last 30 s - min_gap), never outside [min, 0.99]
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from ingero.core.robust import MAD_TO_SIGMA, Column, median_and_mad
from ingero.core.setting import check_settings, setting
from ingero.errors import ConfigError

SERVED_MAX = 0.99  # agents refuse anything above
SERVED_MIN = 0.10  # and anything below
GAP_WINDOW_S = 30.0  # a fleet that falls together takes the line down with it for this long
PANIC_SHARE = (
    0.5  # more than this share of nodes below the line is a fleet event, not that many stragglers
)
PANIC_FALL = 0.30  # the median losing more than this share in one tick is one too
PANIC_RECOVERED = 0.90  # of the median before the fall
PANIC_MAX_S = 300.0  # then the new level is the normal one


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdPolicy:
    """How a cluster's threshold is made; out-of-range values raise ConfigError naming the key."""

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
        """Silence after which a node leaves its cluster."""
        return self.push_interval_s * self.ttl_multiplier


class PanicReason(StrEnum):
    """Why a whole cluster, not one of its nodes, is the news."""

    MAJORITY_BELOW = "majority_below"
    MEDIAN_FELL = "median_fell"


@dataclass(frozen=True, slots=True)
class Threshold:
    """The published formula on one set of scores; `value` is neither clamped nor smoothed."""

    value: float
    median: float
    mad: float
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterThreshold:
    """Everything `update_threshold` knows about one cluster. `served` is None until there was a score."""

    stats: Threshold | None = None  # None while no node is active
    ema: float | None = None
    ema_at_s: float = 0.0
    served: float | None = None
    quorum_met: bool = False
    quorum_seen_s: float = 0.0
    coverage: float = 0.0
    coverage_low: bool = False
    below: int = 0  # active nodes under `served`
    panic: PanicReason | None = None
    panic_since_s: float = 0.0
    median_before: float = 0.0  # of the panic
    low_medians: tuple[
        tuple[float, float], ...
    ] = ()  # (at_s, median): rising, the first is the lowest in the window


def compute_threshold(scores: ArrayLike, policy: ThresholdPolicy) -> Threshold:
    """median - k · 1.4826 · MAD; raises ValueError without scores."""
    column = np.asarray(scores, dtype=np.float64)
    centre, mad = median_and_mad(column)
    return Threshold(centre - policy.k * MAD_TO_SIGMA * mad, centre, mad, column.size)


def clamp_raw(value: float, policy: ThresholdPolicy) -> float:
    """The raw threshold inside [min, max]."""
    return min(max(value, policy.min), policy.max)


def smooth(previous: float | None, value: float, alpha: float) -> float:
    """One step of the exponential moving average; the first value seeds it."""
    return value if previous is None else previous + alpha * (value - previous)


def update_threshold(
    state: ClusterThreshold, scores: ArrayLike, expected: int, now_s: float, policy: ThresholdPolicy
) -> ClusterThreshold:
    """One tick (every second): `scores` are those of the active nodes, `expected` how many nodes there should be."""
    column = np.asarray(scores, dtype=np.float64)
    coverage = column.size / expected if expected > 0 else 1.0
    state = replace(state, coverage=coverage, coverage_low=coverage < policy.coverage_fraction)
    if column.size == 0:
        return _without_scores(state, now_s, policy)
    stats = compute_threshold(column, policy)
    state = _follow_panic(state, stats, column, now_s, policy)
    state = _follow_quorum(state, stats, column, now_s, policy)
    state = _follow_ema(state, stats, now_s, policy)
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


def _follow_quorum(
    state: ClusterThreshold, stats: Threshold, scores: Column, now_s: float, policy: ThresholdPolicy
) -> ClusterThreshold:
    """Enough nodes to compare, and not a majority under the lowest line we could draw."""
    enough = stats.nodes >= policy.statistical_min
    if enough and not _share_below(scores, policy.min) > PANIC_SHARE:
        return replace(state, quorum_met=True, quorum_seen_s=now_s)
    expired = now_s - state.quorum_seen_s > policy.ttl_s
    return replace(state, quorum_met=False, ema=None if expired else state.ema)


def _follow_ema(
    state: ClusterThreshold, stats: Threshold, now_s: float, policy: ThresholdPolicy
) -> ClusterThreshold:
    due = state.ema is None or now_s - state.ema_at_s >= policy.push_interval_s
    if not due or not state.quorum_met or state.panic:
        return state
    value = smooth(state.ema, clamp_raw(stats.value, policy), policy.ema_alpha)
    return replace(state, ema=value, ema_at_s=now_s)


def _follow_panic(
    state: ClusterThreshold, stats: Threshold, scores: Column, now_s: float, policy: ThresholdPolicy
) -> ClusterThreshold:
    reason = _panic_reason(state, stats, scores, policy)
    if state.panic is None:
        if reason is None or state.stats is None:
            return state
        return replace(state, panic=reason, panic_since_s=now_s, median_before=state.stats.median)
    if now_s - state.panic_since_s >= PANIC_MAX_S:
        return replace(state, panic=None, ema=None)  # the new level is adopted
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


def _share_below(scores: Column, line: float) -> float:
    return int(np.count_nonzero(scores < line)) / scores.size


def _lowest(
    window: tuple[tuple[float, float], ...], value: float, now_s: float
) -> tuple[tuple[float, float], ...]:
    """The window without what is too old or can never be the lowest again, plus the new value."""
    kept = tuple(entry for entry in window if now_s - entry[0] <= GAP_WINDOW_S and entry[1] < value)
    return (*kept, (now_s, value))
