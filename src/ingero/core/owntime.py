"""Own time: what a rank spends between collectives, waiting for nobody.

A synchronous job makes step times equal on every rank; own time is what still tells them apart. It runs from the end
of the last collective on that rank to the start of the next, on that rank's clock alone. The part during which the
next collective was not even enqueued is idle: the GPU waited for its host.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives import UNKNOWN, Collectives, Floats, Ints

MIN_CYCLES = 3  # a repeating pattern is believed when it was seen this often
CYCLE_AGREEMENT = 0.9  # share of rows that must repeat after one cycle


@dataclass(frozen=True, slots=True)
class OwnSegments:
    """One row per collective, by recorder and time, `row` pointing into the collectives; a recorder's first is NaN."""

    row: NDArray[np.intp]
    who: NDArray[np.int32]
    own_s: Floats
    idle_s: Floats


@dataclass(frozen=True, slots=True)
class OwnSteps:
    """One row per recorder and step. `span_s` is the step's wall time on that rank, waiting included."""

    who: NDArray[np.int32]
    step: Ints
    own_s: Floats
    idle_s: Floats
    span_s: Floats
    end_ns: Ints


def own_segments(collectives: Collectives) -> OwnSegments:
    """Own time before every collective. Overlapping collectives count once: own time begins when the last one ended."""
    entry = collectives.entry_ns
    order = np.lexsort((collectives.end_ns, entry, collectives.who))
    who, entry, end = collectives.who[order], entry[order], collectives.end_ns[order]
    first = np.ones(len(who), bool)
    first[1:] = who[1:] != who[:-1]
    free_ns = _previous_latest_end(end, first)
    own = np.where(first, np.nan, np.maximum(entry - free_ns, 0) / 1e9)
    idle = np.clip((collectives.start_ns[order] - free_ns) / 1e9, 0.0, None)
    known = collectives.is_gpu_timed[order] & ~first  # an enqueue time alone cannot tell busy from idle
    return OwnSegments(order, who, own, np.where(known, np.fmin(idle, own), np.nan))


def own_steps(collectives: Collectives, segments: OwnSegments | None = None) -> OwnSteps:
    """Own time per step, a step being one turn of the pattern of collectives that each rank repeats.

    A rank without a visible pattern has one collective per step. The cut within the pattern is arbitrary but every
    step holds each collective of it once, so steps of different ranks compare.
    """
    segments = own_segments(collectives) if segments is None else segments
    step = np.full(len(segments.row), UNKNOWN, np.int64)
    for begin, stop in _runs(segments.who):
        step[begin + 1 : stop] = _step_numbers(_signatures(collectives, segments.row[begin + 1 : stop]))
    keep = step >= 0
    who, step, rows = segments.who[keep], step[keep], segments.row[keep]
    starts = np.flatnonzero(np.r_[True, (who[1:] != who[:-1]) | (step[1:] != step[:-1])]) if len(who) else _NOTHING
    if not len(starts):
        empty = np.empty(0)
        return OwnSteps(who, step, empty, empty, empty, step)
    own = np.add.reduceat(segments.own_s[keep], starts)
    idle = np.add.reduceat(segments.idle_s[keep], starts)
    end = np.maximum.reduceat(collectives.end_ns[rows], starts)
    span = np.r_[np.nan, np.diff(end) / 1e9]
    span[np.r_[True, who[starts][1:] != who[starts][:-1]]] = np.nan
    return OwnSteps(who[starts], step[starts], own, idle, span, end)


_NOTHING = np.empty(0, np.intp)


def _previous_latest_end(end: Ints, first: NDArray[np.bool_]) -> Ints:
    """Latest end among the earlier rows of the same run."""
    latest: Ints = np.empty_like(end)
    for begin, stop in _spans(np.flatnonzero(first), len(end)):
        np.maximum.accumulate(end[begin:stop], out=latest[begin:stop])
    return np.concatenate((end[:1], latest[:-1]))


def _runs(values: NDArray[np.int32]) -> list[tuple[int, int]]:
    if not len(values):
        return []
    return _spans(np.flatnonzero(np.r_[True, values[1:] != values[:-1]]), len(values))


def _spans(starts: NDArray[np.intp], length: int) -> list[tuple[int, int]]:
    return list(zip(starts.tolist(), [*starts[1:].tolist(), length], strict=True))


def _signatures(collectives: Collectives, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Dense codes of (communicator, operation, size): what repeats from step to step."""
    key = np.empty(len(rows), [("comm", np.uint64), ("op", np.int16), ("size", np.int64)])
    key["comm"], key["op"], key["size"] = (
        collectives.comm[rows],
        collectives.op[rows],
        collectives.size_bytes[rows],
    )
    return np.unique(key, return_inverse=True)[1].astype(np.intp)


def _step_numbers(signature: NDArray[np.intp]) -> Ints:
    """Step of every row; rows after the last whole cycle get UNKNOWN, so that no step is half a step."""
    cycle = find_cycle(signature)
    numbers = np.arange(len(signature)) // cycle
    numbers[len(signature) // cycle * cycle :] = UNKNOWN
    return numbers


def find_cycle(signature: NDArray[np.intp]) -> int:
    """Length of the shortest pattern that the sequence repeats, 1 when there is none."""
    counts = np.bincount(signature)
    seen = np.flatnonzero(counts >= MIN_CYCLES)
    if not len(seen) or len(signature) < 2 * MIN_CYCLES:
        return 1
    rarest = seen[np.argmin(counts[seen])]
    places = np.flatnonzero(signature == rarest)
    for gaps in range(1, min(8, len(places) - 1) + 1):  # the rarest one may occur several times in a cycle
        candidate = int(np.median(places[gaps:] - places[:-gaps]))
        if candidate * MIN_CYCLES > len(signature):
            break
        if candidate and np.mean(signature[candidate:] == signature[:-candidate]) >= CYCLE_AGREEMENT:
            return candidate
    return 1
