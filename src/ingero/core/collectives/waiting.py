"""Waiting at collectives: which rank came last, how long the others waited, and how often.

Lateness is computed in `lag`, unless the sender already gave it. A collective counts as waited for
when its last rank came later than jitter explains. A rank is named only when it caused most of the
waiting, because some rank is always last.
"""

from dataclasses import dataclass

import numpy as np

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.clocks.offsets import ClockFit, align_clocks
from ingero.core.collectives.columns import Collectives, Floats, Ints, Mask
from ingero.core.collectives.lag import SYNCHRONISING_OPS, PeerLag, measure_lag
from ingero.core.collectives.matching import Groups, comm_codes, match_collectives
from ingero.core.collectives.pairs.numbers import number_point_to_point
from ingero.core.periods import sampled_period, stall_period
from ingero.core.robust import group_medians

CLEAR_MS = 1.0  # a smaller lateness is ignored
CLEAR_TIMES = 5.0  # the last rank must be this many times later than the group's median
NAMED_SHARE = 0.6  # share of all waiting that a rank must have caused to be named
MIN_WAITED = 3
SAMPLED_FROM = 1.01  # a record with a larger weight is one of a sample
EXITS = 256  # operations used to align clocks; more only take longer


@dataclass(frozen=True, slots=True)
class Waiting:
    """One row per record; NaN where the value is unknown."""

    groups: Groups
    lag: PeerLag
    lateness_ms: Floats
    wait_ms: Floats
    is_last: Mask  # the rank of its group that the others clearly waited for
    ordinal: Ints  # number of the operation on its communicator, from 0
    weight: Floats  # how many collectives of its rank a record stands for


@dataclass(frozen=True, slots=True)
class Late:
    """The recorder that the others wait for: how often, how long, and with which period."""

    who: int
    times: int
    share: float
    lateness_ms: float
    period: int | None


def measure_waiting(
    collectives: Collectives, given_lateness_ms: Floats, weight: Floats | None = None
) -> Waiting:
    """Return lateness and waiting of each record.

    `given_lateness_ms` is NaN where it was not sent, `weight` where a record stands for itself.
    """
    numbered = number_point_to_point(collectives)
    groups = match_collectives(numbered)
    lag = measure_lag(numbered, groups, _clocks(numbered, groups))
    lateness = np.where(np.isnan(given_lateness_ms), lag.shown_lateness_ms, given_lateness_ms)
    size = int(groups.max(initial=-1)) + 1
    known = ~np.isnan(lateness)
    highest = np.full(size, -np.inf)
    np.maximum.at(highest, groups[known], lateness[known])
    wait = np.where(known, highest[groups] - lateness, np.nan)
    typical = group_medians(groups[known], lateness[known], size, is_lower=True)
    clear = highest > np.fmax(CLEAR_MS, CLEAR_TIMES * typical)
    last = known & clear[groups] & (lateness == highest[groups])
    alone = np.ones(len(collectives))
    return Waiting(
        groups,
        lag,
        lateness,
        wait,
        _first_of_each(groups, last),
        _ordinals(numbered, groups),
        alone if weight is None else np.where(np.isnan(weight), alone, weight),
    )


def find_late(collectives: Collectives, waiting: Waiting) -> Late | None:
    """Return the recorder that caused most of the waiting; None if no recorder stands out."""
    rows = np.flatnonzero(waiting.is_last)
    if len(rows) < MIN_WAITED:
        return None
    size = len(collectives.recorders)
    caused = np.bincount(
        collectives.who[rows], waiting.lateness_ms[rows] * waiting.weight[rows], size
    )
    who = int(caused.argmax())
    share = float(caused[who] / caused.sum())
    own = rows[collectives.who[rows] == who]
    if share < NAMED_SHARE or len(own) < MIN_WAITED:
        return None
    times = round(float(waiting.weight[own].sum()))
    lateness_ms = float(np.median(waiting.lateness_ms[own]))
    return Late(who, times, share, lateness_ms, _period(collectives, waiting, own))


def _period(collectives: Collectives, waiting: Waiting, stalls: Ints) -> int | None:
    """Return the operations between two stalls; of a sample, by the numbers of its operations."""
    kind = (collectives.comm == collectives.comm[stalls[0]]) & (
        collectives.op == collectives.op[stalls[0]]
    )
    if (waiting.weight[kind] <= SAMPLED_FROM).all() or (collectives.seq[kind] < 0).any():
        return stall_period(np.unique(waiting.ordinal[stalls]).tolist())
    own = stalls[kind[stalls]]
    period = sampled_period(collectives.seq[own].tolist(), collectives.seq[kind].tolist())
    if period is None:
        return None
    # sequence numbers count all operations of the communicator
    on_comm = collectives.comm == collectives.comm[stalls[0]]
    share = waiting.weight[kind].sum() / waiting.weight[on_comm].sum()
    return max(round(period * float(share)), 1)


def _clocks(collectives: Collectives, groups: Groups) -> dict[int, ClockFit] | None:
    """Fit the clocks of all recorders from common exits.

    Return None when one host wrote all rows, and no fits when GPUs timed every operation.
    """
    if len({recorder.node for recorder in collectives.recorders}) <= 1:
        return None
    if (collectives.is_gpu_timed & collectives.has_op(SYNCHRONISING_OPS)).all():
        return {}
    rows = np.flatnonzero(collectives.has_op(SYNCHRONISING_OPS - POINT_TO_POINT_OPS))
    every = max(1, len(np.unique(groups[rows])) // EXITS)
    rows = rows[groups[rows] % every == 0]
    return align_clocks(collectives.who[rows], groups[rows], collectives.end_ns[rows])


def _first_of_each(groups: Groups, chosen: Mask) -> Mask:
    rows = np.flatnonzero(chosen)
    _, first = np.unique(groups[rows], return_index=True)
    result = np.zeros(len(groups), bool)
    result[rows[first]] = True
    return result


def _ordinals(collectives: Collectives, groups: Groups) -> Ints:
    """Number the operations of each kind on each communicator in order of first entry."""
    size = int(groups.max(initial=-1)) + 1
    began = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(began, groups, collectives.entry_ns)
    kind = np.zeros(size, np.int64)
    kind[groups] = comm_codes(collectives.comm) * (len(collectives.ops) + 1) + collectives.op
    order = np.lexsort((began, kind))
    ordered = kind[order]
    starts = (
        np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if size else np.zeros(0, np.intp)
    )
    position = np.arange(size) - np.repeat(starts, np.diff(np.r_[starts, size]))
    result = np.zeros(size, np.int64)
    result[order] = position
    return result[groups]
