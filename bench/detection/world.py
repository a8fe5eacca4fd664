"""One experiment: own times of several fleets of one size, what was done to them, and who is truly to blame."""

import warnings
from dataclasses import dataclass, field

import numpy as np

from bench.detection.model import Noise, NoiseModel
from ingero.contract.verdict import CauseClass

WARM_S = 400  # healthy seconds before anything happens
IDLE = 0.1  # share of own time during which a healthy GPU waits for its host


@dataclass
class World:
    """`log_own` has one row a second and one column per rank, NaN where nothing was reported.

    `culprits` maps columns to the second they turned slow; `cause` says why. With `is_fleet_event` the right answer is
    an event about the whole fleet and no node.
    """

    size: int
    log_own: np.ndarray
    culprits: dict[int, int] = field(default_factory=dict)
    cause: dict[int, CauseClass] = field(default_factory=dict)
    roles: list[str] | None = None
    models: list[str] | None = None
    names: list[str] | None = None
    push_s: int = 1
    is_fleet_event: bool = False
    restart_s: int | None = None
    loss: float = 0.0  # share of batches that never arrive
    disorder: float = 0.0  # share of batches that arrive late, and as many twice
    spoofed: list[int] = field(default_factory=list)  # columns that somebody else also reports
    period: int | None = None
    onset_s: int = WARM_S

    @property
    def fleets(self) -> int:
        return self.log_own.shape[1] // self.size

    @property
    def fleet(self) -> np.ndarray:
        return np.repeat(np.arange(self.fleets), self.size)

    @property
    def node_hours(self) -> float:
        return float((~np.isnan(self.log_own)).sum()) / 3600

    def idle(self) -> np.ndarray:
        """Seconds the GPU waited for its host: more where a host is to blame."""
        own = np.exp(self.log_own)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # seconds in which nobody reported
            typical = np.nanmedian(own, axis=1, keepdims=True)
        idle = np.broadcast_to(IDLE * typical, own.shape).copy()
        for column, second in self.culprits.items():
            if self.cause.get(column) is CauseClass.HOST:
                idle[second:, column] += np.maximum(own[second:, column] - typical[second:, 0], 0)
        return idle


def healthy(size: int, fleets: int, seconds: int, seed: int, model: NoiseModel | None = None) -> World:
    """Nothing wrong: the start of every scenario."""
    return World(size, Noise([size] * fleets, seed, model).block(WARM_S + seconds))


def pick(world: World, rng: np.random.Generator, share: float = 0.0, skip_first: bool = False) -> list[int]:
    """One culprit per fleet, or a share of each fleet."""
    count = max(1, round(share * world.size))
    low = 1 if skip_first else 0
    return [
        fleet * world.size + int(rank)
        for fleet in range(world.fleets)
        for rank in low + rng.choice(world.size - low, count, replace=False)
    ]


def slow(world: World, columns: list[int], effect: float | np.ndarray, rng: np.random.Generator) -> World:
    """From WARM_S on, alternating between compute and host as the cause."""
    for column in columns:
        world.log_own[WARM_S:, column] += np.log1p(effect)
        world.culprits[column] = WARM_S
        world.cause[column] = CauseClass.HOST if rng.random() < 0.5 else CauseClass.COMPUTE
    return world
