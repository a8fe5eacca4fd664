"""The fifteen scenarios, each a few worlds. Numbers are those of the scoreboard; 1 and 10 have files of their own."""

from collections.abc import Callable, Iterator

import numpy as np

from bench.detection.model import NoiseModel
from bench.detection.world import WARM_S, World, healthy, pick, slow

EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10, 0.30, 1.00)
Case = tuple[int, str, Callable[[int], World]]


def fleets_of(size: int) -> int:
    """How many fleets of a size run side by side: some 2,000 ranks in all, at least two fleets."""
    return {3: 64, 8: 48, 64: 24, 512: 4}.get(size, 2)


def cases(size: int, fleets: int | None = None) -> Iterator[Case]:
    """Every (scenario, variant, world of a seed) for a fleet size."""
    many = fleets or fleets_of(size)
    yield from _slow_ranks(size, many)
    yield from _ramps_and_stalls(size, many)
    yield from _nobody(size, many)
    yield from _labels(size, many)
    yield from _disturbed(size, many)


def _slow_ranks(size: int, many: int) -> Iterator[Case]:
    for effect in EFFECTS:
        yield 2, f"{effect:.0%}, 1 s pushes", lambda seed, e=effect: _one_slow(size, many, seed, e)
    yield 2, "5%, 5 s pushes", lambda seed: _one_slow(size, many, seed, 0.05, push_s=5)
    if size >= 8:
        for share in (0.01, 0.10, 0.30, 0.49):
            yield 3, f"{share:.0%} of the ranks +10%", lambda seed, s=share: _share_slow(size, many, seed, s)


def _one_slow(size: int, many: int, seed: int, effect: float, push_s: int = 1) -> World:
    rng = np.random.default_rng(seed + 1)
    world = healthy(size, many, 300, seed)
    world.push_s = push_s
    return slow(world, pick(world, rng), effect, rng)


