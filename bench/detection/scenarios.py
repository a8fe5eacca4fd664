"""The fifteen scenarios, each with a few worlds; the numbers are those of the scoreboard.

Scenarios 1 and 10 have modules of their own, and those about the transport are in `disturbed`.
Scenarios 6 and 14 are also asked of records and dumps, in `recorded`.
"""

from collections.abc import Callable, Iterator

import numpy as np

from bench.detection.disturbed import disturbed
from bench.detection.world import WARM_S, World, as_fleet_event, healthy, one_slow, pick, slow
from ingero.contract.verdict import CauseClass

EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10, 0.30, 1.00)
Case = tuple[int, str, Callable[[int], World]]


def fleets_of(size: int) -> int:
    """Return how many fleets of a size run together: about 2,000 ranks, at least two fleets."""
    return {3: 64, 8: 48, 64: 24, 512: 4}.get(size, 2)


def cases(size: int, fleets: int | None = None) -> Iterator[Case]:
    """Yield (scenario, variant, world of a seed) for a fleet size."""
    many = fleets or fleets_of(size)
    yield from _slow_ranks(size, many)
    yield from _ramps_and_stalls(size, many)
    yield from _links(size, max(2, many // 4))
    yield from _nobody(size, max(2, many // 4))
    yield from _labels(size, many)
    yield from disturbed(size, max(2, many // 4))


def _slow_ranks(size: int, many: int) -> Iterator[Case]:
    for effect in EFFECTS:
        yield 2, f"{effect:.0%}, 1 s pushes", lambda seed, e=effect: one_slow(size, many, seed, e)
    yield 2, "5%, 5 s pushes", lambda seed: one_slow(size, many, seed, 0.05, push_s=5)
    if size >= 8:
        for share in (0.01, 0.10, 0.30, 0.49):
            yield (
                3,
                f"{share:.0%} of the ranks +10%",
                lambda seed, s=share: _share_slow(size, many, seed, s),
            )


def _share_slow(size: int, many: int, seed: int, share: float) -> World:
    rng = np.random.default_rng(seed + 1)
    world = healthy(size, max(2, many // 4), 240, seed)
    world = slow(world, pick(world, rng, share), 0.10, rng)
    return as_fleet_event(world) if round(share * size) > 0.4 * size else world


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


def _timed(world: World, seed: int) -> World:
    """Return the world with timed collectives.

    Transfers vary by a tenth, and some take half as long again.
    """
    rng, shape = np.random.default_rng(seed + 3), (len(world.log_own), world.fleets)
    world.transfer_s = (
        0.15 * np.exp(rng.normal(0, 0.10, shape)) * np.where(rng.random(shape) < 0.02, 1.5, 1.0)
    )
    return world


def _links(size: int, few: int) -> Iterator[Case]:
    """Return worlds in which transfers grow and own times do not, and the reverse."""

    def slow_links(seed: int, lossy: bool) -> World:
        world = _timed(healthy(size, few, 300, seed), seed)
        after = world.transfer_s[WARM_S:]  # type: ignore[index]  # _timed sets it
        hit = (
            np.random.default_rng(seed + 4).random(after.shape) < 0.25
            if lossy
            else np.ones(after.shape, bool)
        )
        after[hit] *= 4 if lossy else 2
        return as_fleet_event(world, CauseClass.NETWORK)

    yield 6, "a NIC at half speed", lambda seed: slow_links(seed, False)
    yield 6, "a lossy link", lambda seed: slow_links(seed, True)
    yield (
        6,
        "links as ever, one rank +10%",
        lambda seed: _timed(one_slow(size, few, seed, 0.10), seed),
    )


def _nobody(size: int, few: int) -> Iterator[Case]:
    """Return worlds in which no node is to blame."""

    def rotating(seed: int) -> World:
        world = _timed(healthy(size, few, 600, seed), seed)
        world.log_own += np.log1p(
            np.random.default_rng(seed).exponential(0.10, world.log_own.shape)
        )
        return world

    def rank_zero(seed: int, effect: float) -> World:
        world = _timed(healthy(size, few, 300, seed), seed)
        world.log_own[:, :: world.size] += np.log1p(effect)
        return world

    def stages(seed: int, labelled: bool) -> World:
        world = _timed(healthy(size, few, 300, seed), seed)
        stage = np.arange(size) * 2 // size
        world.log_own += np.log1p(0.25) * np.tile(stage, world.fleets)
        if labelled:
            world.roles = [f"pp{s}" for s in np.tile(stage, world.fleets)]
        return world

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
        world = one_slow(size, max(2, many // 4), seed, 0.10)
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
        columns = [
            f * size + r for f in range(world.fleets) for r in range(1, 1 + max(1, size // 8))
        ]
        return slow(world, columns, 0.10, rng)

    yield 8, "two GPU generations, labelled, one +10%", lambda seed: generations(seed, True)
    yield 8, "two GPU generations, unlabelled", lambda seed: generations(seed, False)
    yield 8, "a power-capped rack, +10%", rack
