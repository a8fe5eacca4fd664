"""The baseline of a node: a fast and a slow exponential moving average of each signal.

The averages are stored as they are; the correction for a cold start is applied when they are read.
"""

import math
from dataclasses import dataclass

from ingero.core.health.score import SIGNAL_NAMES, Signals
from ingero.core.setting import check_settings, setting
from ingero.errors import ConfigError

_ZERO = Signals(0.0, 0.0, 0.0, 0.0)
_ALPHA_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinePolicy:
    """How fast the averages move, and when a node counts as warm or degraded."""

    fast_alpha: float = setting(
        0.1, above=0.0, below=1.0, help="Share of the newest sample in the fast average."
    )
    floor_alpha: float = setting(
        0.001,
        above=0.0,
        below=1.0,
        help="Share of the newest sample in the long-term average; must be below `fast_alpha`.",
    )
    warning_ratio: float = setting(
        0.5,
        above=0.0,
        range=(None, 1.0),
        help="Ratio of the fast to the long-term average below which a node is degraded.",
    )
    warmup_samples: int = setting(
        30,
        range=(0, None),
        flag="--warmup-samples",
        help="Samples with work in them before a node is active.",
    )
    floor_warmth_min: float = setting(
        0.01,
        range=(0.0, None),
        below=1.0,
        help="Least value of the long-term average that `warning_ratio` is applied to.",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.floor_alpha < self.fast_alpha:
            raise ConfigError(
                f"floor_alpha: {self.floor_alpha:g} must be below fast_alpha {self.fast_alpha:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Averages after `sample_count` samples.

    `counts` is the number of samples that held each signal, in the order of `SIGNAL_NAMES`.
    """

    sample_count: int = 0
    fast: Signals = _ZERO
    floor: Signals = _ZERO
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)

    def __post_init__(self) -> None:
        for signals in (self.fast, self.floor):
            if not all(
                value is not None and math.isfinite(value) and value >= 0
                for _, value in signals.items()
            ):
                raise ValueError("an average is missing, negative or not finite")
        if self.sample_count < 0 or not all(
            0 <= count <= self.sample_count for count in self.counts
        ):
            raise ValueError(
                "a signal has more samples than the whole baseline, or a count is negative"
            )


def fold(baseline: Baseline, raw: Signals, policy: BaselinePolicy) -> Baseline:
    """Return the baseline after one more sample.

    A missing or non-finite signal leaves its average unchanged.
    """
    fast, floor, counts = {}, {}, []
    for (name, value), count in zip(raw.items(), baseline.counts, strict=True):
        is_present = value is not None and math.isfinite(value)
        fast[name] = _step(
            getattr(baseline.fast, name), value if is_present else None, policy.fast_alpha
        )
        floor[name] = _step(
            getattr(baseline.floor, name), value if is_present else None, policy.floor_alpha
        )
        counts.append(count + is_present)
    t, c, m, p = counts
    return Baseline(
        sample_count=baseline.sample_count + 1,
        fast=Signals(**fast),
        floor=Signals(**floor),
        counts=(t, c, m, p),
    )


def _step(average: float, value: float | None, alpha: float) -> float:
    return average if value is None else alpha * max(value, 0.0) + (1.0 - alpha) * average


def baseline_signals(baseline: Baseline, policy: BaselinePolicy) -> Signals:
    """Return the corrected fast averages; 0 for a signal that was never measured."""
    return _corrected(baseline.fast, baseline.counts, policy.fast_alpha)


def hard_floor(baseline: Baseline, policy: BaselinePolicy) -> Signals:
    """Return the corrected slow averages."""
    return _corrected(baseline.floor, baseline.counts, policy.floor_alpha)


def _corrected(averages: Signals, counts: tuple[int, ...], alpha: float) -> Signals:
    values = {}
    for (name, value), count in zip(averages.items(), counts, strict=True):
        divisor = 1.0 - (1.0 - alpha) ** count
        values[name] = (value or 0.0) / divisor if count > 0 and divisor > 0 else 0.0
    return Signals(**values)


def relative_signals(baseline: Baseline, raw: Signals, policy: BaselinePolicy) -> Signals:
    """Return the signals to score: throughput relative to its baseline, the others as measured.

    Call this before `fold` with the same sample; otherwise the sample pulls its own ratio towards
    one.
    """
    if raw.throughput is None:
        return raw
    reference = baseline_signals(baseline, policy).throughput or 0.0
    rate = raw.throughput if math.isfinite(raw.throughput) else 0.0
    return Signals(rate / reference if reference > 0 else 0.0, raw.compute, raw.memory, raw.cpu)


def is_warm(baseline: Baseline, policy: BaselinePolicy) -> bool:
    """Return whether the baseline has enough samples."""
    return baseline.sample_count >= policy.warmup_samples


def is_degraded(baseline: Baseline, policy: BaselinePolicy) -> bool:
    """Return whether a signal has fallen far below its own long-term average."""
    if not is_warm(baseline, policy):
        return False
    fast, floor = baseline_signals(baseline, policy), hard_floor(baseline, policy)
    for name in SIGNAL_NAMES:
        level = getattr(floor, name)
        if (
            level > 0
            and level >= policy.floor_warmth_min
            and getattr(fast, name) / level < policy.warning_ratio
        ):
            return True
    return False


def same_alphas(fast_alpha: float, floor_alpha: float, policy: BaselinePolicy) -> bool:
    """Return whether averages computed with these factors can be used under `policy`."""
    return (
        abs(fast_alpha - policy.fast_alpha) < _ALPHA_TOLERANCE
        and abs(floor_alpha - policy.floor_alpha) < _ALPHA_TOLERANCE
    )
