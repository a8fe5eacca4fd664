"""From own times to channels: residuals against the cohort, averaged into samples of a second.

The residual of a member is the logarithm of its own time minus that of its peers' median.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index, group_medians, peer_medians
from ingero.core.verdict.baseline import first_history, learn, relearn
from ingero.core.verdict.channels.advance import close_advances, keep_advances
from ingero.core.verdict.channels.fast import update_fast
from ingero.core.verdict.channels.stall import update_stalls
from ingero.core.verdict.channels.step import update_steps
from ingero.core.verdict.events.links import follow_transfer, time_inside
from ingero.core.verdict.job_steps import close_steps, follow_steps
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.own_times import Frame, SampleBatch, latest, select
from ingero.core.verdict.pace import follow_pace
from ingero.core.verdict.table import CLOSED, FRAMES, HEALTHY, RECENT_HISTORY, CohortRows
from ingero.core.verdict.twins import against_twins, note_apart

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / golden ratio
MIN_MEMBERS = 3  # in a cohort, for a comparison with peers
SMOOTH = 0.2
SLOWLY = 0.02
TOGETHER = 0.01  # per second: how fast a whole job's own times become usual; nobody is suspected
LEAST_OWN = 0.02  # of a step, added to every own time
CALM = 0.1  # of the decision limit: above it a member may be slow already


def take_frame(registry: MemberRegistry, frame: Frame, now_s: float) -> int:
    """Take one step of some cohorts; return how many samples had too few peers to be used."""
    size = registry.cohorts.size
    counts = np.bincount(frame.cohort, minlength=size)[frame.cohort]
    own = _log_own(registry, frame.batch.member, frame.batch.own_s)
    middle = peer_medians(frame.cohort, own)
    levels = _levels(frame.cohort, own, middle, size)
    _remember(registry.cohorts, frame, middle, counts)
    return _take(registry, frame.batch, middle, counts, levels, now_s)


def _log_own(registry: MemberRegistry, members: Index, own_s: Column) -> Column:
    """Return the logarithm of own times, with a small part of the step added to each.

    Where collectives overlap compute, some steps have next to no own time. Its logarithm would
    then say more about these steps than about all others.
    """
    return np.log(own_s + LEAST_OWN * np.nan_to_num(registry.rows.span_s[members]))


def _remember(cohorts: CohortRows, frame: Frame, middle: Column, counts: Index) -> None:
    """Keep the median of this step, for members that report it later.

    It is in the middle of the medians of peers, which differ by whom they leave out.
    """
    first = np.flatnonzero(np.concatenate(([True], frame.cohort[1:] != frame.cohort[:-1])))
    cohort, step = frame.cohort[first], frame.batch.step[first]
    place = _slot(step)
    low, high = np.minimum.reduceat(middle, first), np.maximum.reduceat(middle, first)
    cohorts.closed_step[cohort, place] = step
    cohorts.closed_middle[cohort, place] = (low + high) / 2
    cohorts.closed_members[cohort, place] = counts[first]


def _slot(step: NDArray[np.int64]) -> Index:
    """Return where the median of a step is kept.

    Points of short steps come for every 2ⁿ-th step only; the golden ratio spreads these, too.
    """
    spread = step.astype(np.uint64) * GOLDEN >> np.uint64(32)
    return np.asarray(spread % np.uint64(CLOSED), np.intp)


def take_late(registry: MemberRegistry, batch: SampleBatch, now_s: float) -> int:
    """Take samples of steps that the peers reported earlier; return how many were too late.

    They are compared with what the peers showed at that step, so that a member whose reports take
    long is judged, and its peers need not wait for it.
    """
    rows, cohorts = registry.rows, registry.cohorts
    cohort, place = rows.cohort[batch.member], _slot(batch.step)
    is_known = cohorts.closed_step[cohort, place] == batch.step
    is_known &= cohorts.closed_members[cohort, place] >= MIN_MEMBERS - 1
    is_known &= ~cohorts.is_small[cohort]
    late = select(batch, is_known)
    for turn in _turns(late.member):
        part = select(late, turn)
        _keep_residuals(registry, part, cohorts.closed_middle[
            rows.cohort[part.member], _slot(part.step)
        ].astype(np.float64))  # fmt: skip
        per_sample = cohorts.frames_per_sample[rows.cohort[part.member]]
        is_complete = (per_sample > 0) & (rows.residual_count[part.member] >= per_sample)
        _close_samples(registry, part.member[is_complete])
    return len(batch) - len(late)


def _turns(member: Index) -> list[Index]:
    """Return rows such that each turn holds every member at most once, in order."""
    order = np.argsort(member, kind="stable")
    ordered = member[order]
    is_first = np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(ordered)]
    places = np.arange(len(ordered))
    turn = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return [order[turn == each] for each in range(int(turn.max(initial=-1)) + 1)]


def find_common(registry: MemberRegistry, live: NDArray[np.bool_]) -> None:
    """Find what all members of a job share now, for cohorts that are too small to tell.

    It is the median over the other members of how far each is from its own baseline. While nobody
    in the job is suspected, it becomes usual.
    """
    rows, cohorts = registry.rows, registry.cohorts
    is_small = cohorts.is_small[: cohorts.size] & ~cohorts.is_alone[: cohorts.size]
    rows.common[: rows.size] = 0.0
    if not is_small.any():
        return
    in_job = np.isin(rows.job[: rows.size], cohorts.job[: cohorts.size][is_small])
    known = live & in_job & (rows.frames[: rows.size] > 0)
    members = np.flatnonzero(known & ~np.isnan(rows.baseline_log_own[: rows.size]))
    members = members[np.argsort(rows.job[members], kind="stable")]
    away = _recent_log_own(registry, members) - rows.baseline_log_own[members]
    if len(members):
        away -= _move_baselines(registry, members, away)
        rows.common[members] = np.nan_to_num(peer_medians(rows.job[members], away))


def _move_baselines(registry: MemberRegistry, members: Index, away: Column) -> Column:
    """Move the usual own times of calm jobs towards what all of their members show.

    All members of a job move by the same, so none seems slower or faster than before. Returns by
    how much each of these members moved.
    """
    rows, cohorts, size = registry.rows, registry.cohorts, registry.rows.size
    jobs = int(rows.job[:size].max()) + 1
    shared = np.nan_to_num(group_medians(rows.job[members], away, jobs))
    # The first seconds count alike, as the first steps of each member do.
    seconds = np.nan_to_num(group_medians(rows.job[members], rows.samples[members], jobs))
    moved = shared * np.maximum(TOGETHER, 1 / (seconds + 1))
    is_restless = cohorts.is_restless | ~np.isnan(cohorts.reason_since_s)
    moved[rows.job[:size][is_restless[rows.cohort[:size]]]] = 0.0
    rows.baseline_log_own[:size] += moved[rows.job[:size]]
    return np.asarray(moved[rows.job[members]], np.float64)


def _recent_log_own(registry: MemberRegistry, members: Index) -> Column:
    """Return the mean logarithm of own times over the steps of a sample.

    One step is much noisier than a sample, and what all share is added to every step of one.
    """
    rows = registry.rows
    per_sample = registry.cohorts.frames_per_sample[rows.cohort[members]]
    count = np.minimum(np.clip(per_sample, 1, FRAMES), rows.frames[members])
    back = np.arange(1, int(count.max(initial=1)) + 1)
    place = (rows.frames[members][:, None] - back) % FRAMES
    own_s = np.where(back <= count[:, None], rows.own_s[members[:, None], place], np.nan)
    least_s = LEAST_OWN * np.nan_to_num(rows.span_s[members])
    return np.asarray(np.nanmean(np.log(own_s + least_s[:, None]), axis=1), np.float64)


def take_unnumbered(
    registry: MemberRegistry, batches: list[SampleBatch], live: NDArray[np.bool_], now_s: float
) -> int:
    """Compare unnumbered samples with the last value of each live peer; return as `take_frame`."""
    rows, size = registry.rows, registry.cohorts.size
    batch = latest(batches)
    rows.last_log_own[batch.member] = _log_own(registry, batch.member, batch.own_s)
    peers = np.flatnonzero(live & ~np.isnan(rows.last_log_own[: rows.size]))
    peers = peers[np.argsort(rows.cohort[peers], kind="stable")]
    middle = np.full(rows.size, np.nan)
    middle[peers] = peer_medians(rows.cohort[peers], rows.last_log_own[peers])
    counts = np.bincount(rows.cohort[peers], minlength=size)
    batch = select(batch, np.argsort(rows.cohort[batch.member], kind="stable"))
    cohort = rows.cohort[batch.member]
    levels = _levels(rows.cohort[peers], rows.last_log_own[peers], middle[peers], size)
    return _take(registry, batch, middle[batch.member], counts[cohort], levels, now_s)


def _levels(cohort: Index, own: Column, middle: Column, size: int) -> Column:
    """Return the level of each cohort, NaN for those not present.

    It is the least of the peers' medians: the median without the slowest member. `own` are the
    logarithms of own times; the one of a single member is its level.
    """
    levels = np.full(size, np.nan)
    np.fmin.at(levels, cohort, np.where(np.isnan(middle), own, middle))
    return levels


def _take(
    registry: MemberRegistry,
    batch: SampleBatch,
    middle: Column,
    counts: Index,
    levels: Column,
    now_s: float,
) -> int:
    """Feed residuals to the stall channel and to the running samples; close complete samples."""
    rows, cohorts = registry.rows, registry.cohorts
    cohort = rows.cohort[batch.member]
    is_usable = cohorts.is_small[cohort] | (counts >= MIN_MEMBERS)
    dropped = int((~is_usable).sum())
    if dropped:
        batch, cohort, middle = select(batch, is_usable), cohort[is_usable], middle[is_usable]
    if not len(batch):
        return dropped
    members = batch.member
    # A cohort that is too small is compared with its own baselines and the whole job.
    own = np.nan_to_num(rows.baseline_log_own[members]) * ~cohorts.is_alone[cohort]
    middle = np.where(cohorts.is_small[cohort], own + rows.common[members], middle)
    _keep_residuals(registry, batch, middle)
    present = _advance_cohorts(registry, batch, cohort, levels, now_s)
    per_sample = cohorts.frames_per_sample
    is_complete = (per_sample > 0) & (cohorts.frames % np.maximum(per_sample, 1) == 0)
    update_steps(cohorts, *close_steps(cohorts, present[is_complete[present]]))
    _close_samples(registry, members[is_complete[cohort]])
    return dropped


def _keep_residuals(registry: MemberRegistry, batch: SampleBatch, middle: Column) -> None:
    """Add the residuals of one step to the stall channel and to the samples being made."""
    rows, cohorts, members = registry.rows, registry.cohorts, batch.member
    own = _log_own(registry, members, batch.own_s)
    residual = against_twins(rows, cohorts, members, own, own - middle)
    _keep_step(registry, batch, own, rows.cohort[members])
    step = np.where(batch.step < 0, rows.frames[members], batch.step)
    warm = rows.baseline_samples[members] > 0
    if warm.any():
        judged, own_s = members[warm], np.exp(own[warm])
        of_step = ((own - middle)[warm], step[warm], batch.span_s[warm])
        update_stalls(rows, cohorts, judged, *of_step, own_s)
    known = ~np.isnan(residual)
    rows.residual_sum[members[known]] += residual[known]
    rows.residual_count[members[known]] += 1
    keep_advances(rows, cohorts, batch)


def _keep_step(registry: MemberRegistry, batch: SampleBatch, own: Column, cohort: Index) -> None:
    """Keep what price and cause of an episode are computed from."""
    rows, members = registry.rows, batch.member
    rows.own_s[members, rows.frames[members] % FRAMES] = batch.own_s
    rows.idle_s[members, rows.frames[members] % FRAMES] = batch.idle_s
    rows.frames[members] += 1
    rows.last_step[members] = batch.step
    _follow_baselines(registry, batch, own, cohort)
    rows.span_s[members] = _follow(rows.span_s[members], batch.span_s)
    late = _follow(rows.lateness_s[members], batch.lateness_s)
    # Forgotten when it is no longer measured: a member that was early once may be late now.
    rows.lateness_s[members] = np.where(np.isnan(batch.lateness_s), np.nan, late)


def _follow(before: Column, value: Column, smooth: float | Column = SMOOTH) -> Column:
    """Return a running mean that starts with the first known value and skips unknown ones."""
    moved = np.where(np.isnan(before), value, before + smooth * (value - before))
    return np.where(np.isnan(value), before, moved)


def _follow_baselines(
    registry: MemberRegistry, batch: SampleBatch, log_own: Column, cohort: Index
) -> None:
    """Learn own time, and GPU idle time beyond the peers', while a member is not suspected.

    Nothing is learned during an event of the job either: what many ranks show then is not usual.
    """
    rows, members = registry.rows, batch.member
    calm = (rows.state[members] == HEALTHY) & ~(rows.cusum[members] > CALM * rows.limit[members])
    calm &= np.isnan(registry.cohorts.reason_since_s[cohort])
    # Twins vary alike: what one of them learned alone, the other one would seem to lack.
    calm &= ~np.isin(cohort, cohort[~calm & registry.cohorts.is_twinned[cohort]])
    # A whole sample of steps is learned before the channel can react, so each step weighs less.
    per_sample = np.maximum(registry.cohorts.frames_per_sample[cohort], 1)
    # The first steps count alike: following the very first slowly, it would stay for a minute.
    smooth = np.maximum(SLOWLY / per_sample, 1.0 / np.maximum(rows.frames[members], 1))
    # What a whole job changes by is no usual own time of its members.
    own = _follow(rows.baseline_log_own[members], log_own - rows.common[members], smooth)
    rows.baseline_log_own[members] = np.where(calm, own, rows.baseline_log_own[members])
    known = np.isfinite(batch.idle_s)
    if not known.any():
        return
    beyond = batch.idle_s[known] - peer_medians(cohort[known], batch.idle_s[known])
    members, beyond = members[known & calm], beyond[calm[known]]
    rows.baseline_idle_s[members] = _follow(rows.baseline_idle_s[members], beyond, SLOWLY)


def _advance_cohorts(
    registry: MemberRegistry, batch: SampleBatch, cohort: Index, levels: Column, now_s: float
) -> Index:
    """Add one step of the cohorts in this batch, and return them."""
    cohorts = registry.cohorts
    first = np.flatnonzero(np.concatenate(([True], cohort[1:] != cohort[:-1])))
    present = cohort[first]
    cohorts.level[present] = _follow(cohorts.level[present], levels[present])
    cohorts.frames[present] += 1
    follow_transfer(cohorts, present, first, time_inside(batch))
    follow_steps(cohorts, present, first, batch.span_s, levels[present])
    follow_pace(registry, present, now_s)
    return present


def _close_samples(registry: MemberRegistry, members: Index) -> None:
    """Feed the mean residual since the last sample to the fast channel and the baseline."""
    rows = registry.rows
    if (rows.advance_count[members] > 0).any():
        first = first_history(rows, registry.cohorts, registry.policy)
        close_advances(rows, registry.cohorts, members, registry.policy, first)
    members = members[rows.residual_count[members] > 0]
    residual = rows.residual_sum[members] / rows.residual_count[members]
    rows.residual_sum[members] = 0.0
    rows.residual_count[members] = 0.0
    note_apart(rows, registry.cohorts, members, residual)
    warm = rows.baseline_samples[members] > 0
    update_fast(rows, registry.cohorts, members[warm], residual[warm])
    learn(rows, registry.cohorts, members, residual)
    rows.latest[members, rows.samples[members] % RECENT_HISTORY] = residual
    rows.samples[members] += 1
    rows.quiet_samples[members] += 1
    relearn(rows, registry.cohorts, members)
