"""What the job loses by a slow member at most, as far as own times can tell.

Where collectives overlap compute, peers that wait for a slow member compute during that wait.
Their own time then falls by far more than the slow member's rises. In that case the own time
that the peers showed before is used for comparison.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index, nan_median
from ingero.core.verdict.channels.advance import advance_effect
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import (
    ALARM_FRAMES,
    CHRONIC,
    FRAMES,
    HEALTHY,
    STALL,
    STRAGGLER,
    SUSPECT,
    MemberRows,
)

LEAST_ADVANCE = 0.001  # of a step: with less, the job waits for a whole group of ranks with it
# Standard errors up to "at most": as sure as "± two errors", but a bound has one side only.
AT_MOST = 1.645
HIDDEN_MIN = 0.07  # own times vary by this much from batch to batch
AS_SLOW = 0.5  # of the excess of a member: one that has less is not slow in the way it is


def recent_frames(rows: MemberRows, index: int) -> Index:
    """Return the ring positions of the steps since the episode began, at least ALARM_FRAMES."""
    frames = int(rows.frames[index])
    length = min(max(frames - int(rows.raised_frame[index]), ALARM_FRAMES), FRAMES, max(frames, 1))
    return np.arange(frames - length, frames) % FRAMES


def find_hidden(registry: MemberRegistry, index: int, policy: VerdictPolicy) -> float:
    """Return by how much, as a logarithm, the peers' own time fell since this member is slow.

    The result is 0 where it did not fall. It is measured when suspicion begins, because later
    batches may differ. A member that is faster than it was hides nobody's compute, and one that is
    compared with itself alone is not compared with theirs.
    """
    rows, window = registry.rows, recent_frames(registry.rows, index)
    if registry.cohorts.is_alone[rows.cohort[index]]:
        return 0.0
    own, baseline = rows.own_s[index, window], rows.baseline_log_own[index]
    theirs = rows.own_s[registry.peers_of(index, policy.stale_s)][:, window]
    if np.isnan(theirs).all() or np.isnan(own).all() or np.isnan(baseline):
        return 0.0
    hidden = float(baseline - rows.bias[index] - np.log(np.nanmedian(theirs)))
    is_slower = np.log(np.nanmedian(own)) >= baseline
    return hidden if is_slower and hidden > HIDDEN_MIN else 0.0


def own_shown(rows: MemberRows, index: int, peers: Index, window: Index) -> NDArray[np.float64]:
    """Return own times as [member, step], of the peers and in the last row of the member itself.

    Own time that waiting peers hide is added to theirs.
    """
    own: NDArray[np.float64] = rows.own_s[np.append(peers, index)][:, window]
    own[:-1][rows.state[peers] == HEALTHY] *= math.exp(rows.hidden[index])
    return own


def most_lost(
    registry: MemberRegistry, index: int, peers: Index, *, excess: float, period: int | None
) -> float:
    """Return the share of its time that the job loses by this member at most."""
    rows = registry.rows
    cohort = np.append(peers, index)
    own = own_shown(rows, index, peers, recent_frames(rows, index))
    typical = float(np.nanmedian(own))
    if rows.channel[index] == STALL:
        rate = 1 / period if period else float(rows.recent_stalls[index] / rows.recent_steps[index])
        lost_s = excess * rate * typical
        by_own_time = lost_s / max(_step_s(rows.span_s[cohort]), typical + lost_s)
        return max(by_own_time, _stalled_share(registry.cohorts.span_s[rows.cohort[index]]))
    blamed = _blamed(rows, cohort)
    by_own_time = loss_share(
        own, rows.span_s[cohort], blamed, registry.slowest_model_s(index)
    ) * _part(own, blamed)
    # What the job waits for this member alone, at the one place where it waits most. The waits of a
    # step add up where peers do not compute meanwhile; then their own time does not fall.
    advance = float(advance_effect(rows, np.array([index]))[0])
    if rows.hidden[index] > 0 and advance > LEAST_ADVANCE:
        return float(min(advance, 1.0))
    return float(np.clip(max(advance, by_own_time), 0.0, 1.0))


def _stalled_share(spans_s: Column) -> float:
    """Return the share of its time that the job loses by single long steps, as a bound of 95 %.

    Most steps have no stall, so the median step tells how long steps would be without any.
    """
    known = spans_s[~np.isnan(spans_s)]
    if len(known) < ALARM_FRAMES:
        return 0.0
    error_s = float(known.std()) / math.sqrt(len(known))
    mean_s = float(known.mean()) + AT_MOST * error_s
    return max(1.0 - float(np.median(known)) / mean_s, 0.0)


def part_of_loss(rows: MemberRows, index: int, peers: Index) -> float:
    """Return the part of a joint loss that a member has: its part of all excess own time.

    Members that stall do so at different steps, so each has a loss of its own. What was found by
    own time and by what the job waits for is slow at the same steps.
    """
    cohort = np.append(peers, index)
    blamed = _blamed(rows, cohort) & (rows.channel[cohort] != STALL)
    blamed &= (rows.channel[cohort] == CHRONIC) == (rows.channel[index] == CHRONIC)
    if blamed.sum() <= 1 or not blamed[-1]:
        return 1.0
    own = own_shown(rows, index, peers, recent_frames(rows, index))
    return _part(own, blamed & _shares(rows, cohort, own))


def _shares(rows: MemberRows, cohort: Index, own: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which members have a part in what the last one costs.

    One that is only suspected, as peers are that react to a slow one, surely has to be nearly as
    slow as it.
    """
    surplus = np.nanmean(own, axis=1) - float(np.nanmedian(own))
    steps = np.maximum(np.isfinite(own).sum(axis=1), 1)
    error = np.nanstd(own, axis=1) / np.sqrt(steps)
    shares = (rows.state[cohort] == STRAGGLER) | (surplus - error >= AS_SLOW * surplus[-1])
    shares[-1] = True
    return np.asarray(shares, bool)


