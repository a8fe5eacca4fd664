"""The simulated world: own times of many ranks, one sample a second, with the truth known.

Noise per rank is autocorrelated and heavy-tailed. All ranks of a fleet share a slowly changing
common mode, and every rank has a small bias of its own. Garbage collection and the like add spikes
of one to three seconds; checkpoints and evaluations affect all ranks. Everything is in the
logarithm of own time, so an effect of 0.05 is five percent.
"""

from dataclasses import dataclass

import numpy as np

SPIKES_PER_S = 0.0005
CHECKPOINT_S = 1800
EVALUATION_S = 7200
EVALUATION_LENGTH_S = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseModel:
    """How much healthy ranks vary."""

    correlation: float = 0.6
    spread: float = 0.010
    common: float = 0.03
    bias: float = 0.007
    spike: float = 0.15
    tail_degrees: float = 5.0


class Noise:
    """Log own time of fleets of `sizes`, made in blocks; `fleet` is the fleet of each column."""

    def __init__(self, sizes: list[int], seed: int, model: NoiseModel | None = None) -> None:
        self.model = model or NoiseModel()
        self.rng = np.random.default_rng(seed)
        self.fleet = np.repeat(np.arange(len(sizes)), sizes)
        self.first = np.r_[0, np.cumsum(sizes)[:-1]]
        self._own = self.rng.normal(0, self.model.spread, len(self.fleet))
        self._common = self.rng.normal(0, self.model.common, len(sizes))
        self._bias = self.rng.normal(0, self.model.bias, len(self.fleet))
        self._second = 0

    def block(self, seconds: int) -> np.ndarray:
        """Return the next `seconds` rows, with one column per rank."""
        model, rng, width = self.model, self.rng, len(self.fleet)
        degrees = model.tail_degrees
        shocks = rng.standard_t(degrees, (seconds, width)) * np.sqrt((degrees - 2) / degrees)
        shocks *= model.spread * np.sqrt(1 - model.correlation**2)
        drift = rng.normal(0, model.common * np.sqrt(1 - 0.99**2), (seconds, len(self._common)))
        rows = np.empty((seconds, width))
        for second in range(seconds):
            self._own = model.correlation * self._own + shocks[second]
            self._common = 0.99 * self._common + drift[second]
            rows[second] = self._own + self._common[self.fleet]
        rows += self._bias
        self._add_spikes(rows)
        self._add_phases(rows)
        self._second += seconds
        return rows

    def _add_spikes(self, rows: np.ndarray) -> None:
        seconds, width = rows.shape
        count = self.rng.poisson(SPIKES_PER_S * seconds * width)
        start, column = self.rng.integers(seconds, size=count), self.rng.integers(width, size=count)
        size, length = self.rng.exponential(self.model.spike, count), self.rng.integers(1, 4, count)
        for offset in range(3):
            hit = (length > offset) & (start + offset < seconds)
            np.add.at(rows, (start[hit] + offset, column[hit]), size[hit])

    def _add_phases(self, rows: np.ndarray) -> None:
        """Add checkpoints (one long step, longer for rank 0) and evaluations (shorter steps)."""
        clock = self._second + np.arange(len(rows))
        for second in np.flatnonzero(clock % CHECKPOINT_S == CHECKPOINT_S - 1):
            rows[second] += np.log(4) + self.rng.normal(0, 0.1, rows.shape[1])
            rows[second, self.first] += np.log(2)
        rows[clock % EVALUATION_S >= EVALUATION_S - EVALUATION_LENGTH_S] -= np.log(1.4)
