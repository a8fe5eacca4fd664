"""Recordings of real jobs and windows cut out of them: who is named, why, and with which loss.

    python -m tests.support.recording_score [--windows N] [--seed N …] [FOLDER …]

asks about every recording of the folders (those of ../shared/data/nccl-jobs without any), and about
windows of 15 to 30 seconds cut at random, for each seed. It prints one line per recording and in
how many answers the error bar covers what the job measured itself, and fails where a bar is not
met.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.shared_data import SHARED, unpack_rings

from ingero.core.blame.answer import Answer, Culprit
from ingero.core.blame.records import blame_records
from ingero.core.collectives.columns import Collectives, concat
from ingero.importers.nccl_ring import read_ring

SHORTEST_S, LONGEST_S = 15.0, 30.0
SEED = 13  # on which constants were set: others show what they are worth
WINDOWS = 6  # per recording: sixty over the ten of nccl-jobs
HIDDEN = 0.015  # of the step: a rank that costs less may be named as late, or not at all
STEP_ERROR, COVERED = 0.01, 0.9


@dataclass(frozen=True, slots=True)
class Fault:
    """What was slowed, from when to when (Unix seconds), and what the job lost by its own clock."""

    rank: int
    cause: str
    begin_s: float
    end_s: float
    loss: float | None


@dataclass(frozen=True, slots=True)
class Recording:
    """The records of one job; `step_s` is its own mean step in the last phase."""

    name: str
    columns: Collectives
    faults: tuple[Fault, ...]
    step_s: float


@dataclass(slots=True)
class Score:
    """What was right about one recording: windows, losses and error bars that cover the truth."""

    asked: int = 0
    wrong: list[str] = field(default_factory=list)
    bars: int = 0
    covered: int = 0


def read_recordings(folder: Path) -> Iterator[Recording]:
    """Read the recordings of one job, each with the faults that its records may still hold.

    Folders are those of nccl-jobs, or what `tests.hardware.real_jobs.archive` unpacked.
    """
    facts: dict[str, Any] = json.loads((folder / "truth.json").read_text())["recordings"]
    for name, fact in facts.items():
        path = folder / name
        if "phase" in fact and not path.is_dir():
            continue  # a calm phase after a fault
        faults = _phases_until(facts, name) if "phase" in fact else _named_faults(facts, name)
        with tempfile.TemporaryDirectory() as target:
            rings = (
                sorted(path.glob("ingero-nccl-*"))
                if path.is_dir()
                else unpack_rings(folder / f"{name}.tar.xz", Path(target))
            )
            columns = concat([read_ring(ring)[0] for ring in rings])
        step_s = fact["step_ms_mean"] / 1e3
        yield Recording(f"{folder.name}/{name}", columns, tuple(faults), step_s)


def _named_faults(facts: dict[str, Any], name: str) -> list[Fault]:
    fact, healthy, faults = facts[name], facts["healthy"], []
    if fault := fact["fault"]:
        kind = "step_ms_mean" if fault.get("every", 1) > 1 else "step_ms_median"
        when = (float(fact["fault_start_s"]), float(fact["recorded_until_s"]))
        loss = 1 - healthy[kind] / fact[kind]
        faults.append(Fault(fault["rank"], fault["class"], *when, loss))
    if earlier := fact.get("earlier_fault"):
        when = (earlier["start_s"], earlier["end_s"])
        faults.append(Fault(earlier["rank"], earlier["class"], *when, None))
    return faults


def _phases_until(facts: dict[str, Any], name: str) -> list[Fault]:
    """Return the faults of all phases up to one; the loss only of the last, which is there."""
    found = []
    for each, fact in facts.items():
        if fault := fact["phase"]["fault"]:
            cause = "compute" if "gpu" in fault else "host"
            when = (fact["began_s"], fact["ended_s"])
            loss = fact["truth"] if each == name else None
            found.append(Fault(fault["rank"], cause, *when, loss))
        if each == name:
            break
    return found


def ask(columns: Collectives) -> Answer:
    """Ask who is slow in a recording."""
    return blame_records(columns, True, "recording")


def score(recording: Recording, windows: int, seed: int = SEED) -> Score:
    """Ask about the whole recording and about windows of it."""
    result = Score()
    answer = ask(recording.columns)
    _judge(recording, answer, recording.faults, "whole", result)
    if not recording.faults:
        error = abs((answer.step_time_s or 0.0) / recording.step_s - 1)
        if error > STEP_ERROR:
            result.wrong.append(f"step {error:.1%} off")
    chance = np.random.default_rng(seed)
    end_s = recording.columns.end_ns / 1e9
    who = recording.columns.who
    first = max(float(end_s[who == each].min()) for each in np.unique(who))
    for _ in range(windows):
        length = chance.uniform(SHORTEST_S, LONGEST_S)
        begin = chance.uniform(first, float(end_s.max()) - length)
        part = recording.columns.take((end_s > begin) & (end_s < begin + length))
        inside = [f for f in recording.faults if f.begin_s <= begin and begin + length <= f.end_s]
        _judge(recording, ask(part), inside, f"{begin - first:.0f}+{length:.0f} s", result)
    return result


def _judge(
    recording: Recording, answer: Answer, expected: "tuple[Fault, ...] | list[Fault]",
    part: str, result: Score,
) -> None:  # fmt: skip
    """Compare an answer with the truth: `expected` faults must be named, all others may be."""
    result.asked += 1
    known = {fault.rank: fault for fault in recording.faults}
    named = {culprit.rank: culprit for culprit in (*answer.culprits, *answer.late)}
    if not recording.faults and answer.cause is not None:
        result.wrong.append(f"{part}: {answer.cause}")
    for fault in expected:
        is_hidden = fault.loss is not None and fault.loss < HIDDEN
        if fault.rank not in named and not is_hidden and fault.loss is not None:
            result.wrong.append(f"{part}: rank {fault.rank} not named")
    for rank, culprit in named.items():
        found = known.get(-1 if rank is None else rank)
        if found is None:
            result.wrong.append(f"{part}: rank {rank} named")
        elif str(culprit.cause) != found.cause:
            result.wrong.append(f"{part}: rank {rank} called {culprit.cause}")
        elif found.loss is not None:
            _judge_loss(culprit, max(found.loss, 0.0), part, result)


def _judge_loss(culprit: Culprit, truth: float, part: str, result: Score) -> None:
    loss = culprit.loss or 0.0
    if culprit.at_most:
        if not truth - 0.005 <= loss <= 2 * truth + 0.03 and truth >= HIDDEN:
            result.wrong.append(f"{part}: at most {loss:.1%} of {truth:.1%}")
        return
    error = culprit.loss_error or 0.0
    result.bars += 1
    result.covered += abs(loss - truth) <= error
    if part == "whole" and abs(loss - truth) > max(0.01, 0.2 * truth, error):
        result.wrong.append(f"{part}: {loss:.1%} of {truth:.1%}")


def main() -> int:
    """Print a line per recording; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--windows", type=int, default=WINDOWS)
    parser.add_argument("--seed", type=int, action="append")
    chosen = parser.parse_args()
    folders = chosen.folders or sorted(p.parent for p in SHARED.glob("data/nccl-jobs/*/truth.json"))
    bars = covered = asked = 0
    wrong = 0
    recordings = (each for folder in folders for each in read_recordings(folder))
    for recording, seed in product(recordings, chosen.seed or [SEED]):
        found = score(recording, chosen.windows, seed)
        said = "; ".join(found.wrong) or "right"
        print(f"{recording.name}, seed {seed}: {found.asked} asked, {said}", flush=True)
        bars, covered, asked = bars + found.bars, covered + found.covered, asked + found.asked
        wrong += len(found.wrong)
    share = covered / bars if bars else 1.0
    print(f"{asked} answers, {wrong} remarks; error bars cover the truth in {covered} of {bars}")
    return 0 if not wrong and share >= COVERED else 1


if __name__ == "__main__":
    sys.exit(main())
