"""Asks `ingero blame` about recordings of simulated jobs of many shapes.

    python -m tests.support.blame_score --seed 9531 [--shape NAME …] [--case NAME …]

Each job is recorded healthy, with a fault after forty calm seconds, with one from its first step on
(what does it cost at most?), and with one that began a few seconds before the end. Prints what the
job lost, what was said, and what is wrong with it.
"""

import argparse
import pickle
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tests.support.further_shapes import FURTHER
from tests.support.job_shapes import Shape
from tests.support.live_worlds import ONE_KERNEL, OTHERS
from tests.support.more_shapes import MORE, draw_more
from tests.support.random_jobs import KINDS, DrawnJob, draw_job
from tests.support.rare_shapes import RARE
from tests.support.simulated_job import Fault, SimulatedJob, simulate

from ingero.core.blame.answer import Answer, Culprit
from ingero.core.blame.records import blame_records
from ingero.core.collectives.columns import Collectives

# In this order: it is part of what is drawn.
SHAPES = (*KINDS, *MORE, *OTHERS, *FURTHER, *(kind for kind in RARE if kind not in FURTHER))
STAGES = ("pipeline", "1f1b", "interleaved", "chunks", "three dimensions", "receives ahead")
CASES = tuple(f"{fault} {when}" for when in ("later", "always", "just now")
              for fault in ("gpu", "host", "stall"))  # fmt: skip
HEALTHY = "healthy"
CALM_S, SLOW_S, JUST_NOW_S = 45.0, 25.0, 7.0
# Steps of a phase, however long they are. Phases end where hosts wait for their GPUs: until then,
# the time at which a host begins a step says little.
FEWEST, FEWEST_NOW, BLOCK = 60, 20, 20
MOST_ROWS = 400_000
HIDDEN, COSTLESS = 0.015, 0.005
STEP_ERROR = 0.01
STEP_LENGTHS_S = (0.015, 0.03, 0.06, 0.1, 0.1, 0.2, 0.4, 1.0, 3.0, 20.0)
Dice = np.random.Generator


@dataclass(frozen=True, slots=True)
class World:
    """A recording with its truth: what the job lost while it was slow.

    `loss` is against the same steps of the same job without the fault, `own_loss` against the calm
    steps before, as the job itself would measure it; its pace wanders.
    """

    name: str
    columns: Collectives
    step_s: float
    fault: Fault | None
    loss: float
    own_loss: float
    calm_s: float  # before the fault


@dataclass(slots=True)
class Tally:
    asked: int = 0
    wrong: int = 0
    bars: int = 0
    covered: int = 0
    remarks: dict[str, int] = field(default_factory=dict)


def draw(kind: str, seed: int, step_s: float) -> DrawnJob:
    """Draw a job of any shape."""
    if kind in KINDS:
        return draw_job(kind, seed, step_s)
    if kind in MORE:
        return draw_more(kind, seed, step_s)
    rare = {name: make for name, (make, _) in RARE.items()}
    shapes = OTHERS if kind in OTHERS else FURTHER if kind in FURTHER else rare
    dice = np.random.default_rng([seed, 78, SHAPES.index(kind)])
    noise = draw_more("many", seed + SHAPES.index(kind), step_s).noise
    one_kernel = kind in ONE_KERNEL
    noise = replace(noise, one_kernel=one_kernel, eager_sends=one_kernel)
    return DrawnJob(f"{kind}/{seed}", shapes[kind](dice, step_s), noise, step_s)


