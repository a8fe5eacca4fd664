"""The class of a slow member: its GPU, its host, or stalls.

A host is the reason for a late GPU only where it is hardly ahead of it. A host that sleeps shifts
everything behind it by the same time: the GPU starts as late as the host enqueues, and the host is
as late where it is least ahead as where it is far ahead. A GPU that is slow makes its host late,
too, where that waits for it or launches the work that makes the GPU slow; then one of the two does
not hold. What is usual for a member is taken off first: hosts differ.
"""

from dataclasses import dataclass

import numpy as np

from ingero.contract.verdict import CauseClass, Verdict
from ingero.core.robust import Column, Index
from ingero.core.verdict.channels.stall import do_steps_stall, is_now_and_then
from ingero.core.verdict.loss import MIN_LOSS, Loss
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.table import ALARM_FRAMES, CHRONIC, FRAMES, STALL, MemberRows
from ingero.core.verdict.what_if import own_shown, recent_frames

QUEUED_LONGER, QUEUE_NOISE = 0.5, 0.02  # of the loss, and of the usual time in the queue
QUEUE_NOISES = 2.0  # mean distances from the usual time in the queue
AHEAD_LOST = 0.5  # of the delay, or of all that the host was ahead by
# Quantiles of what peers enqueue late by without starting late: what is excused, and what a delay
# must exceed to say anything.
HARMLESS, FAR_AHEAD = 0.75, 0.9
BY_HOST, BY_NEAR_HOST = 0.6, 0.65  # of the delay: a host that is late by less is no reason
# ... where it is nearest, unless it is late by just the delay, or it is not late there at all.
ALIKE, NOT_LATE = 0.1, 0.15
ABOUT = 0.35  # of the delay: a host that is late by so much more than its GPU is perhaps no reason
BEYOND = 0.25  # of the delay: a host that is late by so much more than its GPU is no reason
GROWS = 0.25  # of its lateness: a host that falls behind by so much more launches more
QUEUED_STEPS = 8  # sent whole, at least: the latest ones show how far ahead the host is
STILL_AHEAD = 0.75  # of what the host was ahead by: with less, it ran out of it
# Delays of the GPU, and share of the queue: the queue of a host that does not wait for its GPU in
# each step is long and wanders. It must have run empty before the GPU had to wait.
DEEP, WANDERS = 3.0, 0.15
NEVER_IDLE = 0.2  # of the delay: a GPU that waited for its host for less is late by itself
ALL_IDLE = 0.75  # of the delay: a GPU that waited for its host for so long is not
AWAITED, OF_MOST = 0.5, 0.9  # of this quantile of its lateness: steps in which it was waited for
WAITED = 0.2  # of what the job loses: a smaller delay does not explain it
KNOWN = 0.7  # of the delay: where the lateness of the host is less certain, it says nothing
NOISES = 2.5  # mean distances of one step, over the root of the number of steps
START, ENQUEUE, NEAR, FAR = range(4)  # columns of `usual_late_s`


def class_of(
    registry: MemberRegistry, index: int, peers: Index, loss: Loss, before: Verdict | None
) -> CauseClass:
    """Return the class of a slow member; what was said `before` in its episode stays."""
    rows, cohorts = registry.rows, registry.cohorts
    if before is not None and before.cause_class is not CauseClass.UNKNOWN:
        return before.cause_class
    placed = _class_by_lateness(rows, index, peers, loss)
    if placed is not CauseClass.COMPUTE:
        placed = _class_by_queue(rows, index, loss) or placed
    if rows.channel[index] == STALL:
        if do_steps_stall(rows, cohorts, index):
            return CauseClass.STALL
        return placed or _class_where_it_arises(rows, index, peers) or CauseClass.STALL
    if rows.channel[index] != CHRONIC and is_now_and_then(rows, cohorts, index):
        return CauseClass.STALL
    return placed or cause_of(rows, index, peers)


