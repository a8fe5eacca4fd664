"""Recordings of real jobs, changed in ways that must not change the answer, or only weaken it.

    python -m tests.support.changed_recordings [--seed N] [FOLDER …]

changes every recording of the folders (those of ../shared/data/nccl-jobs without any) and compares
the answer with the truth. Changes that leave the job as it is (other numbers of ranks, other
clocks, repeated rows) must keep the answer. Where records are missing, a slow rank may stay
unnamed, or its class unknown; a healthy one is never named, and the class is never wrong.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tests.support.recording_score import Fault, Recording, ask, read_recordings
from tests.support.shared_data import SHARED

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import Answer
from ingero.core.blame.record_steps import measure_steps
from ingero.core.collectives.columns import COLUMNS, Collectives, concat
from ingero.core.collectives.pairs.exchanges import join_exchanges
from ingero.core.collectives.pairs.numbers import number_point_to_point

Dice = np.random.Generator
TIMES = ("start_ns", "end_ns")
SAME_LOSS = 0.002  # of the step: an unchanged job has the same loss


@dataclass(frozen=True, slots=True)
class Changed:
    """A changed recording; `numbers` are the new ranks, and `is_same` says the job is the same."""

    how: str
    columns: Collectives
    numbers: dict[int, int]
    is_same: bool
    steps: float = 1.0  # times as long as before


Change = Callable[[Collectives, Dice], Iterator[Changed]]


def change(columns: Collectives, dice: Dice) -> Iterator[Changed]:
    """Return a recording in every changed form."""
    for each in (_renumbered, _clocks, _rows, _cut, _scaled, _without_ranks, _extras):
        yield from each(columns, dice)


def judge(faults: Sequence[Fault], before: Answer, changed: Changed, after: Answer) -> list[str]:
    """Return what is wrong about the answer to a changed recording."""
    causes = {changed.numbers.get(fault.rank): fault.cause for fault in faults}
    named = {each.rank: each for each in (*after.culprits, *after.late)}
    wrong = [f"rank {rank} named" for rank in named if rank not in causes]
    wrong += [
        f"rank {rank} called {each.cause}"
        for rank, each in named.items()
        if rank in causes
        and str(each.cause) != causes[rank]
        and (changed.is_same or each.cause is not CauseClass.UNKNOWN)
    ]
    if not faults and after.cause is not None and after.cause != before.cause:
        wrong.append(f"cause {after.cause}")
    length = (after.step_time_s or 0.0) / (before.step_time_s or 1.0)
    if changed.is_same and abs(length / changed.steps - 1) > 0.01:
        wrong.append(f"step {length:.3f} times as long")
    if changed.is_same:
        said = {changed.numbers[c.rank or 0]: c for c in (*before.culprits, *before.late)}
        wrong += [f"rank {rank} no longer named" for rank in said if rank not in named]
        wrong += [
            f"rank {rank} loses {named[rank].loss:.1%} instead of {each.loss:.1%}"
            for rank, each in said.items()
            if rank in named and abs((named[rank].loss or 0) - (each.loss or 0)) > SAME_LOSS
        ]
    return wrong


def _same(columns: Collectives) -> dict[int, int]:
    return {r.global_rank: r.global_rank for r in columns.recorders if r.global_rank is not None}


def _renumbered(columns: Collectives, dice: Dice) -> Iterator[Changed]:
    known = sorted(_same(columns))
    new = dict(zip(known, dice.permutation(known).tolist(), strict=True))
    recorders = tuple(r._replace(global_rank=new[r.global_rank or 0]) for r in columns.recorders)
    shuffled = columns.take(dice.permutation(len(columns)))
    yield Changed("renumbered", replace(shuffled, recorders=recorders), new, True)


def _clocks(columns: Collectives, dice: Dice) -> Iterator[Changed]:
    for how, spread_s, drift in (("clocks apart", 5.0, 0.0), ("clocks drift", 0.5, 5e-5)):
        count = len(columns.recorders)
        offset = (dice.uniform(-spread_s, spread_s, count) * 1e9).astype(np.int64)
        rate = dice.uniform(-drift, drift, count)
        first = int(columns.start_ns.min())
        moved = {
            name: getattr(columns, name)
            + offset[columns.who]
            + ((getattr(columns, name) - first) * rate[columns.who]).astype(np.int64)
            for name in TIMES
        }
        yield Changed(how, replace(columns, **moved), _same(columns), drift == 0.0)


def _rows(columns: Collectives, dice: Dice) -> Iterator[Changed]:
    count, same = len(columns), _same(columns)
    again = columns.take(dice.choice(count, count // 20, replace=False))
    yield Changed("rows twice", concat([columns, again]), same, True)
    for share in (0.0001, 0.01):
        kept = dice.random(count) >= share
        yield Changed(f"{share:.2%} of the rows lost", columns.take(kept), same, False)
    bad = np.flatnonzero(dice.random(count) < 0.0005)
    late = columns.end_ns.copy()
    late[bad] += (dice.exponential(1.0, len(bad)) * 1e9).astype(np.int64)
    length = columns.gpu_duration_ns.copy()
    length[bad] = (dice.exponential(0.1, len(bad)) * 1e9).astype(np.int64)
    spoilt = replace(columns, end_ns=late, gpu_duration_ns=length)
    yield Changed("0.05% of the times wrong", spoilt, same, False)
    sizes = columns.size_bytes.copy()
    sizes[bad] = dice.integers(1, 1 << 30, len(bad))
    yield Changed("0.05% of the sizes wrong", replace(columns, size_bytes=sizes), same, False)


def _cut(columns: Collectives, dice: Dice) -> Iterator[Changed]:
    end_s, same = columns.end_ns / 1e9, _same(columns)
    first, last = float(end_s.min()), float(end_s.max())
    for how, most in (("start cut", 0.3), ("start cut per rank", 0.1)):
        at = first + dice.uniform(0, most, len(columns.recorders)) * (last - first)
        at = at if "per rank" in how else np.full_like(at, at[0])
        yield Changed(how, columns.take(end_s >= at[columns.who]), same, False)
    at = last - dice.uniform(0, 0.2, len(columns.recorders)) * (last - first)
    yield Changed("end cut per rank", columns.take(end_s <= at[columns.who]), same, False)
    who, begin = dice.integers(len(columns.recorders)), dice.uniform(first, last - 2)
    gap = (columns.who == who) & (end_s > begin) & (end_s < begin + 2)
    yield Changed("two seconds of a rank lost", columns.take(~gap), same, False)


def _scaled(columns: Collectives, dice: Dice) -> Iterator[Changed]:
    first = int(columns.start_ns.min())
    for factor in (0.5, 4.0):
        moved = {n: first + ((getattr(columns, n) - first) * factor).astype(int) for n in TIMES}
        known = columns.gpu_duration_ns >= 0
        length = np.where(known, columns.gpu_duration_ns * factor, columns.gpu_duration_ns)
        scaled = replace(columns, **moved, gpu_duration_ns=length.astype(np.int64))
        yield Changed(f"{factor:g} times as long", scaled, _same(columns), False, factor)


def _without_ranks(columns: Collectives, dice: Dice) -> Iterator[Changed]:
    same = _same(columns)
    for who in range(len(columns.recorders)):
        rank = columns.recorders[who].global_rank
        yield Changed(f"without rank {rank}", columns.take(columns.who != who), same, False)


def _extras(columns: Collectives, dice: Dice) -> Iterator[Changed]:
    """Add a flag of all ranks, of a few bytes, after every so many steps."""
    for every in (2, 7, 50, 1000):
        yield Changed(f"a flag every {every} steps", add_flags(columns, every), _same(columns),
                      False)  # fmt: skip


def add_flags(columns: Collectives, every: int) -> Collectives:
    """Return the recording with an all-reduce of one number after every `every` steps.

    Hosts read the number before they go on: what they enqueued sooner is enqueued after the flag.
    Ranks that wait for others anyway wait in the flag instead, and no transfer ends later.
    """
    world = len(columns.recorders)
    numbered = number_point_to_point(join_exchanges(columns))
    ends = _step_ends(numbered, measure_steps(numbered, True).row_step)
    chosen = np.arange(every - 1, ends.shape[1] - 1, every)
    chosen = chosen[(ends[:, chosen] > 0).any(axis=0)]
    stop = ends[:, chosen].max(axis=0) + 40_000
    parts = [_after_flags(columns, ends[:, chosen], stop)]
    name = "AllReduce"
    ops = columns.ops if name in columns.ops else (*columns.ops, name)
    for who in range(world):
        at = np.flatnonzero(ends[who, chosen])
        row = np.flatnonzero(columns.who == who)[:1]
        values = {each: np.repeat(getattr(columns, each)[row], len(at)) for each in COLUMNS}
        begin = ends[who, chosen[at]] + 20_000
        values |= {
            "comm": np.full(len(at), 0xF1A6, np.uint64), "seq": at.astype(np.int64),
            "size_bytes": np.full(len(at), 4), "nranks": np.full(len(at), world, np.int32),
            "rank": np.full(len(at), who, np.int32), "peer": np.full(len(at), -1, np.int32),
            "start_ns": begin - 10_000, "end_ns": stop[at], "gpu_duration_ns": stop[at] - begin,
            "op": np.full(len(at), ops.index(name), np.int16),
        }  # fmt: skip
        parts.append(replace(columns, ops=ops, **values))
    return concat(parts)


def _step_ends(columns: Collectives, row_step: np.ndarray) -> np.ndarray:
    """Return as [rank, step] when the last collective of a step ended, 0 where none is known."""
    last = np.zeros((len(columns.recorders), int(row_step.max()) + 1), np.int64)
    placed = np.flatnonzero(row_step >= 0)
    np.maximum.at(last, (columns.who[placed], row_step[placed]), columns.end_ns[placed])
    return last


def _after_flags(columns: Collectives, ends: np.ndarray, stop: np.ndarray) -> Collectives:
    """Return the rows of each rank, with none that begins while it waits at a flag."""
    entry, enqueued = columns.entry_ns.copy(), columns.start_ns.copy()
    never = np.iinfo(np.int64).max
    for who, of_rank in enumerate(ends):
        mine = np.flatnonzero(columns.who == who)
        flag = np.searchsorted(stop, enqueued[mine], side="right")
        began = np.append(np.where(of_rank > 0, of_rank, never), never)[flag]
        mine, flag = mine[enqueued[mine] >= began], flag[enqueued[mine] >= began]
        enqueued[mine] = np.minimum(stop[flag] + 10_000, columns.end_ns[mine])
        entry[mine] = np.maximum(entry[mine], enqueued[mine])
    timed = columns.gpu_duration_ns >= 0
    length = np.where(timed, columns.end_ns - entry, columns.gpu_duration_ns)
    return replace(columns, start_ns=enqueued, gpu_duration_ns=length)


def score(recording: Recording, seed: int) -> tuple[int, list[str]]:
    """Return how many changed recordings were asked about, and what was wrong."""
    dice = np.random.default_rng(seed)
    before, asked, wrong = ask(recording.columns), 0, []
    for changed in change(recording.columns, dice):
        found = judge(recording.faults, before, changed, ask(changed.columns))
        asked += 1
        wrong += [f"{changed.how}: {each}" for each in found]
    return asked, wrong


def main() -> int:
    """Print a line per recording; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=13)
    chosen = parser.parse_args()
    folders = chosen.folders or sorted(p.parent for p in SHARED.glob("data/nccl-jobs/*/truth.json"))
    asked = wrong = 0
    for recording in (each for folder in folders for each in read_recordings(folder)):
        count, found = score(recording, chosen.seed)
        print(f"{recording.name}: {count} asked, {'; '.join(found) or 'right'}", flush=True)
        asked, wrong = asked + count, wrong + len(found)
    print(f"{asked} answers about changed recordings, {wrong} remarks")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
