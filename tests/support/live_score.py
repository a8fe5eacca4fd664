"""Asks agent and Fleet about simulated jobs of random shape, and compares with their own steps.

    python -m tests.support.live_score --seed 9301 --shape ring --fault host

Each job runs calm for a minute and then with one slow rank: its GPU, its host, or stalls of one and
a half steps every ten. Prints what the job lost, what was said and when, and what is wrong with it.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.support.live_worlds import CHANGING, SHAPES, STALL_EVERY, draw, faults_of
from tests.support.simulated_job import Fault, SimulatedJob, simulate
from tests.support.simulated_live import EPOCH_S, LiveRun, watch

from ingero.contract.verdict import CauseClass, Verdict, VerdictState

FAULTS = ("healthy", "gpu", "host", "stall")
CALM_S, SLOW_S = 55.0, 22.0
NAMED_S, COSTLY, COSTLESS = 15.0, 0.05, 0.015
# At least so many steps, where they take longer than this. Stalls come every ten of them, and
# three of them are over after as long as 26 calm steps take.
LONG_S = 0.5
CALM_STEPS, SLOW_STEPS, NAMED_STEPS = 50, 12, 8
STALLS_STEPS, STALLS_NAMED_STEPS = 40, 28
RIGHT = {
    "gpu": {CauseClass.COMPUTE},
    "host": {CauseClass.HOST},
    "stall": {CauseClass.STALL, CauseClass.HOST},
}


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


def ask(kind: str, seed: int, fault: str, calm_s: float = CALM_S, said: bool = False) -> Answer:
    """Simulate one world, take it through agent and Fleet, and compare."""
    drawn = draw(kind, seed)
    ranks = drawn.shape.ranks
    pace_s = simulate(drawn.shape, 60, noise=drawn.noise, seed=seed).pace_s(20)
    first = int(max(calm_s, CALM_STEPS * pace_s) / pace_s) // STALL_EVERY * STALL_EVERY
    slow = STALLS_STEPS if fault == "stall" and pace_s > LONG_S else SLOW_STEPS
    steps = first + int(max(SLOW_S, slow * pace_s) / pace_s)
    found = faults_of(kind, seed, ranks, pace_s).get(fault)  # none where all are healthy
    faults = [] if found is None else [replace(found, first=first)]
    job = simulate(drawn.shape, steps, faults, noise=drawn.noise, seed=seed)
    run = watch(job, nodes=max(2, -(-ranks // 8)))
    if said:
        _print_said(run, job.seconds(first))
    truth = None
    if faults and (kind in CHANGING or pace_s > LONG_S):
        same = simulate(drawn.shape, steps, noise=drawn.noise, seed=seed)
        truth = _lost_beside(same, job, first)
    elif faults:
        truth = _truth(job, faults[0], first)
    return _compare(f"{drawn.name} {fault}", job, run, faults[0] if faults else None, truth, first)


def _lost_beside(calm: SimulatedJob, slow: SimulatedJob, first: int) -> float:
    """Return what the job lost beside the same job without the fault."""
    return float(1.0 - calm.step_s[:, first:].sum() / slow.step_s[:, first:].sum())


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
    world: str,
    job: SimulatedJob,
    run: LiveRun,
    fault: Fault | None,
    truth: float | None,
    first: int,
) -> Answer:
    named = run.named()
    rank = None if fault is None else fault.rank
    others = sorted({f"{v.rank}" for _, v in named if v.rank != rank})
    events = [each.verdict.cause_class.value for each in run.said if each.verdict.rank is None]
    others += sorted({f"event {each}" for each in events})
    ranks, step_ms = len(job.columns.recorders), 1e3 * job.pace_s(5, first)
    wrong = ["others"] * bool(others)
    said = " ".join(others)
    if fault is None or truth is None:
        return Answer(world, ranks, step_ms, None, None, "", None, None, said, (*wrong,))
    mine = [(at_s, v) for at_s, v in named if v.rank == rank]
    at_s = mine[0][0] - job.seconds(first) if mine else None
    now = [v for _, v in run.service.open_verdicts() if v.rank == rank]
    last = now[-1] if now else (mine[-1][1] if mine else None)
    fewest = STALLS_NAMED_STEPS if fault.every > 1 else NAMED_STEPS
    limit_s = NAMED_S if step_ms < 1e3 * LONG_S else max(NAMED_S, fewest * step_ms / 1e3)
    wrong += _problems(truth, at_s, last, world.rpartition(" ")[2], limit_s)
    return Answer(
        world, ranks, round(step_ms, 1), round(truth, 4),
        None if at_s is None else round(at_s, 1),
        last.cause_class.value if last else "",
        last.loss if last else None, last.loss_error if last else None,
        said, tuple(wrong),
    )  # fmt: skip


def _problems(
    truth: float, at_s: float | None, last: Verdict | None, fault: str, limit_s: float
) -> Iterator[str]:
    if at_s is None or last is None:
        if truth >= COSTLY:
            yield "not named"
        return
    if at_s < 0:
        yield "too early"
    if truth >= COSTLY and at_s > limit_s:
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
