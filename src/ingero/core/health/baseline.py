"""What is usual for this node: two exponential moving averages per signal, fast and slow, corrected for a cold start.

Stored values are the uncorrected ones, so that a saved baseline is plain numbers; reading applies the correction.
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
    """How fast the averages follow, and when a node counts as warm or as worn down."""

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
    """Averages after `sample_count` samples; `counts` says how many of them held each signal (t, c, m, cpu)."""

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
            raise ValueError("sample counts do not fit together")


def fold(baseline: Baseline, raw: Signals, policy: BaselinePolicy) -> Baseline:
    """The baseline after one more sample. Signals that are missing or not finite leave their average alone."""
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


def usual(baseline: Baseline, policy: BaselinePolicy) -> Signals:
    """The fast averages, corrected; 0 for a signal that was never seen."""
    return _corrected(baseline.fast, baseline.counts, policy.fast_alpha)


def hard_floor(baseline: Baseline, policy: BaselinePolicy) -> Signals:
    """The slow averages, corrected."""
    return _corrected(baseline.floor, baseline.counts, policy.floor_alpha)


def _corrected(averages: Signals, counts: tuple[int, ...], alpha: float) -> Signals:
    values = {}
    for (name, value), count in zip(averages.items(), counts, strict=True):
        divisor = 1.0 - (1.0 - alpha) ** count
        values[name] = (value or 0.0) / divisor if count > 0 and divisor > 0 else 0.0
    return Signals(**values)


def relative_signals(baseline: Baseline, raw: Signals, policy: BaselinePolicy) -> Signals:
    """What is scored: throughput as a share of the usual one, the rest as measured.

    Read it before folding the same sample: the other order pulls the ratio toward one.
    """
    if raw.throughput is None:
        return raw
    reference = usual(baseline, policy).throughput or 0.0
    rate = raw.throughput if math.isfinite(raw.throughput) else 0.0
    return Signals(rate / reference if reference > 0 else 0.0, raw.compute, raw.memory, raw.cpu)


def is_warm(baseline: Baseline, policy: BaselinePolicy) -> bool:
    """Enough samples to say what is usual."""
    return baseline.sample_count >= policy.warmup_samples


def is_degraded(baseline: Baseline, policy: BaselinePolicy) -> bool:
    """Some signal has fallen far below its own long-term level."""
    if not is_warm(baseline, policy):
        return False
    fast, floor = usual(baseline, policy), hard_floor(baseline, policy)
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
    """Whether averages made with these factors mean the same under `policy`."""
    return (
        abs(fast_alpha - policy.fast_alpha) < _ALPHA_TOLERANCE
        and abs(floor_alpha - policy.floor_alpha) < _ALPHA_TOLERANCE
    )
