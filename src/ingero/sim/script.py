"""Scripted signals of a simulated node, which drive the real agent in demos and tests."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from ingero.core.health.observation import Observation
from ingero.core.health.score import Signals

HEALTHY = Signals(100.0, 0.92, 0.90, 0.90)  # a training node; its score is about 0.945
LAUNCHES = 6000


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
    noise: float = 0.01

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
    """Plays a script; `elapsed_s` returns the time since its start, None uses the system clock."""

    def __init__(
        self, script: Script, chance: random.Random, elapsed_s: Callable[[], float] | None = None
    ) -> None:
        started_s = time.monotonic()
        self.script = script
        self._chance = chance
        self._elapsed_s = elapsed_s or (lambda: time.monotonic() - started_s)

    def read(self, now_ns: int) -> Observation:
        signals = signals_at(self.script, self._elapsed_s(), self._chance)
        rate = (signals.throughput or 0.0) / (HEALTHY.throughput or 1.0)
        return Observation(at_s=now_ns / 1e9, launches=int(LAUNCHES * rate), signals=signals)

    def close(self) -> None:
        pass


def signals_at(script: Script, at_s: float, chance: random.Random) -> Signals:
    """Return the signals of a scripted node at a moment; shares stay between 0 and 1."""
    values: dict[str, float] = {}
    for name, healthy in HEALTHY.items():
        value = (
            (healthy or 0.0) * script.level(name, at_s) * (1.0 + chance.gauss(0.0, script.noise))
        )
        values[name] = max(value, 0.0) if name == "throughput" else min(max(value, 0.0), 1.0)
    return Signals(**values)
