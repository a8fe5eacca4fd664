"""Answers about recordings of real jobs, with each constant of `recorded/spells.py` 30 % apart.

    python -m tests.support.varied_constants [--seed N] [--windows N] [FOLDER …]

asks about every recording of the folders (those of ../shared/data/nccl-jobs without any) and about
windows of it. It prints every answer that names somebody else or another class with another value,
or another loss by more than its error, and fails where there is one.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
from tests.support.recording_score import LONGEST_S, SHORTEST_S, ask, read_recordings
from tests.support.shared_data import SHARED

from ingero.core.blame import records
from ingero.core.blame.answer import Answer
from ingero.core.blame.recorded import spells
from ingero.core.collectives.columns import Collectives

VARIED = 0.3
COUNTS = ("MIN_STEPS", "LASTING_STEPS", "MIN_PIECES", "MOST_MISSED")
OTHERS = ("LASTING_S", "CUT", "BRIEF_S", "BRIEF_SHARE")
SHARES = ("NEARLY_ALL", "HIGHEST")  # what is left to one varies
MEASURED = ("measure_steps", "measure_arrivals", "measure_places", "measure_last")


def vary() -> Iterator[tuple[str, float]]:
    """Return each constant with a lower and a higher value."""
    for name in (*COUNTS, *OTHERS, *SHARES):
        value = getattr(spells, name)
        for factor in (1 - VARIED, 1 + VARIED):
            other = 1 - (1 - value) * factor if name in SHARES else value * factor
            yield name, round(other) if name in COUNTS else other


def compare(columns: Collectives) -> list[str]:
    """Return which constants change what is said about a recording."""
    usual, wrong = ask(columns), []
    with ExitStack() as once:
        for name in MEASURED:  # constants of spells change nothing before them
            once.enter_context(patch.object(records, name, _remember(getattr(records, name))))
        for name, value in vary():
            with patch.object(spells, name, value):
                change = _change(usual, ask(columns))
            wrong += [f"{name} {value:g}: {change}"] if change else []
    return wrong


def _remember(function):  # type: ignore[no-untyped-def]  # whatever its arguments are
    kept: list[object] = []

    def remembered(*given: object) -> object:
        if not kept:
            kept.append(function(*given))
        return kept[0]

    return remembered


def _change(usual: Answer, other: Answer) -> str | None:
    before, after = ({c.rank: c for c in (*each.culprits, *each.late)} for each in (usual, other))
    named = [{rank: str(c.cause) for rank, c in each.items()} for each in (before, after)]
    if named[0] != named[1]:
        return f"{named[0]} becomes {named[1]}"
    for rank, one in before.items():
        apart = abs((one.loss or 0.0) - (after[rank].loss or 0.0))
        if apart > max(one.loss_error or 0.0, 0.01):
            return f"rank {rank} loses {after[rank].loss:.1%} instead of {one.loss:.1%}"
    return None


def main() -> int:
    """Print a line per recording; return 1 where a constant changes an answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--windows", type=int, default=2)
    chosen = parser.parse_args()
    folders = chosen.folders or sorted(p.parent for p in SHARED.glob("data/nccl-jobs/*/truth.json"))
    chance, changed = np.random.default_rng(chosen.seed), 0
    for recording in (each for folder in folders for each in read_recordings(folder)):
        end_s = recording.columns.end_ns / 1e9
        wrong = compare(recording.columns)
        for _ in range(chosen.windows):
            length = chance.uniform(SHORTEST_S, LONGEST_S)
            begin = chance.uniform(end_s.min(), end_s.max() - length)
            part = recording.columns.take((end_s > begin) & (end_s < begin + length))
            wrong += [f"{begin - end_s.min():.0f}+{length:.0f} s, {w}" for w in compare(part)]
        print(f"{recording.name}: {'; '.join(wrong) or 'the same'}", flush=True)
        changed += len(wrong)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
