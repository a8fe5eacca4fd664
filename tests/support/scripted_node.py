"""A node whose signals follow a script; they drive the real agent."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from ingero.core.health.observation import Observation
from ingero.core.health.score import SIGNAL_NAMES
from ingero.sim.signals import HEALTHY_LAUNCHES, NOISE, simulate_signals


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From `at_s` on, signals go to `level` times their healthy value within `over_s` seconds."""

    at_s: float
    level: float
    over_s: float = 0.0
    signals: tuple[str, ...] = ("throughput",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Oscillation:
    """From `from_s` to `until_s`, signals fall to 1 - `depth` and rise again, once per period."""

    period_s: float
    depth: float
    from_s: float = 0.0
    until_s: float = math.inf
    signals: tuple[str, ...] = ("throughput",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What happens to one node; `noise` is the standard deviation of each signal."""

    changes: tuple[Change, ...] = ()
    oscillations: tuple[Oscillation, ...] = ()
    noise: float = NOISE

    def level(self, signal: str, at_s: float) -> float:
        """Return a signal at a moment, as a share of its healthy value."""
        level = 1.0
        for change in self.changes:
            if signal in change.signals and at_s >= change.at_s:
                done = 1.0 if change.over_s <= 0 else min((at_s - change.at_s) / change.over_s, 1.0)
                level += (change.level - level) * done
        for oscillation in self.oscillations:
            if signal in oscillation.signals and oscillation.from_s <= at_s < oscillation.until_s:
                phase = 2.0 * math.pi * (at_s - oscillation.from_s) / oscillation.period_s
                level *= 1.0 - oscillation.depth * (1.0 - math.cos(phase)) / 2.0
        return level


class ScriptedSource:
    """Plays a script; `elapsed_s` returns the time since its start."""

    def __init__(
        self, script: Script, chance: random.Random, elapsed_s: Callable[[], float]
    ) -> None:
        self._script, self._chance, self._elapsed_s = script, chance, elapsed_s

    def read(self, now_ns: int) -> Observation:
        at_s = self._elapsed_s()
        levels = {name: self._script.level(name, at_s) for name in SIGNAL_NAMES}
        signals = simulate_signals(levels, self._chance, self._script.noise)
        launches = int(HEALTHY_LAUNCHES * levels["throughput"])
        return Observation(at_s=now_ns / 1e9, launches=launches, signals=signals)

    def close(self) -> None:
        pass
