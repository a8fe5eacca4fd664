"""Which calls of a step a rank waits for before it comes to a later one, measured in its scatter.

Whoever waits for a call starts anew when it has ended. Whoever works on meanwhile comes sooner
after its end, by what it waited.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.recorded.step_calls import FLAG, QUEUED_S, StepCalls, last_ends
from ingero.core.collectives.columns import Floats

SETTLED = 0.02  # of a place: what remains undecided follows the beginning of the step
FARTHEST = 64  # calls back that a place may wait for
MIN_SAMPLES = 64
CUT = (0.01, 0.99)  # quantiles: a few spoilt times, far outside, would decide alone
MOSTLY, NEARLY_ALL = 0.5, 0.9  # of the calls
QUARTERS, UNEVEN = (0.25, 0.5, 0.75), 0.2  # of a step: half of the steps differ by more
# A worker that is a little slower for a whole step waits less and works for longer: it seems to
# have worked while it waited. Dependence is either there or not; what lies between is scatter.
UNCLEAR = 0.25


def find_followed(
    calls: StepCalls, workers: Sequence[int], is_uneven: bool, otherwise: Floats | None = None
) -> Floats:
    """Return as [place, earlier place] how much of a delay at the earlier one reaches a place.

    What is left follows the flag, or the beginning of the step. A worker whose steps do not show
    it is as `otherwise`.
    """
    if otherwise is not None and (is_uneven or len(calls.start[0]) < MIN_SAMPLES):
        return otherwise
    places = calls.start.shape[2]
    follows = np.zeros((places, places))
    is_queued = are_queued(calls, workers, NEARLY_ALL)
    for place in range(FLAG + 1, places):
        queue = calls.before_on_stream(workers[0], place) if is_queued[place] else None
        if queue is not None:
            follows[place, queue] = 1.0
            continue
        left = 1.0
        for before in range(place - 1, max(FLAG, place - 1 - FARTHEST), -1):
            follows[place, before] = left * _dependence(calls, workers, place, before, is_uneven)
            left -= follows[place, before]
            if left < SETTLED:
                break
    return follows


def are_queued(
    calls: StepCalls, workers: Sequence[int], share: float = MOSTLY
) -> NDArray[np.bool_]:
    """Tell at which places most calls begin when the one before them on their stream has ended."""
    places = calls.start.shape[2]
    result = np.zeros(places, bool)
    for place in range(FLAG + 1, places):
        counted = queued = 0
        for worker in workers:
            before = calls.before_on_stream(worker, place)
            if before is not None:
                free = calls.end[worker, :, before]
                at_once = calls.start[worker, :, place] - free <= QUEUED_S
                queued += int((at_once & (calls.enqueue[worker, :, place] < free)).sum())
            counted += int(np.isfinite(calls.start[worker, :, place]).sum())
        result[place] = queued > share * counted
    return result


def are_uneven(period_s: Floats) -> bool:
    """Whether some steps have far more work than others, as with sequences of many lengths.

    They have longer waits as well, which does not mean that one follows the other.
    """
    known = period_s[np.isfinite(period_s)]
    low, middle, high = np.quantile(known, QUARTERS) if len(known) else (0.0, 0.0, 0.0)
    return bool(high - low > UNEVEN * middle)


def _dependence(
    calls: StepCalls, workers: Sequence[int], place: int, before: int, is_uneven: bool
) -> float:
    """Return 1 where workers start anew after they waited, and 0 where they worked meanwhile.

    Of uneven steps, only what workers differ from each other by tells.
    """
    since = calls.start[workers, :, place] - calls.end[workers, :, before]
    waited = calls.wait[workers, :, before]
    known = np.isfinite(since) & np.isfinite(waited)
    is_over = calls.end[workers, :, before] <= calls.start[workers, :, before]
    if known.sum() < MIN_SAMPLES or is_over[known].mean() > MOSTLY:  # over before it is needed
        return 0.0
    since, waited = (_scatter(table, known) for table in (since, waited))
    if is_uneven:
        since, waited = (_scatter(table.T, known.T) for table in (since, waited))
    slope = (since * waited).sum() / max(float((waited**2).sum()), 1e-18)
    return float(np.clip((1.0 + slope - UNCLEAR) / (1.0 - 2 * UNCLEAR), 0.0, 1.0))


def _scatter(table: Floats, known: NDArray[np.bool_]) -> Floats:
    """Return by what the values of each row differ from their mean; spoilt ones are cut."""
    low, high = np.quantile(table[known], CUT)
    table = np.clip(np.where(known, table, 0.0), 2 * low - high, 2 * high - low)
    mean = np.where(known, table, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    scatter: Floats = np.where(known, table - mean[:, None], 0.0)
    return scatter


def measure_gaps(calls: StepCalls, follows: Floats, worker: int) -> Floats:
    """Return as [step, place] the time since the calls that a place waits for."""
    start, end = calls.start[worker], calls.end[worker]
    begin = last_ends(end[None])[0]
    flag = np.where(np.isfinite(end[:, [FLAG]]), end[:, [FLAG]], begin)
    origin = np.concatenate([begin, np.repeat(flag, start.shape[1] - 1, axis=1)], axis=1)
    left = np.maximum(1.0 - follows.sum(axis=1), 0.0)
    known = np.nan_to_num(end)  # a call that is missing makes a place unknown, below
    gaps: Floats = start - known @ follows.T - np.where(left > 0, left * origin, 0.0)
    is_missing = (~np.isfinite(end)).astype(float) @ follows.T > 0
    return np.where(is_missing, np.nan, gaps)