@dataclass(frozen=True, slots=True)
class _Lateness:
    """How late GPU and host are beyond what is usual, in seconds, with noise by the same order."""

    start: float
    enqueue: float
    near: float
    far: float
    noise: Column
    is_ahead: bool  # the host is as far ahead of its GPU as it was
    is_deep: bool  # it does not wait for its GPU in each step
    is_fed: bool  # it had enqueued a whole step before the GPU began with it


def _class_by_lateness(rows: MemberRows, index: int, peers: Index, loss: Loss) -> CauseClass | None:
    """Compare how late host and GPU are, beyond what is usual; None where that is not known."""
    late = _measure_lateness(rows, index)
    lost_s = loss.share * float(np.nan_to_num(rows.span_s[index]))
    if late is None or late.start <= max(late.noise[START], WAITED * lost_s):
        return None  # or the job waits for it in another way: at exchanges, for instance
    start, beyond = late.start, late.enqueue - late.start
    idle_s = _idle_excess(rows, index, peers)
    # A host that loses its lead is the reason of what comes when that is used up.
    is_fed = late.is_fed and (late.is_ahead or late.enqueue < BY_HOST * start)
    if is_fed or idle_s < NEVER_IDLE * start:
        return CauseClass.COMPUTE
    is_awaited = idle_s >= ALL_IDLE * start and late.enqueue >= BY_HOST * start
    is_ahead = late.is_ahead and not is_awaited
    if late.is_deep:
        return CauseClass.COMPUTE if is_ahead else CauseClass.HOST
    is_other = late.near < BY_NEAR_HOST * start and abs(beyond) > ALIKE * start
    if late.enqueue < BY_HOST * start or is_other or late.near < NOT_LATE * start:
        return CauseClass.COMPUTE
    noise = late.noise
    is_beyond = beyond > max(BEYOND * start, noise[ENQUEUE])
    grows = late.far - late.near > max(GROWS * late.near, float(np.hypot(noise[NEAR], noise[FAR])))
    if is_ahead and (is_beyond or grows):
        return CauseClass.COMPUTE
    is_unclear = noise[ENQUEUE] > KNOWN * start or (is_ahead and beyond > ABOUT * start)
    return None if is_unclear else CauseClass.HOST


def _measure_lateness(rows: MemberRows, index: int) -> _Lateness | None:
    """Return the means over the steps in which a member was waited for; None for few of them."""
    count = int(rows.late_frames[index])
    places = np.arange(max(count - FRAMES, 0), count) % FRAMES
    kept = (rows.start_late_s, rows.enqueue_late_s, rows.near_late_s, rows.far_late_s)
    before_s = rows.usual_late_s[index, : len(kept), None]
    late = np.stack([column[index, places] for column in kept]) - before_s
    known = np.flatnonzero(np.isfinite(late).all(axis=0))
    if len(known) < ALARM_FRAMES:
        return None
    most = float(np.quantile(late[START, known], OF_MOST))
    awaited = known[late[START, known] >= AWAITED * most]
    if len(awaited) < ALARM_FRAMES:
        return None
    late = late[:, awaited]
    start, enqueue, near, far = late.mean(axis=1).tolist()
    usual_s, queue_s = float(rows.baseline_queue_s[index]), rows.queue_s[index, places]
    now_s = float(np.nanmean(queue_s[-max(len(awaited), QUEUED_STEPS) :]))
    return _Lateness(
        start,
        enqueue,
        near,
        far,
        noise=NOISES * rows.late_noise_s[index, : len(kept)] / np.sqrt(len(awaited)),
        is_ahead=usual_s > start and now_s > STILL_AHEAD * usual_s,
        is_deep=bool(usual_s > DEEP * start and rows.queue_noise_s[index] > WANDERS * usual_s),
        is_fed=bool(np.median(queue_s[awaited]) > rows.span_s[index]),
    )


def cause_of(rows: MemberRows, index: int, peers: Index) -> CauseClass:
    """Return HOST when the host came too late, COMPUTE when the GPU did.

    Without GPU timing the cause is UNKNOWN.
    """
    placed = _class_where_it_arises(rows, index, peers)
    return _class_by_idle_time(rows, index, peers) if placed is None else placed


