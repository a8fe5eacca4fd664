"""Who is slow: own time per worker and step, compared within its role.

Waiting makes all step times equal, so own times are compared. A worker is named when its own time
exceeds that of workers with the same role by more than the margin of error, step after step. A
worker that is slow only in some steps is named with the period of its stalls. When all workers are
slow in turn, the cause is data imbalance; when a whole role is slow, it is structure. Neither names
a node.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.periods import sampled_period, stall_period
from ingero.core.robust import MAD_TO_SIGMA, nan_median

Floats = NDArray[np.float64]

CUT = 3.0  # sigmas at which a single step is cut, so that hiccups do not decide
MEDIAN_ERROR = 1.2533  # a median scatters this much more than a mean
SCALE_FLOOR = 0.003  # workers do not agree better than this
STEP_NOISE = 0.01  # the least noise of a single step, however steady it looks
FEW_STEPS = 3.0  # the scatter of n steps is known to about FEW_STEPS / n
EFFECT_FLOOR = 0.015  # a smaller excess names nobody
SIGMAS = 4.0
SIGMAS_FEW = 5.0  # with fewer than FEW workers, whose spread is poorly known
FEW = 6
TWO_GROUPS = 3.0  # a spread this much wider than the faster half's means a slow group
FLEET_SHARE = 0.4  # when more of a cohort than this moves together, single workers are not blamed
STALL_FLOOR = 0.08
MIN_STALLS = 3
MORE_STALLS = 3  # times as many stalls as the others have
ALIKE_TOGETHER = 1 / 3  # of the highest stall of a step: lower ones are no stalls of their own
ALIKE = 0.5  # of the usual height of a stall: lower ones are hiccups of every host
MOSTLY = 0.7  # of the excess of a worker: then its stalls are what it costs
WARM_UP_STEPS = 2
MIN_STEPS_TO_DROP = 10


@dataclass(frozen=True, slots=True)
class WorkerSteps:
    """Own time as [worker, step] in seconds; NaN where nothing was recorded.

    `period_s` is the length of each step, `cohort` numbers the roles.
    """

    own_s: Floats
    period_s: Floats
    cohort: NDArray[np.intp]
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A worker slower than its peers; `excess` and `error` are shares of its own time.

    `named_share` is the share of single steps that show it as well. `is_relative` tells that it is
    slower than it usually is beside its peers, from whom it always differs.
    """

    worker: int
    excess: float
    error: float
    excess_s: float
    confidence: float
    named_share: float
    stall_period: int | None
    stalls: tuple[int, ...]
    peers: int
    is_relative: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """What own times show, before the cost is computed."""

    suspects: tuple[Suspect, ...]
    excess: Floats
    error: Floats
    split: tuple[int, ...]
    rivals: tuple[int, ...]
    rotating_loss: float
    rotation: float


def judge(workers: WorkerSteps) -> Findings:
    """Compare each worker with its role; the first steps of a long run are left out as warm-up."""
    own = _steady(workers)
    logs = np.log(np.maximum(own, 1e-12))
    residual = logs - _cohort_reference(logs, workers.cohort, np.ones(len(own), bool), low=True)
    level = _recentred(nan_median(residual, 1), workers.cohort)
    scale = _spread(level)
    over = (level > _limit(scale, len(level))) & (level > SIGMAS * _median_error(residual))
    for _ in range(
        2
    ):  # without workers over the limit, reference and spread are those of healthy ones
        residual = logs - _cohort_reference(logs, workers.cohort, ~over, low=False)
        level = nan_median(residual, 1)
        scale = _spread(level[~over])
        over = (level > _limit(scale, len(level))) & (level > SIGMAS * _median_error(residual))
    error = np.hypot(_median_error(residual), scale)
    split = _split_cohorts(over, level, workers.cohort)
    stalls = _stalls(residual, level, logs)
    stalling = _stalling(stalls, np.expm1(np.nan_to_num(residual)), over)
    chosen = [int(w) for w in np.flatnonzero(over | stalling) if w not in split]
    suspects = tuple(
        _suspect(
            w,
            workers,
            own,
            residual,
            error,
            stalls if stalling[w] and not (over[w] and _lasts(residual[w], stalls[w])) else None,
        )
        for w in sorted(chosen, key=lambda w: -level[w])
    )
    loss, rotation = _rotation(own, workers, residual, {s.worker for s in suspects})
    rivals = _rivals(suspects, level, error, over)
    return Findings(suspects, np.expm1(level), error, split, rivals, loss, rotation)


