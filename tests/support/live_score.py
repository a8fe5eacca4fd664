"""Asks agent and Fleet about simulated jobs of random shape, and compares with their own steps.

    python -m tests.support.live_score --seed 9301 --shape ring --fault host

Each job runs calm for a minute and then with one slow rank: its GPU, its host, or stalls of one and
a half steps every ten. Prints what the job lost, what was said and when, and what is wrong with it.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from tests.support.job_shapes import Limit, Shape, Sync, ddp, swapping_pipeline
from tests.support.other_shapes import (
    context_ring,
    fused,
    interleaved,
    sent_experts,
    sharded_batches,
    zero3,
)
from tests.support.random_jobs import KINDS, DrawnJob, draw_job
from tests.support.simulated_job import Fault, SimulatedJob, simulate
from tests.support.simulated_live import EPOCH_S, LiveRun, watch

from ingero.contract.verdict import CauseClass, Verdict, VerdictState

FAULTS = ("healthy", "gpu", "host", "stall")
CALM_S, SLOW_S = 55.0, 22.0
NAMED_S, COSTLY, COSTLESS = 15.0, 0.05, 0.015
SLEEP, SLEEP_OF_STAGE = 0.13, 0.32  # of a step
EXTRA, EXTRA_OF_STAGE = (0.08, 0.12), (0.18, 0.25)  # GPU work
STALL_STEPS, STALL_EVERY = 1.5, 10
RIGHT = {
    "gpu": {CauseClass.COMPUTE},
    "host": {CauseClass.HOST},
    "stall": {CauseClass.STALL, CauseClass.HOST},
}
Dice = np.random.Generator


def _ahead(dice: Dice, step_s: float) -> Shape:
    """Hosts that run steps ahead of their GPUs, and wait for them every twenty steps."""
    plain = ddp(8, step_s, int(dice.integers(2, 7)), launch=dice.uniform(0.2, 0.5))

    def program(rank: int, step: int) -> list[object]:
        items = [each for each in plain.program(rank, step) if not isinstance(each, Sync)]
        return [*items, Sync() if step % 20 == 0 else Limit(250)]

    return Shape(plain.ranks, program)  # type: ignore[arg-type]  # a list of items


# Shapes beside those of `random_jobs`, as functions of the dice and the length of a step.
MORE: dict[str, Callable[[Dice, float], Shape]] = {
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
STAGES = ("pipeline", "1f1b", "interleaved")
ONE_KERNEL = ("ring", "1f1b", "context_ring", "sent_experts")
SHAPES = (*KINDS, *MORE)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said about one world, and what is wrong with it."""

    world: str
    ranks: int
    step_ms: float
    truth: float | None
    after_s: float | None
    cause: str
    loss: float | None
    error: float | None
    others: str
    wrong: tuple[str, ...]


def draw(kind: str, seed: int, step_s: float) -> DrawnJob:
    """Draw a job of a shape, with the noise of `draw_job`."""
    if kind in KINDS:
        return draw_job(kind, seed, step_s)
    dice = np.random.default_rng([seed, len(KINDS) + [*MORE].index(kind)])
    noise = draw_job("ddp", seed + 1000, step_s).noise
    one_kernel = kind in ONE_KERNEL
    noise = replace(noise, one_kernel=one_kernel, eager_sends=one_kernel or noise.eager_sends)
    return DrawnJob(f"{kind}/{seed}", MORE[kind](dice, step_s), noise, step_s)


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


def ask(kind: str, seed: int, fault: str, calm_s: float = CALM_S, said: bool = False) -> Answer:
    """Simulate one world, take it through agent and Fleet, and compare."""
    step_s = (
        0.018
        if kind == "launch-bound"
        else float(np.random.default_rng([seed, 5]).choice([0.06, 0.1, 0.15]))
    )
    drawn = draw(kind, seed, step_s)
    ranks = drawn.shape.ranks
    pace_s = simulate(drawn.shape, 60, noise=drawn.noise, seed=seed).pace_s(20)
    first = int(calm_s / pace_s) // STALL_EVERY * STALL_EVERY
    steps = first + int(SLOW_S / pace_s)
    found = faults_of(kind, seed, ranks, pace_s).get(fault)  # none where all are healthy
    faults = [] if found is None else [replace(found, first=first)]
    job = simulate(drawn.shape, steps, faults, noise=drawn.noise, seed=seed)
    run = watch(job, nodes=2)
    if said:
        _print_said(run, job.seconds(first))
    return _compare(f"{drawn.name} {fault}", job, run, faults[0] if faults else None, first)


