"""Calls that are all alike and parts of one step, such as two equal all-reduces: told by rhythm.

Where every heavy call has one kind, kinds do not show how many of them a step has. The time between
them does: some follow the optimizer, or more work than others, in turn. What one rank alone adds is
no rhythm of the job, so calls for which all wait for one rank are left out.

Patterns of several kinds are steps. Micro-batches that all scatter their gradients are counted as
such, too: hosts that wait for their GPUs every few steps leave the same trace.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.recorded.grid import RecordGrid
from ingero.core.blame.suspects import MEDIAN_ERROR
from ingero.core.collectives.columns import Collectives, Floats
from ingero.core.robust import MAD_TO_SIGMA, median_and_mad, nan_median

# What hosts do now and then, such as looking at a loss, leaves their GPUs idle for a few percent
# of a step. Parts of a step differ by work: by the optimizer, or by the network that is trained.
DIFFERENT = 0.10  # of a part
# Jobs log or save every five steps and more, mostly: one of them is longer then, perhaps the next
# one as well, and the others are alike. So most parts of a step may be alike only if they are few.
FEW_PARTS, MOSTLY = 4, 0.6
SIGMAS = 6.0  # standard errors: the longest and the shortest of many parts are compared
MOST_PARTS = 16  # more equal calls are buckets, and evaluations are rarer
MIN_STEPS = 8
REGULAR = 0.9  # of the steps must have the same longest part
KNOWN = 0.25  # of the steps must show how long a part is; a late rank may hide it in the others


def join_parts(
    collectives: Collectives,
    grid: RecordGrid,
    period_s: Floats,
    late_s: Floats,
    flag_step: NDArray[np.intp],
    ranks: Sequence[int],
) -> RecordGrid:
    """Return the grid with as many calls in a step as have one rhythm.

    `period_s` is how long each lasts by the steadiest call, NaN where that is unknown, and `late_s`
    how late the rank of each row of `collectives` is. `flag_step` tells which call follows a flag:
    there ranks wait for each other first.
    """
    if any(each is not None and sum(each.needed) > 1 for each in grid.patterns):
        return grid
    latest_s = np.zeros(len(period_s))
    for of_step in (grid.step, flag_step):
        rows = np.flatnonzero((of_step >= 0) & np.isfinite(late_s))
        np.maximum.at(latest_s, of_step[rows], late_s[rows])
    parts = find_parts(period_s, latest_s)
    if parts == 1:
        return grid
    first = _find_first(collectives, grid, ranks, parts)
    skipped = (parts - first) % parts  # parts of the first step that were not recorded
    at, is_placed = grid.step + skipped, grid.step >= 0
    lengths = np.array([grid.length(rank) for rank in range(len(ranks))])
    rank_of = np.searchsorted(np.array(ranks), collectives.who)
    step = np.where(is_placed, at // parts, -1)
    place = np.where(is_placed, grid.place + at % parts * lengths[rank_of], -1)
    size = -(-(grid.whole.shape[1] + skipped) // parts)
    whole = np.zeros((len(ranks), size * parts), bool)
    whole[:, skipped : skipped + grid.whole.shape[1]] = grid.whole
    last = tuple(
        place + int(length) * (parts - 1) if place >= 0 else place
        for place, length in zip(grid.last, lengths, strict=True)
    )
    joined = np.asarray(whole.reshape(len(ranks), size, parts).all(axis=2), bool)
    return replace(grid, step=step, place=place, whole=joined, last=last, parts=parts)


def find_parts(period_s: Floats, latest_s: Floats) -> int:
    """Return how many calls have a rhythm; 1 where there is none.

    `latest_s` is how late the last rank is at each.
    """
    whole = np.isfinite(period_s)
    if not whole.any():
        return 1
    length_s = float(np.median(period_s[whole]))
    alone = latest_s - float(np.median(latest_s[whole]))
    share = np.where(alone > DIFFERENT * length_s, np.nan, period_s)
    if length_s <= 0 or not np.isfinite(share).any():
        return 1
    share /= float(np.nanmean(share))
    found = np.zeros(1)  # the rhythm of the parts found so far
    for parts in range(2, MOST_PARTS + 1):
        steps = (len(share) - parts) // parts  # without the first, of the warm-up
        if steps < MIN_STEPS:
            break
        table = share[parts : parts + steps * parts].reshape(steps, parts)
        is_known = np.isfinite(table).mean(axis=0) >= KNOWN
        rhythm = np.where(is_known, nan_median(table, 0), np.nan)
        if parts % len(found):
            continue
        # Steps that hold several of those found must differ as such.
        known = np.resize(found, parts)
        rest = rhythm - known
        if _do_differ(rest.reshape(-1, len(found))) and _is_regular(table - known, rest):
            found = rhythm
    return len(found)


def _do_differ(rest: Floats) -> bool:
    """Whether rows differ, and not only by what a job does every so many steps."""
    least = DIFFERENT * rest.shape[1]
    known = rest[np.isfinite(rest)]
    if len(known) < 2 or float(np.ptp(known)) < least:
        return False
    apart = np.abs(rest - nan_median(rest, 0)).max(axis=1)
    alike = int((apart < least / 2).sum())
    return len(rest) <= FEW_PARTS or alike < MOSTLY * int(np.isfinite(apart).sum())


def _is_regular(table: Floats, rhythm: Floats) -> bool:
    """Whether the longest part is longer than the shortest in nearly every step."""
    longest, shortest = (table[:, int(at(rhythm))] for at in (np.nanargmax, np.nanargmin))
    beyond = longest - shortest
    beyond = beyond[np.isfinite(beyond)]
    if len(beyond) < MIN_STEPS // 2 or (beyond > 0).mean() < REGULAR:
        return False
    centre, mad = median_and_mad(beyond)
    return centre >= SIGMAS * MEDIAN_ERROR * MAD_TO_SIGMA * mad / float(np.sqrt(len(beyond)))


def _find_first(
    collectives: Collectives, grid: RecordGrid, ranks: Sequence[int], parts: int
) -> int:
    """Return which part begins a step: the one before which hosts are silent for longest."""
    size = grid.whole.shape[1]
    silence = np.full((len(ranks), size), np.nan)
    for i, code in enumerate(ranks):
        rows = np.flatnonzero(collectives.who == code)
        rows = rows[np.argsort(collectives.start_ns[rows], kind="stable")]
        since = np.diff(collectives.start_ns[rows], prepend=collectives.start_ns[rows[:1]])
        begins = (grid.place[rows] == 0) & (grid.step[rows] >= 0)
        silence[i, grid.step[rows[begins]]] = since[begins]
    usual = nan_median(silence, 0)
    at = np.arange(size) % parts
    middle = [float(nan_median(usual[None, at == part], 1)[0]) for part in range(parts)]
    return int(np.nanargmax(middle))
