"""The price of a slow member: what its job would gain without it, in dollars per hour.

Where collectives overlap compute, peers that wait for a slow member compute during that wait.
Their own time then falls by far more than the slow member's rises. In that case the own time
that the peers showed before is used for comparison.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ingero.core.cost import loss_per_hour
from ingero.core.robust import Column, Index
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import (
    ALARM_FRAMES,
    FRAMES,
    HEALTHY,
    STALL,
    STRAGGLER,
    SUSPECT,
    MemberRows,
)

HIDDEN_MIN = 0.07  # own times vary by this much from batch to batch


def recent_frames(rows: MemberRows, index: int) -> Index:
    """Return the ring positions of the steps since the episode began, at least ALARM_FRAMES."""
    frames = int(rows.frames[index])
    length = min(max(frames - int(rows.raised_frame[index]), ALARM_FRAMES), FRAMES, max(frames, 1))
    return np.arange(frames - length, frames) % FRAMES


def find_hidden(registry: MemberRegistry, index: int, policy: VerdictPolicy) -> float:
    """Return by how much, as a logarithm, the peers' own time fell since this member is slow.

    The result is 0 where it did not fall. It is measured when suspicion begins, because later
    batches may differ. A member that is faster than it was hides nobody's compute.
    """
    rows, window = registry.rows, recent_frames(registry.rows, index)
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


def price(
    rows: MemberRows,
    index: int,
    peers: Index,
    policy: VerdictPolicy,
    *,
    excess: float,
    period: int | None,
) -> float | None:
    """Return the dollars per hour that this member costs its job at most; None without a rate."""
    job_usd = _job_usd(rows, index, policy)
    if math.isnan(job_usd):
        return None
    cohort = np.append(peers, index)
    own = own_shown(rows, index, peers, recent_frames(rows, index))
    typical = float(np.nanmedian(own))
    if rows.channel[index] == STALL:
        rate = 1 / period if period else float(rows.recent_stalls[index] / rows.recent_steps[index])
        lost_s = excess * rate * typical
        step_s = max(_step_s(rows.span_s[cohort]), typical + lost_s)
        return round(loss_per_hour(lost_s / step_s, job_usd), 2)
    blamed = np.isin(rows.state[cohort], (SUSPECT, STRAGGLER))
    blamed[-1] = True
    surplus = np.maximum(np.nanmean(own[blamed], axis=1) - typical, 0.0)
    part = float(surplus[-1] / surplus.sum()) if surplus.sum() > 0 else 0.0
    return round(loss_per_hour(loss_share(own, rows.span_s[cohort], blamed) * part, job_usd), 2)


def loss_share(own: NDArray[np.float64], span: Column, blamed: NDArray[np.bool_]) -> float:
    """Return the share of its time that the job would gain without the blamed members.

    Each of them is replaced by the median, and a step ends with the slowest member left. `own`
    holds one row per member and one column per step. Where the length of steps is unknown, the
    slowest own time stands for it.
    """
    steps = ~np.isnan(own).all(axis=0)
    own = own[:, steps]
    if not own.size or blamed.all():
        return 0.0
    typical = np.nanmedian(own, axis=0)
    slowest = np.nanmax(own, axis=0)
    without = np.fmax(np.nanmax(np.where(blamed[:, None], -np.inf, own), axis=0), typical)
    total = _step_s(span) or float(slowest.mean())
    return float(np.clip((slowest - without).mean() / total, 0.0, 1.0))


def _step_s(span: Column) -> float:
    """Return the median length of a step; 0 where no member reports it."""
    return 0.0 if np.isnan(span).all() else float(np.nanmedian(span))


def _job_usd(rows: MemberRows, index: int, policy: VerdictPolicy) -> float:
    """Return the dollars per hour of the whole job, NaN where a rate is unknown.

    Members that left the job are not counted.
    """
    size = rows.size
    present = (rows.job[:size] == rows.job[index]) & (rows.last_seen_s[:size] > 0)
    present &= rows.last_seen_s[:size] >= rows.last_seen_s[index] - policy.forget_s
    return float(rows.usd_per_hour[:size][present].sum())