def _blamed(rows: MemberRows, cohort: Index) -> NDArray[np.bool_]:
    """Tell which members are suspected or blamed; the last one is."""
    blamed = np.isin(rows.state[cohort], (SUSPECT, STRAGGLER))
    if rows.channel[cohort[-1]] != CHRONIC:  # one that always was slow sets the pace
        blamed &= rows.channel[cohort] != CHRONIC
    blamed[-1] = True
    return np.asarray(blamed, bool)


def _part(own: NDArray[np.float64], blamed: NDArray[np.bool_]) -> float:
    surplus = np.maximum(np.nanmean(own[blamed], axis=1) - float(np.nanmedian(own)), 0.0)
    return float(surplus[-1] / surplus.sum()) if surplus.sum() > 0 else 0.0


def loss_share(
    own: NDArray[np.float64], span: Column, blamed: NDArray[np.bool_], pace_s: float = 0.0
) -> float:
    """Return the share of its time that the job would gain without the blamed members.

    Each of them is replaced by the median, and a step ends with the slowest member left, or with a
    slower GPU model, whose own time is `pace_s`. `own`
    holds one row per member and one column per step. Where the length of steps is unknown, the
    slowest own time stands for it.
    """
    steps = ~np.isnan(own).all(axis=0)
    own = own[:, steps]
    if not own.size or blamed.all():
        return 0.0
    typical = nan_median(own, 0)
    slowest = np.nanmax(own, axis=0)
    without = np.fmax(np.nanmax(np.where(blamed[:, None], -np.inf, own), axis=0), typical)
    slowest, without = np.maximum(slowest, pace_s), np.maximum(without, pace_s)
    total = _step_s(span) or float(slowest.mean())
    return float(np.clip((slowest - without).mean() / total, 0.0, 1.0))


def _step_s(span: Column) -> float:
    """Return the median length of a step; 0 where no member reports it."""
    return 0.0 if np.isnan(span).all() else float(np.nanmedian(span))


def job_usd(rows: MemberRows, index: int, policy: VerdictPolicy) -> float:
    """Return the dollars per hour of the whole job, NaN where a rate is unknown.

    Members that left the job are not counted.
    """
    size = rows.size
    present = (rows.job[:size] == rows.job[index]) & (rows.last_seen_s[:size] > 0)
    present &= rows.last_seen_s[:size] >= rows.last_seen_s[index] - policy.forget_s
    return float(rows.usd_per_hour[:size][present].sum())