def _steady(workers: WorkerSteps) -> Floats:
    skip = WARM_UP_STEPS if workers.own_s.shape[1] >= MIN_STEPS_TO_DROP else 0
    return workers.own_s[:, skip:]


def _cohort_reference(
    logs: Floats, cohort: NDArray[np.intp], usable: NDArray[np.bool_], low: bool
) -> Floats:
    """Return for each worker and step the median of the usable members of its cohort.

    With `low` it is the lower of two middle values: of two workers the faster one shows the pace,
    and of four workers two may be slow.
    """
    reference = np.full_like(logs, np.nan)
    for code in np.unique(cohort):
        members = cohort == code
        pool = logs[members & usable] if (members & usable).any() else logs[members]
        ordered = np.sort(pool, axis=0)  # NaN sorts last
        known = np.isfinite(ordered).sum(axis=0)
        lower = np.take_along_axis(ordered, (np.maximum(known - 1, 0) // 2)[None], axis=0)[0]
        upper = np.take_along_axis(ordered, (known // 2).clip(max=len(ordered) - 1)[None], axis=0)[
            0
        ]
        reference[members] = lower if low else (lower + upper) / 2
    return reference


def _recentred(level: Floats, cohort: NDArray[np.intp]) -> Floats:
    """Return levels relative to their cohort's.

    Against a lower median, even equal workers are a little above zero.
    """
    result = level.copy()
    for code in np.unique(cohort):
        members = np.flatnonzero((cohort == code) & np.isfinite(level))
        if len(members):
            result[members] -= np.sort(level[members])[(len(members) - 1) // 2]
    return result


def _spread(level: Floats) -> float:
    known = level[np.isfinite(level)]
    if len(known) < 3:
        return SCALE_FLOOR
    known = np.sort(known)
    both = MAD_TO_SIGMA * float(np.median(np.abs(known - np.median(known))))
    low = known[: (len(known) + 1) // 2]
    below = MAD_TO_SIGMA * float(np.median(low[-1] - low))
    return max(SCALE_FLOOR, below if both > TWO_GROUPS * max(below, SCALE_FLOOR) else both)


def _limit(scale: float, workers: int) -> float:
    return max(EFFECT_FLOOR, (SIGMAS if workers >= FEW else SIGMAS_FEW) * scale)


def _median_error(residual: Floats) -> Floats:
    """Return the standard error of each row's median, considering that steps depend on others."""
    level = nan_median(residual, 1)
    known = np.isfinite(residual).sum(axis=1)
    noise = MAD_TO_SIGMA * nan_median(np.abs(residual - level[:, None]), 1)
    far = CUT * noise[:, None]
    centred = np.nan_to_num(np.clip(residual - level[:, None], -far, far))
    noise = np.maximum(MEDIAN_ERROR * noise * np.sqrt(_steps_alike(centred)), STEP_NOISE)
    result: Floats = noise / np.sqrt(np.maximum(known, 1)) * (1 + FEW_STEPS / np.maximum(known, 1))
    return result


def _steps_alike(centred: Floats) -> Floats:
    """Return how many steps of each row say no more than one that depends on no other.

    A pace wanders for seconds, so that steps far apart still resemble each other a little. Their
    correlations are summed as far as those of two neighbouring distances are above zero together:
    beyond that they are noise (the initial positive sequence of Geyer).
    """
    steps = centred.shape[1]
    spectrum = np.abs(np.fft.rfft(centred, 2 * steps, axis=1)) ** 2
    power = np.fft.irfft(spectrum, 2 * steps, axis=1)[:, : steps // 2 * 2]
    if not power.shape[1]:
        return np.ones(len(centred))
    pairs = power.reshape(len(power), -1, 2).sum(axis=2)
    alike = np.where(np.logical_and.accumulate(pairs > 0, axis=1), pairs, 0.0).sum(axis=1)
    result: Floats = np.maximum(2 * alike / np.maximum(power[:, 0], 1e-300) - 1, 1.0)
    return result


def _split_cohorts(
    over: NDArray[np.bool_], level: Floats, cohort: NDArray[np.intp]
) -> tuple[int, ...]:
    """Return the workers over the limit in cohorts with too many of them.

    Such a cohort consists of two groups, not of healthy workers and single slow ones.
    """
    split: list[int] = []
    for code in np.unique(cohort):
        members = np.flatnonzero(cohort == code)
        slow = members[over[members]]
        if len(slow):  # only those with a similar excess form a group
            slow = slow[level[slow] > level[slow].max() / 3]
        if len(members) >= 3 and len(slow) > 1 and len(slow) > FLEET_SHARE * len(members):
            split += slow.tolist()
    return tuple(split)


def _stalls(residual: Floats, level: Floats, logs: Floats) -> NDArray[np.bool_]:
    """Tell in which steps a worker is far above its own level, and slower than its peers.

    A worker that is faster than the others and stops for as long as they work delays nobody. One
    that works as long as ever beside a peer whose work seems to shrink does not stop.
    """
    noise = MAD_TO_SIGMA * nan_median(np.abs(residual - level[:, None]), 1)
    limit = np.maximum(5 * np.maximum(noise, SCALE_FLOOR), STALL_FLOOR)
    is_far = np.nan_to_num(residual - level[:, None]) > limit[:, None]
    is_longer = np.nan_to_num(logs - nan_median(logs, 1)[:, None]) > EFFECT_FLOOR
    result: NDArray[np.bool_] = is_far & is_longer & (np.nan_to_num(residual) > EFFECT_FLOOR)
    return result


def _stalling(
    stalls: NDArray[np.bool_], height: Floats, over: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Tell which workers stall far more often than the others, or lose far more by it.

    Steps in which many workers stall together are not counted; a far lower stall is that of a
    worker whose peers wait for another one. No stall counts more than the third largest of its
    worker, so that one long pause alone is no habit.
    """
    stalls = stalls & (height >= ALIKE_TOGETHER * np.where(stalls, height, 0.0).max(axis=0))
    at_once = stalls[~over].sum(axis=0)
    own = stalls & ((at_once < 2) | (at_once < FLEET_SHARE * (~over).sum()))
    counts, heights = own.sum(axis=1), np.where(own, height, 0.0)
    third = np.sort(heights, axis=1)[:, -min(MIN_STALLS, heights.shape[1])]
    lost = np.minimum(heights, third[:, None]).sum(axis=1)
    often = counts >= MORE_STALLS * _median_of_others(counts) + MIN_STALLS
    long = lost >= 2 * MORE_STALLS * _median_of_others(heights.sum(axis=1)) + 3 * STALL_FLOOR
    result: NDArray[np.bool_] = (counts >= MIN_STALLS) & (often | long)
    return result


def _lasts(residual: Floats, stalls: NDArray[np.bool_]) -> bool:
    """Whether a worker loses more between its stalls than in them."""
    height = np.maximum(np.expm1(np.nan_to_num(residual)), 0.0)
    return bool(height[stalls].sum() < MOSTLY * height.sum())


def _median_of_others(values: NDArray[np.generic]) -> Floats:
    if len(values) < 2:
        return np.zeros(len(values))
    return np.array([float(np.median(np.delete(values, w))) for w in range(len(values))])


def _suspect(
    worker: int,
    workers: WorkerSteps,
    own: Floats,
    residual: Floats,
    error: Floats,
    stalls: NDArray[np.bool_] | None,
) -> Suspect:
    skip = workers.own_s.shape[1] - own.shape[1]
    at = np.arange(own.shape[1]) if stalls is None else _alike(residual[worker], stalls[worker])
    height = float(np.nanmedian(residual[worker, at]))
    excess_s = float(np.nanmedian(own[worker, at] * -np.expm1(-residual[worker, at])))
    best = np.nanargmax(np.where(np.isfinite(residual), residual, -np.inf), axis=0)
    clear = residual[worker] > EFFECT_FLOOR
    named = float(np.mean((best == worker)[at] | clear[at])) if len(at) else 0.0
    sigmas = height / max(float(error[worker]), 1e-9)
    peers = int((workers.cohort == workers.cohort[worker]).sum()) - 1
    sure = (
        (0.5 + 0.5 * np.tanh((sigmas - 2) / 4)) * (0.6 + 0.4 * named) * (1.0 if peers >= 2 else 0.7)
    )
    return Suspect(
        int(worker),
        float(np.expm1(height)),
        float(error[worker]),
        excess_s,
        round(min(0.99, float(sure)), 2),
        named,
        None if stalls is None else _period([workers.steps[i + skip] for i in at], workers.steps),
        tuple(int(i) + skip for i in at) if stalls is not None else (),
        peers,
    )


def _alike(residual: Floats, stalls: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the stalls that are about as long as those that cost most."""
    at = np.flatnonzero(stalls)
    height = np.expm1(residual[at])
    order = np.argsort(height)
    usual = height[order][np.searchsorted(np.cumsum(height[order]), height.sum() / 2)]
    alike = at[height >= ALIKE * usual]
    return alike if len(alike) >= MIN_STALLS else at


def _period(stalls: Sequence[int], steps: Sequence[int]) -> int | None:
    """Return the period of stalls; some may be hidden where ranks meet in other calls first."""
    between = [step for step in steps if stalls[0] <= step <= stalls[-1]]
    return stall_period(stalls) or sampled_period(stalls, between)


def _rotation(
    own: Floats, workers: WorkerSteps, residual: Floats, named: set[int]
) -> tuple[float, float]:
    """Return the share of a step lost to its slowest worker, and how evenly that rotates.

    The second value is 1 when each worker is the slowest equally often.
    """
    kept = [w for w in range(len(own)) if w not in named]
    if len(kept) < 2:
        return 0.0, 0.0
    ahead = np.nan_to_num(residual[kept])
    own_kept = np.nan_to_num(own[kept])
    slowest = ahead.argmax(axis=0)
    cost = own_kept[slowest, np.arange(own.shape[1])] * -np.expm1(-ahead.max(axis=0))
    period = workers.period_s[workers.own_s.shape[1] - own.shape[1] :]
    loss = (
        float(np.nanmean(np.maximum(cost, 0)) / np.nanmean(period))
        if np.isfinite(period).any()
        else 0.0
    )
    shares = np.bincount(slowest, minlength=len(kept)) / len(slowest)
    entropy = -float(np.sum(shares[shares > 0] * np.log(shares[shares > 0])))
    return loss, entropy / np.log(len(kept))


def _rivals(
    suspects: Sequence[Suspect], level: Floats, error: Floats, over: NDArray[np.bool_]
) -> tuple[int, ...]:
    """Return workers not named whose excess is within the error of the weakest named one."""
    steady = [s for s in suspects if not s.stalls]
    if not steady:
        return ()
    weakest = steady[-1]
    floor = level[weakest.worker] - 2 * error[weakest.worker]
    return tuple(int(w) for w in np.flatnonzero(~over & (level > max(floor, 2 * error.min()))))