def _print_said(run: LiveRun, fault_s: float) -> None:
    for each in run.said:
        v = each.verdict
        loss = _percent(v.loss, v.loss_error)
        print(
            f"   {each.at_s - EPOCH_S - fault_s:+5.0f} s rank {v.rank} {v.state.value} "
            f"{v.cause_class.value} {loss} {v.shared} {v.link}| {v.evidence}"
        )


def _truth(job: SimulatedJob, fault: Fault, first: int) -> float:
    if fault.every == 1:
        return job.loss(first)
    means = job.step_s.mean(axis=0)
    last = first + (len(means) - first) // fault.every * fault.every
    return float(1.0 - means[5:first].mean() / means[first:last].mean())


def _compare(
    world: str, job: SimulatedJob, run: LiveRun, fault: Fault | None, first: int
) -> Answer:
    named = run.named()
    rank = None if fault is None else fault.rank
    others = sorted({f"{v.rank}" for _, v in named if v.rank != rank})
    events = [each.verdict.cause_class.value for each in run.said if each.verdict.rank is None]
    others += sorted({f"event {each}" for each in events})
    ranks, step_ms = len(job.columns.recorders), 1e3 * job.pace_s(5, first)
    wrong = ["others"] * bool(others)
    said = " ".join(others)
    if fault is None:
        return Answer(world, ranks, step_ms, None, None, "", None, None, said, (*wrong,))
    truth = _truth(job, fault, first)
    mine = [(at_s, v) for at_s, v in named if v.rank == rank]
    at_s = mine[0][0] - job.seconds(first) if mine else None
    now = [v for _, v in run.service.open_verdicts() if v.rank == rank]
    last = now[-1] if now else (mine[-1][1] if mine else None)
    wrong += _problems(truth, at_s, last, world.rpartition(" ")[2])
    return Answer(
        world, ranks, round(step_ms, 1), round(truth, 4),
        None if at_s is None else round(at_s, 1),
        last.cause_class.value if last else "",
        last.loss if last else None, last.loss_error if last else None,
        said, tuple(wrong),
    )  # fmt: skip


def _problems(truth: float, at_s: float | None, last: Verdict | None, fault: str) -> Iterator[str]:
    if at_s is None or last is None:
        if truth >= COSTLY:
            yield "not named"
        return
    if at_s < 0:
        yield "too early"
    if truth >= COSTLY and at_s > NAMED_S:
        yield "late"
    if truth < COSTLESS and last.state is VerdictState.STRAGGLER:
        yield "costless"
    if last.cause_class not in RIGHT[fault]:
        yield "class"
    if last.loss is None or abs(last.loss - truth) > max(0.25 * truth, 0.01):
        yield "loss"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, action="append", required=True)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--calm", type=float, default=CALM_S)
    parser.add_argument("--said", action="store_true", help="also print what was said when")
    parser.add_argument("--rows", type=Path, help="a file that answers are added to")
    chosen = parser.parse_args()
    answers = []
    for seed in chosen.seed:
        for kind in chosen.shape or SHAPES:
            for fault in chosen.fault or FAULTS:
                began = time.monotonic()
                answer = ask(kind, seed, fault, chosen.calm, chosen.said)
                answers.append(answer)
                print(describe(answer), f"({time.monotonic() - began:.0f} s)", flush=True)
                if chosen.rows:
                    with chosen.rows.open("a") as rows:
                        rows.write(json.dumps(asdict(answer)) + "\n")
    print(f"{sum(not each.wrong for each in answers)} of {len(answers)} right")


def describe(answer: Answer) -> str:
    """Return one line about an answer."""
    if answer.truth is None:
        what = "healthy"
    else:
        said = _percent(answer.loss, answer.error)
        what = f"lost {answer.truth:.1%}, named after {answer.after_s} s, {answer.cause} {said}"
    others = f" [{answer.others}]" if answer.others else ""
    return (
        f"{'OK ' if not answer.wrong else 'NO '} {answer.world}, {answer.ranks} ranks, "
        f"{answer.step_ms:.0f} ms: {what}{others} {' '.join(answer.wrong)}"
    )


def _percent(loss: float | None, error: float | None) -> str:
    if loss is None:
        return ""
    return f"at most {loss:.1%}" if error is None else f"{loss:.1%} ± {error:.1%}"


if __name__ == "__main__":
    main()
