"""Scenarios about what is between a slow rank and the engine: churn, restarts, losses, replicas."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from bench.detection.model import NoiseModel
from bench.detection.world import WARM_S, World, as_fleet_event, healthy, one_slow, pick, slow
from ingero.contract.verdict import CauseClass

Case = tuple[int, str, Callable[[int], World]]


def disturbed(size: int, few: int) -> Iterator[Case]:
    """Yield (scenario, variant, world of a seed) of scenarios 9 and 11 to 15, `few` fleets each."""
    yield 9, "ranks leave and return", partial(_churn, size, few)
    yield 9, "nodes get another name", partial(_renamed, size, few)
    yield 9, "ranks are dealt to other nodes", partial(_reshuffled, size, few)
    yield 9, "Fleet restarts", partial(_restarted, size, few)
    if size >= 8:
        yield 11, "half of the fleet drops", partial(_dropped, size, few, 0.5)
        yield 11, "30% coverage", partial(_dropped, size, few, 0.7)
    yield 11, "the whole fleet slows by 30%", partial(_all_slow, size, few)
    yield 12, "lost, late and doubled batches", partial(_lossy, size, few)
    if size >= 8:  # of three ranks, one replica would get one and could not compare it
        yield (
            12,
            "two replicas without a log, nodes pinned, one fails",
            partial(_replicas, size, few, WARM_S // 2),
        )
        yield 12, "one replica on a log", partial(_on_log, size, few, 1)
        yield 12, "two replicas on a log, pushes in turns", partial(_on_log, size, few, 2)
    yield 13, "slow from birth by 15%", partial(_birth, size, few)
    yield 14, "a rank hangs and all stop", partial(_hang, size, few)
    if size >= 8:
        yield 15, "30% collude at +5%", partial(_colluding, size, few, 0.30)
        yield 15, "45% collude at +5%", partial(_colluding, size, few, 0.45)
    yield 15, "somebody spoofs the slow node's id", partial(_spoofed, size, few)


def _churn(size: int, few: int, seed: int) -> World:
    world = one_slow(size, few, seed, 0.10)
    rng = np.random.default_rng(seed + 2)
    for column in range(world.log_own.shape[1]):
        if column not in world.culprits and rng.random() < 0.2:
            begin = int(rng.integers(0, len(world.log_own) - 60))
            world.log_own[begin : begin + int(rng.integers(10, 120)), column] = np.nan
    return world


def _renamed(size: int, few: int, seed: int) -> World:
    """Return a world in which a fifth of the nodes and half of the slow ones change their name."""
    world = one_slow(size, few, seed, 0.10)
    rng = np.random.default_rng(seed + 2)
    for column in range(world.log_own.shape[1]):
        if rng.random() < (0.5 if column in world.culprits else 0.2):
            second = int(rng.integers(60, WARM_S // 2))
            world.moves.setdefault(second, {})[column] = (f"renamed{column % size}", column % size)
    return world


def _reshuffled(size: int, few: int, seed: int) -> World:
    """Return a world in which a restart gives every node another rank; the slow one is a node."""
    world = one_slow(size, few, seed, 0.10)
    rng = np.random.default_rng(seed + 2)
    second = WARM_S // 2
    world.log_own[second : second + 20] = np.nan
    world.moves[second + 20] = {
        fleet * size + node: (f"node{node}", int(rank))
        for fleet in range(world.fleets)
        for node, rank in enumerate(rng.permutation(size))
    }
    return world


def _restarted(size: int, few: int, seed: int) -> World:
    world = one_slow(size, few, seed, 0.10)
    world.restart_s = WARM_S // 2
    return world


def _dropped(size: int, few: int, share: float, seed: int) -> World:
    world = healthy(size, few, 300, seed)
    gone = (np.arange(world.log_own.shape[1]) % size) >= max(1, round((1 - share) * size))
    world.log_own[WARM_S:, gone] = np.nan
    return as_fleet_event(world)


def _all_slow(size: int, few: int, seed: int) -> World:
    world = healthy(size, few, 300, seed, NoiseModel(common=0.01))
    world.log_own[WARM_S:] += np.log1p(0.30)
    return as_fleet_event(world)


def _lossy(size: int, few: int, seed: int) -> World:
    world = one_slow(size, few, seed, 0.10)
    world.loss, world.disorder = 0.05, 0.05
    return world


def _replicas(size: int, few: int, failover_s: int, seed: int) -> World:
    """Return a world with a load balancer in front of two Fleets that share nothing."""
    world = one_slow(size, few, seed, 0.10)
    world.replicas, world.failover_s = 2, failover_s
    return world


def _on_log(size: int, few: int, replicas: int, seed: int) -> World:
    """Return a world of Fleet itself; each node pushes to its replicas in turns."""
    world = one_slow(size, few, seed, 0.10)
    world.replicas, world.is_on_log = replicas, True
    return world


def _birth(size: int, few: int, seed: int) -> World:
    world = healthy(size, few, 100, seed)
    for column in pick(world, np.random.default_rng(seed), skip_first=True):
        world.log_own[:, column] += np.log1p(0.15)
        world.culprits[column] = 0
    return world


def _hang(size: int, few: int, seed: int) -> World:
    """Return a world in which one rank stops and the others wait: the current step never ends."""
    world = healthy(size, few, 120, seed)
    world.log_own[WARM_S:] = np.nan
    return as_fleet_event(world, CauseClass.HANG)


def _colluding(size: int, few: int, share: float, seed: int) -> World:
    rng = np.random.default_rng(seed)
    world = healthy(size, few, 300, seed)
    world = slow(world, pick(world, rng, share), 0.05, rng)
    return as_fleet_event(world) if share > 0.4 else world


def _spoofed(size: int, few: int, seed: int) -> World:
    world = one_slow(size, few, seed, 0.10)
    world.spoofed = sorted(world.culprits)
    return world
