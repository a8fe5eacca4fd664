"""From samples to channels: residuals against the cohort, running means, one sample of the fast channel a second."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import peer_medians
from ingero.core.verdict.channels import fast_update, learn, stall_update
from ingero.core.verdict.links import follow_transfer, time_inside
from ingero.core.verdict.own_times import Column, Frame, Index, SampleBatch, latest, select
from ingero.core.verdict.table import FRAMES, HEALTHY, State

SAMPLE_S = 1.0  # steps are averaged into samples of about this long
PACE_S = 5.0  # watched before that number is chosen
MIN_PEERS = 3
SMOOTH = 0.2
SLOWLY = 0.02
CALM = 0.1  # of the bar: above it a member may be slow already


def take_frame(state: State, frame: Frame, now_s: float) -> int:
    """One step of some cohorts, all members at once; returns how many samples had too few peers to be used."""
    counts = np.bincount(frame.cohort, minlength=state.cohorts.size)[frame.cohort]
    middle = peer_medians(frame.cohort, np.log(frame.batch.own_s))
    return _take(
        state, frame.batch, middle, counts, _levels(frame.cohort, middle, state.cohorts.size), now_s
    )


def take_loose(
    state: State, batches: list[SampleBatch], live: NDArray[np.bool_], now_s: float
) -> int:
    """Unnumbered samples are compared with the last value of every live peer."""
    rows, size = state.rows, state.cohorts.size
    batch = latest(batches)
    rows.held[batch.member] = np.log(batch.own_s)
    peers = np.flatnonzero(live & ~np.isnan(rows.held[: rows.size]))
    peers = peers[np.argsort(rows.cohort[peers], kind="stable")]
    middle = np.full(rows.size, np.nan)
    middle[peers] = peer_medians(rows.cohort[peers], rows.held[peers])
    counts = np.bincount(rows.cohort[peers], minlength=size)
    batch = select(batch, np.argsort(rows.cohort[batch.member], kind="stable"))
    cohort = rows.cohort[batch.member]
    levels = _levels(rows.cohort[peers], middle[peers], size)
    return _take(state, batch, middle[batch.member], counts[cohort], levels, now_s)


def _levels(cohort: Index, middle: Column, size: int) -> Column:
    """Pace of every cohort, NaN for those not there: the median without the slowest, who is not the others' pace."""
    levels = np.full(size, np.nan)
    np.fmin.at(levels, cohort, middle)
    return levels


def _take(
    state: State, batch: SampleBatch, middle: Column, counts: Index, levels: Column, now_s: float
) -> int:
    """Residuals into the stall channel and into the sample being made, which is used where it is complete."""
    rows, cohorts = state.rows, state.cohorts
    cohort = rows.cohort[batch.member]
    kept = cohorts.is_alone[cohort] | (counts >= MIN_PEERS)
    dropped = int((~kept).sum())
    if dropped:
        batch, cohort, middle = select(batch, kept), cohort[kept], middle[kept]
    if not len(batch):
        return dropped
    members = batch.member
    residual = np.log(batch.own_s) - np.where(cohorts.is_alone[cohort], 0.0, middle)
    rows.own[members, rows.frames[members] % FRAMES] = batch.own_s
    rows.idle[members, rows.frames[members] % FRAMES] = batch.idle_s
    rows.frames[members] += 1
    _follow_usual(state, batch, cohort)
    rows.span[members] = _follow(rows.span[members], batch.span_s)
    late = _follow(rows.late[members], batch.lateness_s)
    rows.late[members] = np.where(
        np.isnan(batch.lateness_s), np.nan, late
    )  # who was early once may be late now
    step = np.where(batch.step < 0, rows.frames[members], batch.step)
    warm = rows.settled[members] > 0
    if warm.any():
        stall_update(rows, cohorts, members[warm], residual[warm], step[warm])
    rows.sum[members] += residual
    rows.count[members] += 1
    _advance_cohorts(state, cohort, levels, time_inside(batch), now_s)
    ripe = (cohorts.per_sample > 0) & (cohorts.frames % np.maximum(cohorts.per_sample, 1) == 0)
    _sample(state, members[ripe[cohort]])
    return dropped


def _follow(before: Column, value: Column, smooth: float | Column = SMOOTH) -> Column:
    """A running mean that starts with the first known value and skips unknown ones."""
    moved = np.where(np.isnan(before), value, before + smooth * (value - before))
    return np.where(np.isnan(value), before, moved)


def _follow_usual(state: State, batch: SampleBatch, cohort: Index) -> None:
    """Own time, and what the GPU waits for its host beyond the peers, learnt while a member is above suspicion."""
    rows, members = state.rows, batch.member
    calm = (rows.state[members] == HEALTHY) & ~(rows.cusum[members] > CALM * rows.bar[members])
    per_sample = np.maximum(
        state.cohorts.per_sample[cohort], 1
    )  # steps that are known before suspicion can be
    own = _follow(rows.usual_own[members], np.log(batch.own_s), SLOWLY / per_sample)
    rows.usual_own[members] = np.where(calm, own, rows.usual_own[members])
    known = np.isfinite(batch.idle_s)
    if not known.any():
        return
    beyond = batch.idle_s[known] - peer_medians(cohort[known], batch.idle_s[known])
    members, beyond = members[known & calm], beyond[calm[known]]
    rows.usual_idle[members] = _follow(rows.usual_idle[members], beyond, SLOWLY)


def _advance_cohorts(
    state: State, cohort: Index, levels: Column, inside: Column, now_s: float
) -> None:
    cohorts = state.cohorts
    first = np.flatnonzero(np.concatenate(([True], cohort[1:] != cohort[:-1])))
    present = cohort[first]
    cohorts.level[present] = _follow(cohorts.level[present], levels[present])
    cohorts.frames[present] += 1
    follow_transfer(cohorts, present, first, inside)
    unknown = present[cohorts.per_sample[present] == 0]
    if len(unknown):
        _find_pace(state, unknown, now_s)


def _find_pace(state: State, unknown: Index, now_s: float) -> None:
    """How many steps make one sample of about a second."""
    cohorts = state.cohorts
    starting = np.isnan(cohorts.first_frame_s[unknown])
    cohorts.first_frame_s[unknown[starting]] = now_s
    cohorts.frames[unknown[starting]] = 0
    elapsed = now_s - cohorts.first_frame_s[unknown]
    ready = (elapsed >= PACE_S) & (cohorts.frames[unknown] >= 3)
    known = unknown[ready]
    step_s = elapsed[ready] / cohorts.frames[known]
    cohorts.per_sample[known] = np.maximum(np.rint(SAMPLE_S / step_s), 1)
    cohorts.sample_s[known] = step_s * cohorts.per_sample[known]


def _sample(state: State, members: Index) -> None:
    rows = state.rows
    members = members[rows.count[members] > 0]
    residual = rows.sum[members] / rows.count[members]
    rows.sum[members] = 0.0
    rows.count[members] = 0.0
    warm = rows.settled[members] > 0
    fast_update(rows, members[warm], residual[warm])
    learn(rows, state.cohorts, members, residual)
    rows.seen[members] += 1
    rows.quiet[members] += 1
