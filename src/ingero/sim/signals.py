"""Signals of a simulated node."""

import random
from collections.abc import Mapping
from typing import Final

from ingero.core.health.score import Signals

# a healthy training node; its score is about 0.945
_HEALTHY: Final = {"throughput": 100.0, "compute": 0.92, "memory": 0.90, "cpu": 0.90}
HEALTHY_LAUNCHES: Final = 6000
NOISE: Final = 0.01


def simulate_signals(
    levels: Mapping[str, float], chance: random.Random, noise: float = NOISE
) -> Signals:
    """Return the signals of a node, each at a share of its healthy value; others are healthy.

    `noise` is the standard deviation of each signal as a share of its value.
    """
    values: dict[str, float] = {}
    for name, healthy in _HEALTHY.items():
        value = healthy * levels.get(name, 1.0) * (1.0 + chance.gauss(0.0, noise))
        values[name] = max(value, 0.0) if name == "throughput" else min(max(value, 0.0), 1.0)
    return Signals(**values)
