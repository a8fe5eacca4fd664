"""Jobs of all shapes as worlds for the live verdicts: a drawn job, and who becomes slow in it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tests.support.job_shapes import Limit, Shape, Sync, ddp, swapping_pipeline
from tests.support.more_shapes import MORE, draw_more
from tests.support.other_shapes import (
    context_ring,
    fused,
    interleaved,
    sent_experts,
    sharded_batches,
    zero3,
)
from tests.support.random_jobs import KINDS, DrawnJob, draw_job
from tests.support.rare_shapes import RARE, draw_rare
from tests.support.simulated_job import Fault

SLEEP, SLEEP_OF_STAGE = 0.13, 0.32  # of a step
EXTRA, EXTRA_OF_STAGE = (0.08, 0.12), (0.18, 0.25)  # GPU work
STALL_STEPS, STALL_EVERY = 1.5, 10
Dice = np.random.Generator


def _ahead(dice: Dice, step_s: float) -> Shape:
    """Hosts that run steps ahead of their GPUs, and wait for them every twenty steps."""
    plain = ddp(8, step_s, int(dice.integers(2, 7)), launch=dice.uniform(0.2, 0.5))

    def program(rank: int, step: int) -> list[object]:
        items = [each for each in plain.program(rank, step) if not isinstance(each, Sync)]
        return [*items, Sync() if step % 20 == 0 else Limit(250)]

    return Shape(plain.ranks, program)  # type: ignore[arg-type]  # a list of items


# Shapes beside those of `random_jobs`, as functions of the dice and the length of a step.
OTHERS: dict[str, Callable[[Dice, float], Shape]] = {
    "ahead": _ahead,
    "launch-bound": lambda dice, step_s: ddp(
        8, step_s, int(dice.integers(2, 5)), launch=dice.uniform(1.0, 1.3)
    ),
    "zero3": lambda dice, step_s: zero3(
        int(dice.choice([4, 8])), n := int(dice.integers(4, 9)), step_s / (3.5 * n),
        dice.uniform(0.3, 0.9),
    ),
    "1f1b": lambda dice, step_s: swapping_pipeline(
        int(dice.choice([2, 4])), 2, n := int(dice.integers(4, 9)), step_s / (3 * n + 9),
        dice.uniform(0.15, 0.4), in_pairs=bool(dice.random() < 0.5),
    ),
    "context_ring": lambda dice, step_s: context_ring(
        int(dice.choice([2, 4])), 2, n := int(dice.integers(2, 5)), step_s / (3.5 * n),
        dice.uniform(0.2, 0.5), ahead=bool(dice.random() < 0.5),
    ),
    "interleaved": lambda dice, step_s: interleaved(
        4, 2, 2, 4, step_s / 48, dice.uniform(0.1, 0.3)
    ),
    "sent_experts": lambda dice, step_s: sent_experts(
        4, 2, n := int(dice.integers(2, 5)), step_s / (6.5 * n), dice.uniform(0.2, 0.5)
    ),
    "fused": lambda dice, step_s: fused(int(dice.choice([4, 8])), step_s, dice.uniform(0.1, 0.5)),
    "sharded_batches": lambda dice, step_s: sharded_batches(
        int(dice.choice([4, 8])), n := int(dice.integers(2, 6)), b := int(dice.integers(2, 5)),
        step_s / (3 * n * b + 2), dice.uniform(0.4, 0.8),
    ),
}  # fmt: skip
STAGES = ("pipeline", "1f1b", "interleaved", "receives ahead", "three dimensions")
ONE_KERNEL = ("ring", "1f1b", "context_ring", "sent_experts")
# Work that changes by itself, so that steps before a fault are no measure for those in it.
CHANGING = ("curriculum", "background writes", "generation", "checkpoints", "evaluations")
SHAPES = (*KINDS, *OTHERS, *MORE, *RARE)


def draw(kind: str, seed: int) -> DrawnJob:
    """Draw a job of a shape, with noise and the length of its steps."""
    if kind in RARE:
        return draw_rare(kind, seed)
    step_s = float(np.random.default_rng([seed, 5]).choice([0.06, 0.1, 0.15]))
    if kind in KINDS:
        return draw_job(kind, seed, step_s)
    if kind in MORE:
        return draw_more(kind, seed, step_s)
    step_s = 0.018 if kind == "launch-bound" else step_s
    dice = np.random.default_rng([seed, len(KINDS) + [*OTHERS].index(kind)])
    noise = draw_job("ddp", seed + 1000, step_s).noise
    one_kernel = kind in ONE_KERNEL
    noise = replace(noise, one_kernel=one_kernel, eager_sends=one_kernel or noise.eager_sends)
    return DrawnJob(f"{kind}/{seed}", OTHERS[kind](dice, step_s), noise, step_s)


def faults_of(kind: str, seed: int, ranks: int, pace_s: float) -> dict[str, Fault]:
    """Return a slow GPU, a late host and stalls, each of another rank."""
    dice = np.random.default_rng([seed, 77, SHAPES.index(kind)])
    chosen = dice.permutation(ranks)[:3].tolist() if ranks > 2 else [0, 1, 0]
    is_stage = kind in STAGES
    extra = dice.uniform(*(EXTRA_OF_STAGE if is_stage else EXTRA))
    sleep = SLEEP_OF_STAGE if is_stage else SLEEP
    return {
        "gpu": Fault(chosen[0], gpu=float(extra), launches=float(dice.choice([0.0, 0.05]))),
        "host": Fault(chosen[1], host_s=sleep * pace_s),
        "stall": Fault(chosen[2], host_s=STALL_STEPS * pace_s, every=STALL_EVERY),
    }
