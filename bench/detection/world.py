"""One experiment: own times of several fleets of one size, with the truth about who is slow."""

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

    `culprits` maps columns to the second they became slow; `cause` says why. With `fleet_cause` the
    right answer is an event of that class for the whole fleet, without a node. `moves` says at
    which second a column continues as another (node, rank).
    """

    size: int
    log_own: np.ndarray
    culprits: dict[int, int] = field(default_factory=dict)
    cause: dict[int, CauseClass] = field(default_factory=dict)
    fleet_cause: CauseClass | None = None
    roles: list[str] | None = None
    models: list[str] | None = None
    transfer_s: np.ndarray | None = None  # per second and fleet, where the collectives are timed
    push_s: int = 1
    restart_s: int | None = None
    moves: dict[int, dict[int, tuple[str, int]]] = field(default_factory=dict)
    replicas: int = 1
    is_on_log: bool = False  # Fleet itself runs, and its replicas share a log
    # with two replicas: nodes are pinned, and from this second only the second one runs
    failover_s: int | None = None
    loss: float = 0.0  # share of batches that never arrive
    disorder: float = 0.0  # share of batches that arrive late, and as many twice
    spoofed: list[int] = field(default_factory=list)  # columns that another node reports, too
    period: int | None = None

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
        """Return the seconds the GPU waited for its host: more where the host is the cause."""
        own = np.exp(self.log_own)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # seconds in which nobody reported
            by_fleet = own.reshape(len(own), self.fleets, self.size)
            typical = np.repeat(np.nanmedian(by_fleet, axis=2), self.size, axis=1)
        idle = IDLE * typical
        for column, second in self.culprits.items():
            if self.cause.get(column) is CauseClass.HOST:
                excess = own[second:, column] - typical[second:, column]
                idle[second:, column] += np.maximum(excess, 0)
        return idle

    def span(self) -> np.ndarray:
        """Return the length of each step: last arrival plus transfer; NaN without timing."""
        if self.transfer_s is None:
            return np.full(self.log_own.shape, np.nan)
        own = np.exp(self.log_own).reshape(len(self.log_own), self.fleets, self.size)
        return np.repeat(np.fmax.reduce(own, axis=2) + self.transfer_s, self.size, axis=1)

    def route(self, second: int) -> np.ndarray:
        """Return the replica each column pushes to: a fixed one until it fails, or each in turn."""
        columns = np.arange(self.log_own.shape[1])
        if self.replicas == 1:
            return np.zeros(len(columns), int)
        if self.failover_s is None:
            return (columns + second) % self.replicas
        return (
            columns % self.replicas
            if second < self.failover_s
            else np.full(len(columns), self.replicas - 1)
        )


def healthy(
    size: int, fleets: int, seconds: int, seed: int, model: NoiseModel | None = None
) -> World:
    """Return a world with nothing wrong: the start of every scenario."""
    return World(size, Noise([size] * fleets, seed, model).block(WARM_S + seconds))


def pick(
    world: World, rng: np.random.Generator, share: float = 0.0, skip_first: bool = False
) -> list[int]:
    """Choose one culprit per fleet, or a share of each fleet."""
    count = max(1, round(share * world.size))
    low = 1 if skip_first else 0
    return [
        fleet * world.size + int(rank)
        for fleet in range(world.fleets)
        for rank in low + rng.choice(world.size - low, count, replace=False)
    ]


def slow(
    world: World, columns: list[int], effect: float | np.ndarray, rng: np.random.Generator
) -> World:
    """Slow the culprits from WARM_S on, with compute and host in turn as the cause."""
    for column in columns:
        world.log_own[WARM_S:, column] += np.log1p(effect)
        world.culprits[column] = WARM_S
        world.cause[column] = CauseClass.HOST if rng.random() < 0.5 else CauseClass.COMPUTE
    return world


def one_slow(size: int, fleets: int, seed: int, effect: float, push_s: int = 1) -> World:
    """Return a world in which one rank of every fleet becomes slower."""
    rng = np.random.default_rng(seed + 1)
    world = healthy(size, fleets, 300, seed)
    world.push_s = push_s
    return slow(world, pick(world, rng), effect, rng)


def as_fleet_event(world: World, cause: CauseClass = CauseClass.FLEET) -> World:
    """Return the same world with no single rank to blame."""
    world.culprits.clear()
    world.fleet_cause = cause
    return world
