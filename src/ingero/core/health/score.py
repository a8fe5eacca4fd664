"""The health score: four signals, their weights, and the penalty for a very low signal."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

from ingero.core.setting import check_settings, setting
from ingero.errors import ConfigError

SIGNAL_NAMES = ("throughput", "compute", "memory", "cpu")


@dataclass(frozen=True, slots=True)
class Signals:
    """One value per signal; None means not measured, which differs from zero."""

    throughput: float | None = None
    compute: float | None = None
    memory: float | None = None
    cpu: float | None = None

    def items(self) -> Iterator[tuple[str, float | None]]:
        """Yield name and value in the order of `SIGNAL_NAMES`."""
        for name in SIGNAL_NAMES:
            yield name, getattr(self, name)


NO_SIGNALS = Signals()


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weight of each signal in the score; the four weights sum to one."""

    throughput: float = setting(0.40, above=0.0, help="Weight of the throughput signal.")
    compute: float = setting(0.25, above=0.0, help="Weight of the compute signal.")
    memory: float = setting(0.20, above=0.0, help="Weight of the memory signal.")
    cpu: float = setting(0.15, above=0.0, help="Weight of the CPU signal; all four sum to 1.")

    def __post_init__(self) -> None:
        check_settings(self)
        values = [getattr(self, field.name) for field in fields(self)]
        if not abs(sum(values) - 1.0) <= 1e-6:
            raise ConfigError(
                f"weights: the four weights sum to {sum(values):g}; they must sum to 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePolicy:
    """Weights, and the zone in which the lowest signal reduces the score, down to half of it."""

    weights: Weights = Weights()
    degradation_zone: float = setting(
        0.35,
        range=(0.0, 1.0),
        help="Value of the lowest signal below which it starts to reduce the score.",
    )
    penalty_floor: float = setting(
        0.25,
        range=(0.0, 1.0),
        help="Value of the lowest signal at which the score is halved; below `degradation_zone`.",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.penalty_floor < self.degradation_zone:
            raise ConfigError(
                f"penalty_floor: {self.penalty_floor:g} must be below "
                f"degradation_zone {self.degradation_zone:g}"
            )


@dataclass(frozen=True, slots=True)
class Score:
    """A score with the clamped signals it was computed from.

    Anomalies are (signal, "NaN" or "Inf").
    """

    value: float
    signals: Signals
    anomalies: tuple[tuple[str, str], ...] = ()


def compute_score(signals: Signals, policy: ScorePolicy) -> Score | None:
    """Return the weighted sum of the measured signals times the penalty.

    Return None if no signal was measured.
    """
    clamped: dict[str, float] = {}
    anomalies = []
    for name, value in signals.items():
        if value is None:
            continue
        if not math.isfinite(value):
            anomalies.append((name, "NaN" if math.isnan(value) else "Inf"))
            value = 0.0  # noqa: PLW2901 - an invalid reading counts as the worst one
        clamped[name] = min(max(value, 0.0), 1.0)
    if not clamped:
        return None
    weight = sum(getattr(policy.weights, name) for name in clamped)
    raw = sum(getattr(policy.weights, name) * value for name, value in clamped.items()) / weight
    value = min(max(raw * penalty(min(clamped.values()), policy), 0.0), 1.0)
    return Score(value, Signals(**clamped), tuple(anomalies))


def work_score(signals: Signals, baseline: Signals, policy: ScorePolicy) -> float | None:
    """Return the score with at least as much free memory and CPU as in the baseline.

    If that score is also too low, the node's own work is slower. The
    result is None where neither throughput nor compute was measured, because then nothing describes
    the node's own work.
    """
    if signals.throughput is None and signals.compute is None:
        return None
    memory, cpu = _at_least(signals.memory, baseline.memory), _at_least(signals.cpu, baseline.cpu)
    score = compute_score(Signals(signals.throughput, signals.compute, memory, cpu), policy)
    return score.value if score is not None else None


def _at_least(value: float | None, lowest: float | None) -> float | None:
    return value if value is None or lowest is None or not value < lowest else lowest


def penalty(lowest: float, policy: ScorePolicy) -> float:
    """Return 1.0 from the degradation zone up, 0.5 at the floor, and a linear value between."""
    if lowest >= policy.degradation_zone:
        return 1.0
    if lowest <= policy.penalty_floor:
        return 0.5
    return 0.5 + 0.5 * (lowest - policy.penalty_floor) / (
        policy.degradation_zone - policy.penalty_floor
    )


def dominant_signal(raw: Signals, baseline: Signals) -> str:
    """Return the signal that lost the largest share of its baseline value, or `unknown`.

    Values are compared in the same unit: a raw rate with a raw rate, a ratio with a ratio. Of equal
    losses the first in the order of `SIGNAL_NAMES` is returned.
    """
    best, largest = "unknown", 0.0
    for name, value in raw.items():
        reference = getattr(baseline, name)
        if value is None or reference is None or not reference > 0 or not value < reference:
            continue
        drop = (reference - value) / reference
        if drop > largest:
            best, largest = name, drop
    return best