def record(kind: str, seed: int, case: str) -> World:
    """Simulate one world."""
    dice = np.random.default_rng([seed, 79, SHAPES.index(kind)])
    step_s = float(dice.choice(STEP_LENGTHS_S))
    drawn = draw(kind, seed, 0.018 if kind == "launch-bound" else step_s)
    probe = simulate(drawn.shape, 45, noise=drawn.noise, seed=seed)
    pace_s = probe.pace_s(20)
    most = max(2 * FEWEST, MOST_ROWS * 45 // len(probe.columns))
    clock_s = float(dice.choice([0.0, 0.003, 2.0]))
    flag_every = int(dice.choice([0, 2, 7, 20, 100, 1000]))
    faults = _faults(kind, dice, drawn.shape, pace_s)
    name, _, when = case.partition(" ")
    calm = {"later": CALM_S, "just now": CALM_S}.get(when, 0.0)
    slow = {"just now": JUST_NOW_S, "always": SLOW_S + 15, "": SLOW_S}.get(when, SLOW_S)
    first = min(_blocks(calm / pace_s, FEWEST), 2 * most // 3 // BLOCK * BLOCK + 1) if calm else 0
    fault = None if case == HEALTHY else replace(faults[name], first=first)
    fewest = FEWEST
    if when == "just now":
        fewest = FEWEST_NOW if fault is None or fault.every == 1 else 3 * fault.every
    last = first + _blocks(slow / pace_s, fewest)
    last = min(last, max(first + FEWEST, most)) // BLOCK * BLOCK + 1

    def run(found: list[Fault]) -> SimulatedJob:
        return simulate(
            drawn.shape, last, found, noise=drawn.noise, seed=seed, clock_s=clock_s,
            flag_every=flag_every,
        )  # fmt: skip

    job = run([] if fault is None else [fault])
    calm_job = job if fault is None else run([])
    after = slice(max(first, 1), None)
    loss = 1.0 - float(calm_job.step_s[:, after].mean() / job.step_s[:, after].mean())
    own_loss = loss if not first else _own_loss(job, fault)
    step_mean_s = float(job.step_s[:, 1:].mean())
    return World(f"{drawn.name} {case}", job.columns, step_mean_s, fault, loss, own_loss,
                 job.seconds(first) if first else 0.0)  # fmt: skip


def _blocks(steps: float, fewest: int) -> int:
    """Return that many steps, or a few more, so that hosts have just waited for their GPUs."""
    return -int(-max(steps, fewest) // BLOCK) * BLOCK + 1


def _faults(kind: str, dice: Dice, shape: Shape, pace_s: float) -> dict[str, Fault]:
    ranks = shape.ranks
    chosen = dice.permutation(ranks)[:3].tolist() if ranks > 2 else [0, 1, 0]
    is_stage = kind in STAGES
    extra = dice.uniform(0.18, 0.30) if is_stage else dice.uniform(0.08, 0.20)
    sleep = dice.uniform(0.25, 0.4) if is_stage else dice.uniform(0.10, 0.20)
    every = int(dice.choice([5, 7, 10, 14]))
    return {
        "gpu": Fault(chosen[0], gpu=float(extra), launches=float(dice.choice([0.0, 0.05]))),
        "host": Fault(chosen[1], host_s=float(sleep) * pace_s),
        "stall": Fault(chosen[2], host_s=1.5 * pace_s, every=every),
    }


def _own_loss(job: SimulatedJob, fault: Fault | None) -> float:
    """Return the loss as the job sees it, against its own calm steps."""
    if fault is None or fault.every == 1:
        return 0.0 if fault is None else job.loss(fault.first)
    means, first = job.step_s.mean(axis=0), fault.first
    last = first + (len(means) - first) // fault.every * fault.every
    return float(1.0 - means[1:first].mean() / means[first:last].mean())


def judge(world: World, answer: Answer, tally: Tally) -> list[str]:
    """Return what is wrong with an answer."""
    wrong = []
    named = {each.rank: each for each in (*answer.culprits, *answer.late)}
    blamed = {each.rank for each in answer.culprits}
    step_s = answer.step_time_s or 0.0
    if abs(step_s / world.step_s - 1) > STEP_ERROR:
        wrong.append(f"step {step_s / world.step_s:.3f}")
    if world.fault is None:
        others = [rank for rank in named if not _is_slow_by_nature(world, rank)]
        wrong += [f"{'named' if rank in blamed else 'late'} {rank}" for rank in others]
        return wrong + ([f"cause {answer.cause}"] if answer.cause and not named else [])
    others = [
        rank for rank in named if rank != world.fault.rank and not _is_slow_by_nature(world, rank)
    ]
    wrong += [f"other {rank}" if rank in blamed else f"other late {rank}" for rank in others]
    mine = named.get(world.fault.rank)
    if mine is None:
        return wrong + (["missed"] if world.loss >= HIDDEN else [])
    cause = "compute" if world.fault.gpu else "host"
    if str(mine.cause) != cause:
        wrong.append(f"class {mine.cause}")
    if world.fault.every > 1 and mine.period != world.fault.every:
        wrong.append(f"period {mine.period}")
    if world.fault.rank not in blamed and world.loss >= 2 * HIDDEN:
        wrong.append("only late")
    return wrong + _judge_loss(world, mine, tally)


def _is_slow_by_nature(world: World, rank: int | None) -> bool:
    """Whether a rank has more to do than all others, so that it may be named as well."""
    return rank == 0 and world.name.split("/")[0] in ("server", "one has more")


def _judge_loss(world: World, mine: Culprit, tally: Tally) -> list[str]:
    loss = mine.loss or 0.0
    truth = max(min(world.loss, world.own_loss, key=lambda each: abs(each - loss)), 0.0)
    if mine.at_most:
        if truth >= HIDDEN and not truth - COSTLESS <= loss <= 2 * truth + 0.03:
            return [f"at most {'low' if loss < truth else 'high'}"]
        return []
    error = mine.loss_error or 0.0
    tally.bars += 1
    tally.covered += abs(loss - truth) <= error
    allowed = error if "just now" in world.name else 0.0
    return ["loss"] if abs(loss - truth) > max(0.01, 0.2 * truth, allowed) else []


def describe(world: World, answer: Answer, wrong: list[str]) -> str:
    """Return one line about an answer."""
    fault = "" if world.fault is None else f"rank {world.fault.rank} lost {world.loss:.1%}"
    said = "; ".join(
        f"rank {each.rank} {each.cause} {'≤ ' if each.at_most else ''}{each.loss or 0:.1%}"
        + ("" if each.loss_error is None else f" ± {each.loss_error:.1%}")
        for each in (*answer.culprits, *answer.late)
    )
    ranks = len(world.columns.recorders)
    return (
        f"{'NO ' if wrong else 'OK '} {world.name}, {ranks} × {world.step_s * 1e3:.0f} ms: "
        f"{fault} | {said or answer.cause or 'nobody'} | {', '.join(wrong)}"
    )


def _cached(kind: str, seed: int, case: str, folder: Path | None) -> World:
    if folder is None:
        return record(kind, seed, case)
    path = folder / f"{kind}-{seed}-{case}.pkl"
    if path.exists():
        return pickle.loads(path.read_bytes())  # written below
    world = record(kind, seed, case)
    path.write_bytes(pickle.dumps(world))
    return world


def main() -> int:
    """Print a line per world; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, action="append", required=True)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--case", choices=(HEALTHY, *CASES), action="append")
    parser.add_argument("--worlds", type=Path, help="a folder to keep recordings in")
    chosen = parser.parse_args()
    tally = Tally()
    for seed in chosen.seed:
        for kind in chosen.shape or SHAPES:
            for case in chosen.case or (HEALTHY, *CASES):
                try:
                    world = _cached(kind, seed, case, chosen.worlds)
                except (AssertionError, ValueError) as error:
                    print(f"--- {kind}/{seed} {case}: does not run ({error})")
                    continue
                answer = blame_records(world.columns, True, "simulated")
                wrong = judge(world, answer, tally)
                tally.asked += 1
                tally.wrong += bool(wrong)
                print(describe(world, answer, wrong), flush=True)
    print(f"{tally.asked} asked, {tally.wrong} with something wrong; "
          f"error bars cover the truth in {tally.covered} of {tally.bars}")  # fmt: skip
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
