"""Parameters of the verdict engine, and the decision limit that follows from them."""

from dataclasses import dataclass

import numpy as np

from ingero.core.robust import Column
from ingero.errors import ConfigError

CLIP = 4.0  # one sample never counts for more than four scales
K_MIN, K_MAX = 0.75, 1.5  # in noise wider than the effect, only whole scales are looked for
POOLED = 4  # members whose histories count as one long one; more share the same noise
BASELINE_ERRORS = 3.0  # standard errors that a baseline may be wrong by
SCALE_FLOOR = 0.003  # of own time: no timer and no job is steadier
BIAS_CAP = 0.05  # a baseline excuses no more than this: a node slow from the start stays visible
SAFETY = 1.72  # real tails are heavier than the normal ones of the formula
SHORT_HISTORY = 45.0  # samples: so short a history doubles the decision limit
SIEGMUND_OVERSHOOT = 1.166


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictPolicy:
    """Parameters that operators may want to differ; everything else is a constant."""

    min_effect: float = 0.03  # the slowdown the fast channel is tuned for
    gate: float = 0.015  # median excess of the last five samples below which nothing is confirmed
    false_alarms_per_1000_node_hours: float = 0.2
    warmup_samples: int = 30
    guard_share: float = 0.40  # of a cohort slowing down together: a fleet event, nobody is blamed
    stale_s: float = 30.0  # a member silent for this long is not live
    forget_s: float = 300.0  # a member silent for this long is not expected any more
    max_members: int = 100_000

    def __post_init__(self) -> None:
        _check("min_effect", self.min_effect, 0.005 <= self.min_effect <= 0.5, "0.005 to 0.5")
        _check("gate", self.gate, 0.0 < self.gate <= self.min_effect, "above 0, at most min_effect")
        budget = self.false_alarms_per_1000_node_hours
        _check("false_alarms_per_1000_node_hours", budget, 0.001 <= budget <= 1000, "0.001 to 1000")
        _check("warmup_samples", self.warmup_samples, 20 <= self.warmup_samples <= 240, "20 to 240")
        _check("guard_share", self.guard_share, 0.0 < self.guard_share < 0.5, "above 0, below 0.5")
        _check("stale_s", self.stale_s, self.stale_s > 0, "above 0")
        _check("forget_s", self.forget_s, self.forget_s >= self.stale_s, "at least stale_s")
        _check("max_members", self.max_members, self.max_members >= 1, "1 or more")


def _check(key: str, value: float, is_valid: bool, allowed: str) -> None:
    if not is_valid:
        raise ConfigError(f"verdict.{key}: {value} is out of range; allowed: {allowed}")


def drift_allowance(
    scale: Column, history: Column, correlation: float, policy: VerdictPolicy
) -> Column:
    """Return k of the CUSUM: half the effect looked for, in scales.

    It is never less than the baseline may be wrong by.
    """
    doubt = BASELINE_ERRORS * inflation_of(correlation) / np.sqrt(history)
    return np.clip(np.maximum(policy.min_effect / (2 * scale), doubt), K_MIN, K_MAX)


def inflation_of(correlation: float) -> float:
    """Return how much wider the mean of autocorrelated samples spreads than of independent ones."""
    return float(np.sqrt((1 + correlation) / (1 - correlation)))


def samples_between_alarms(sample_s: Column, policy: VerdictPolicy) -> Column:
    """Return how many samples of one member lie between two false alarms that the budget allows.

    A sample stands for about a second or longer.
    """
    return 3600.0 / np.maximum(1.0, sample_s) * 1000 / policy.false_alarms_per_1000_node_hours


def decision_limit(
    k: Column, history: Column, *, correlation: float, between_alarms: float
) -> Column:
    """Return the decision limit h of the CUSUM, from the false-alarm budget.

    Siegmund's approximation gives the mean time between false alarms of a CUSUM on independent
    normal samples, (exp(2kb) - 1 - 2kb) / 2k² with b = h + 1.166. It is solved for h by fixed-point
    steps and then widened for heavy tails, short histories and autocorrelation.
    """
    reach = np.log(2 * k**2 * between_alarms + 1)
    for _ in range(3):
        reach = np.log(2 * k**2 * between_alarms + 1 + reach)
    plain = np.maximum(reach / (2 * k) - SIEGMUND_OVERSHOOT, 1.0)
    widened = plain * (1 + (SHORT_HISTORY / history) ** 2)
    return np.asarray(SAFETY * widened * inflation_of(correlation), np.float64)