def _class_where_it_arises(rows: MemberRows, index: int, peers: Index) -> CauseClass | None:
    """Compare at the place of the step that the job waits at most; None without whole steps.

    A host may enqueue late without any consequence: that much is excused, as far as peers show it.
    Where more than all of the delay is nothing unusual, hosts are far ahead and the place tells
    nothing.
    """
    count = int(rows.late_frames[index])
    places = np.arange(max(count - FRAMES, 0), count) % FRAMES
    start, enqueue = rows.start_late_s[index, places], rows.enqueue_late_s[index, places]
    known = np.isfinite(start) & np.isfinite(enqueue)
    if known.sum() < ALARM_FRAMES:
        return None
    late = known & (start >= np.median(start[known]))  # the steps in which it was waited for
    theirs = rows.enqueue_late_s[peers]
    # A peer that started early, because it waits for this one, did not enqueue late by that.
    harmless = np.maximum(np.fmin(theirs, theirs - rows.start_late_s[peers]), 0.0)
    excused, usual = (
        np.nanquantile(harmless, (HARMLESS, FAR_AHEAD)).tolist()
        if np.isfinite(harmless).any()
        else (0.0, 0.0)
    )
    start_s, enqueue_s = float(np.mean(start[late])), float(np.mean(enqueue[late]))
    if usual > start_s and enqueue_s >= 0.5 * start_s:
        return None
    return CauseClass.HOST if enqueue_s - excused >= 0.5 * start_s else CauseClass.COMPUTE


def _class_by_queue(rows: MemberRows, index: int, loss: Loss) -> CauseClass | None:
    """Compare how long the member's collectives wait for its GPU with how long they did.

    A GPU that is slower falls further behind its host: they wait longer. A host that comes late
    eats up what it was ahead by: they wait for less. Between the two, None.
    """
    usual_s, count = float(rows.baseline_queue_s[index]), int(rows.late_frames[index])
    places = np.arange(max(count - FRAMES // 4, 0), count) % FRAMES
    queue_s = rows.queue_s[index, places]
    queue_s = queue_s[np.isfinite(queue_s)]
    if len(queue_s) < ALARM_FRAMES or not usual_s > 0 or loss.slow_s is None:
        return None
    change_s = float(np.mean(queue_s)) - usual_s
    if abs(change_s) < QUEUE_NOISES * rows.queue_noise_s[index]:
        return None  # hosts that run several steps ahead wait for their GPUs now and then
    if change_s > max(QUEUED_LONGER * loss.share, QUEUE_NOISE) * usual_s:
        return CauseClass.COMPUTE
    lost_s = max(loss.share, MIN_LOSS) * loss.slow_s
    return CauseClass.HOST if -change_s > AHEAD_LOST * min(usual_s, lost_s) else None


def _class_by_idle_time(rows: MemberRows, index: int, peers: Index) -> CauseClass:
    """Return HOST when the GPU was idle during most of the excess of own time."""
    idle_s = _idle_excess(rows, index, peers)
    if np.isnan(idle_s):
        return CauseClass.UNKNOWN
    own = own_shown(rows, index, peers, recent_frames(rows, index))
    own_excess = float(np.nanmean(own[-1]) - np.nanmedian(own[:-1]))
    return CauseClass.HOST if idle_s > 0.5 * own_excess else CauseClass.COMPUTE


def _idle_excess(rows: MemberRows, index: int, peers: Index) -> float:
    """Return for how much longer than usual a GPU waits for its host, against its peers; or NaN."""
    idle = rows.idle_s[np.append(peers, index)][:, recent_frames(rows, index)]
    if np.isnan(idle[-1]).all() or np.isnan(idle[:-1]).all():
        return float("nan")
    usual = float(np.nanmedian(idle[:-1]) + np.nan_to_num(rows.baseline_idle_s[index]))
    return float(np.nanmean(idle[-1])) - usual
