"""The price of a slow member: what its job would gain without it, in dollars an hour.

Where collectives overlap compute, peers that wait for a slow member do their compute inside the wait: their own time
falls, by far more than the slow one's rises. What they showed before is then the pace to compare with.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ingero.core.cost import loss_per_hour
from ingero.core.verdict.own_times import Column, Index
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import (
    ALARM_FRAMES,
    FRAMES,
    HEALTHY,
    STALL,
    STRAGGLER,
    SUSPECT,
    MemberRows,
    State,
)

HIDDEN_MIN = 0.07  # batches make own times wander by this much


def recent_frames(rows: MemberRows, index: int) -> Index:
    """Places in the rings of the steps since the episode began, at least as many as an alarm takes."""
    frames = int(rows.frames[index])
    length = min(max(frames - int(rows.raised_frame[index]), ALARM_FRAMES), FRAMES, max(frames, 1))
    return np.arange(frames - length, frames) % FRAMES


def find_hidden(state: State, index: int, policy: VerdictPolicy) -> float:
    """How much less own time its peers show since it turned slow, as a logarithm; 0 where they do not.

    Asked when suspicion begins: later the batches may be others. One that is faster than it was hides nobody's compute.
    """
    rows, window = state.rows, recent_frames(state.rows, index)
    theirs = rows.own[state.peers_of(index, policy.stale_s)][:, window]
    if (
        np.isnan(theirs).all()
        or np.isnan(rows.own[index, window]).all()
        or np.isnan(rows.usual_own[index])
    ):
        return 0.0
    hidden = float(rows.usual_own[index] - rows.bias[index] - np.log(np.nanmedian(theirs)))
    is_slower = np.log(np.nanmedian(rows.own[index, window])) >= rows.usual_own[index]
    return hidden if is_slower and hidden > HIDDEN_MIN else 0.0


def own_shown(rows: MemberRows, index: int, peers: Index, window: Index) -> NDArray[np.float64]:
    """Own times of the peers and, last, of the member, as [member, step]; of those who wait, with what is hidden."""
    own: NDArray[np.float64] = rows.own[np.append(peers, index)][:, window]
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
    """Dollars an hour that this member costs its job at most; None where a rate is unknown."""
    job_usd = _job_usd(rows, index, policy)
    if math.isnan(job_usd):
        return None
    cohort = np.append(peers, index)
    blamed = np.isin(rows.state[cohort], (SUSPECT, STRAGGLER))
    blamed[-1] = True
    own = own_shown(rows, index, peers, recent_frames(rows, index))
    typical = float(np.nanmedian(own))
    if rows.channel[index] == STALL:
        often = 1 / period if period else float(rows.stalls[index] / rows.watched[index])
        lost_s = excess * often * typical
        return round(
            loss_per_hour(lost_s / max(_step_s(rows.span[cohort]), typical + lost_s), job_usd), 2
        )
    surplus = np.maximum(np.nanmean(own[blamed], axis=1) - typical, 0.0)
    part = float(surplus[-1] / surplus.sum()) if surplus.sum() > 0 else 0.0
    return round(loss_per_hour(loss_share(own, rows.span[cohort], blamed) * part, job_usd), 2)


def loss_share(own: NDArray[np.float64], span: Column, blamed: NDArray[np.bool_]) -> float:
    """What the job would gain without the blamed: each replaced by the median, the step ends with the slowest left.

    `own` holds one row per member and one column per step; without step times the slowest own time stands for them.
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
    """Length of a step; 0 where nobody says."""
    return 0.0 if np.isnan(span).all() else float(np.nanmedian(span))


def _job_usd(rows: MemberRows, index: int, policy: VerdictPolicy) -> float:
    """Dollars an hour of its whole job, NaN where a rate is unknown. Members that left the job do not count."""
    size = rows.size
    here = (rows.job[:size] == rows.job[index]) & (rows.last_seen[:size] > 0)
    here &= rows.last_seen[:size] >= rows.last_seen[index] - policy.forget_s
    return float(rows.usd[:size][here].sum())
