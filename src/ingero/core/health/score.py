"""The health score: four signals, their weights and the penalty for one that is nearly gone."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

from ingero.core.setting import check_settings, setting
from ingero.errors import ConfigError

SIGNAL_NAMES = ("throughput", "compute", "memory", "cpu")


@dataclass(frozen=True, slots=True)
class Signals:
    """One value per signal; None is a signal that was not measured, which is not zero."""

    throughput: float | None = None
    compute: float | None = None
    memory: float | None = None
    cpu: float | None = None

    def items(self) -> Iterator[tuple[str, float | None]]:
        """Name and value in the fixed order of `SIGNAL_NAMES`."""
        for name in SIGNAL_NAMES:
            yield name, getattr(self, name)


NO_SIGNALS = Signals()


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What each signal contributes to the score; they sum to one."""

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
    """Weights, and the zone in which the lowest signal drags the whole score down to half."""

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
    """A score with the clamped signals it was made of; anomalies are (signal, "NaN" or "Inf")."""

    value: float
    signals: Signals
    anomalies: tuple[tuple[str, str], ...] = ()


def compute_score(signals: Signals, policy: ScorePolicy) -> Score | None:
    """Weighted sum times penalty, over the signals that were measured; None when none was."""
    clamped: dict[str, float] = {}
    anomalies = []
    for name, value in signals.items():
        if value is None:
            continue
        if not math.isfinite(value):
            anomalies.append((name, "NaN" if math.isnan(value) else "Inf"))
            value = 0.0  # noqa: PLW2901 - a broken reading is visible as the worst one, and reported
        clamped[name] = min(max(value, 0.0), 1.0)
    if not clamped:
        return None
    weight = sum(getattr(policy.weights, name) for name in clamped)
    raw = sum(getattr(policy.weights, name) * value for name, value in clamped.items()) / weight
    value = min(max(raw * penalty(min(clamped.values()), policy), 0.0), 1.0)
    return Score(value, Signals(**clamped), tuple(anomalies))


def work_score(signals: Signals, usual: Signals, policy: ScorePolicy) -> float | None:
    """The score this node would have if its host were no busier than usual: below the line, its own work is slower.

    None where neither throughput nor compute was measured, and nothing tells how its work goes.
    """
    if signals.throughput is None and signals.compute is None:
        return None
    memory, cpu = _no_worse(signals.memory, usual.memory), _no_worse(signals.cpu, usual.cpu)
    score = compute_score(Signals(signals.throughput, signals.compute, memory, cpu), policy)
    return score.value if score is not None else None


def _no_worse(value: float | None, usual: float | None) -> float | None:
    return value if value is None or usual is None or not value < usual else usual


def penalty(lowest: float, policy: ScorePolicy) -> float:
    """1.0 above the degradation zone, 0.5 at the floor, a straight line between."""
    if lowest >= policy.degradation_zone:
        return 1.0
    if lowest <= policy.penalty_floor:
        return 0.5
    return 0.5 + 0.5 * (lowest - policy.penalty_floor) / (
        policy.degradation_zone - policy.penalty_floor
    )


def dominant_signal(raw: Signals, usual: Signals) -> str:
    """The signal that lost the largest share of its usual value; `unknown` when none fell. Ties: fixed order.

    Both sides are in the same unit: raw rate against raw rate, ratio against ratio.
    """
    best, largest = "unknown", 0.0
    for name, value in raw.items():
        reference = getattr(usual, name)
        if value is None or reference is None or not reference > 0 or not value < reference:
            continue
        drop = (reference - value) / reference
        if drop > largest:
            best, largest = name, drop
    return best