def _share_slow(size: int, many: int, seed: int, share: float) -> World:
    rng = np.random.default_rng(seed + 1)
    world = healthy(size, max(2, many // 4), 240, seed)
    world = slow(world, pick(world, rng, share), 0.10, rng)
    return _as_fleet_event(world) if round(share * size) > 0.4 * size else world


def _as_fleet_event(world: World) -> World:
    world.culprits.clear()
    world.is_fleet_event = True
    return world


def _ramps_and_stalls(size: int, many: int) -> Iterator[Case]:
    for seconds, name in ((60, "1 min"), (600, "10 min"), (21_600, "6 h")):
        yield 4, f"ramp to +20% over {name}", lambda seed, s=seconds: _ramp(size, many, seed, s)
    yield 5, "stall of +30% every 14 steps", lambda seed: _stall(size, many, seed, 14, 14)
    yield 5, "period drifts from 14 to 16", lambda seed: _stall(size, many, seed, 14, 16)


def _ramp(size: int, many: int, seed: int, seconds: int) -> World:
    rng = np.random.default_rng(seed + 1)
    world = healthy(size, max(2, many // (8 if seconds > 1000 else 2)), seconds + 120, seed)
    effect = np.minimum(np.arange(seconds + 120) / seconds, 1.0) * 0.20
    return slow(world, pick(world, rng), effect, rng)


def _stall(size: int, many: int, seed: int, first: int, last: int) -> World:
    rng = np.random.default_rng(seed + 1)
    world = healthy(size, max(2, many // 2), 400, seed)
    gaps = np.rint(np.linspace(first, last, 400 // first)).astype(int)
    at = WARM_S + np.cumsum(gaps)
    for column in pick(world, rng):
        world.log_own[at[at < len(world.log_own)], column] += np.log1p(0.30)
        world.culprits[column] = WARM_S
    world.period = round((first + last) / 2)
    return world


def _nobody(size: int, many: int) -> Iterator[Case]:
    """Worlds in which no node is to blame."""
    few = max(2, many // 4)

    def network(seed: int) -> World:
        return healthy(size, few, 300, seed)  # transfers grow for everybody, nobody's own time does

    def rotating(seed: int) -> World:
        world = healthy(size, few, 600, seed)
        world.log_own += np.log1p(np.random.default_rng(seed).exponential(0.10, world.log_own.shape))
        return world

    def rank_zero(seed: int, effect: float) -> World:
        world = healthy(size, few, 300, seed)
        world.log_own[:, :: world.size] += np.log1p(effect)
        return world

    def stages(seed: int, labelled: bool) -> World:
        world = healthy(size, few, 300, seed)
        stage = np.arange(size) * 2 // size
        world.log_own += np.log1p(0.25) * np.tile(stage, world.fleets)
        if labelled:
            world.roles = [f"pp{s}" for s in np.tile(stage, world.fleets)]
        return world

    yield 6, "a slow link: own times untouched", network
    if size >= 8:
        yield 7, "stage imbalance, roles known", lambda seed: stages(seed, True)
        yield 7, "stage imbalance, roles unknown", lambda seed: stages(seed, False)
    yield 7, "sequence lengths vary by rank and step", rotating
    yield 7, "rank 0 does 8% more", lambda seed: rank_zero(seed, 0.08)
    yield 7, "rank 0 does 30% more", lambda seed: rank_zero(seed, 0.30)


def _labels(size: int, many: int) -> Iterator[Case]:
    if size < 8:
        return

    def generations(seed: int, labelled: bool) -> World:
        world = _one_slow(size, max(2, many // 4), seed, 0.10)
        kind = np.tile(np.arange(size) % 2, world.fleets)
        world.log_own += np.log1p(0.25) * kind
        if labelled:
            world.models = [("new", "old")[k] for k in kind]
            return world
        world.culprits.clear()
        return world

    def rack(seed: int) -> World:
        rng = np.random.default_rng(seed)
        world = healthy(size, max(2, many // 4), 300, seed)
        columns = [f * size + r for f in range(world.fleets) for r in range(1, 1 + max(1, size // 8))]
        return slow(world, columns, 0.10, rng)

    yield 8, "two GPU generations, labelled, one +10%", lambda seed: generations(seed, True)
    yield 8, "two GPU generations, unlabelled", lambda seed: generations(seed, False)
    yield 8, "a power-capped rack, +10%", rack


def _disturbed(size: int, many: int) -> Iterator[Case]:
    few = max(2, many // 4)

    def churn(seed: int) -> World:
        world = _one_slow(size, few, seed, 0.10)
        rng = np.random.default_rng(seed + 2)
        for column in range(world.log_own.shape[1]):
            if column not in world.culprits and rng.random() < 0.2:
                begin = int(rng.integers(0, len(world.log_own) - 60))
                world.log_own[begin : begin + int(rng.integers(10, 120)), column] = np.nan
        return world

    def restarted(seed: int) -> World:
        world = _one_slow(size, few, seed, 0.10)
        world.restart_s = WARM_S // 2
        return world

    def dropped(seed: int, share: float) -> World:
        world = healthy(size, few, 300, seed)
        gone = (np.arange(world.log_own.shape[1]) % size) >= max(1, round((1 - share) * size))
        world.log_own[WARM_S:, gone] = np.nan
        return _as_fleet_event(world)

    def all_slow(seed: int) -> World:
        world = healthy(size, few, 300, seed, NoiseModel(common=0.01))
        world.log_own[WARM_S:] += np.log1p(0.30)
        return _as_fleet_event(world)

    def lossy(seed: int) -> World:
        world = _one_slow(size, few, seed, 0.10)
        world.loss, world.disorder = 0.05, 0.05
        return world

    def birth(seed: int) -> World:
        world = healthy(size, few, 100, seed)
        for column in pick(world, np.random.default_rng(seed), skip_first=True):
            world.log_own[:, column] += np.log1p(0.15)
            world.culprits[column] = 0
        return world

    def hang(seed: int) -> World:
        world = healthy(size, few, 120, seed)
        world.log_own[WARM_S:, pick(world, np.random.default_rng(seed))] = np.nan
        world.log_own[WARM_S + 1 :] = np.nan  # one rank stops, and with it everybody
        return world

    def spoofed(seed: int) -> World:
        world = _one_slow(size, few, seed, 0.10)
        world.spoofed = sorted(world.culprits)
        return world

    def colluding(seed: int, share: float) -> World:
        rng = np.random.default_rng(seed)
        world = healthy(size, few, 300, seed)
        world = slow(world, pick(world, rng, share), 0.05, rng)
        return _as_fleet_event(world) if share > 0.4 else world

    yield 9, "ranks leave and return", churn
    yield 9, "Fleet restarts", restarted
    if size >= 8:
        yield 11, "half of the fleet drops", lambda seed: dropped(seed, 0.5)
        yield 11, "30% coverage", lambda seed: dropped(seed, 0.7)
    yield 11, "the whole fleet slows by 30%", all_slow
    yield 12, "lost, late and doubled batches", lossy
    yield 13, "slow from birth by 15%", birth
    yield 14, "a rank hangs and all stop", hang
    if size >= 8:
        yield 15, "30% collude at +5%", lambda seed: colluding(seed, 0.30)
        yield 15, "45% collude at +5%", lambda seed: colluding(seed, 0.45)
    yield 15, "somebody spoofs the slow node's id", spoofed
