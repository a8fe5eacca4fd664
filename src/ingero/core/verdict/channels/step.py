"""The step channel: a CUSUM of the job's own steps, and who is behind them when they grow.

All ranks of a job take the same step, and its length is much steadier than the own time of any one
of them. So a job that became slower shows this first. What is then left to find is which member
explains it, and for that much less evidence is needed than where nobody knows that it is slower.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index
from ingero.core.verdict.channels.advance import advance_effect
from ingero.core.verdict.channels.fast import CAP, MISSES, STEADY
from ingero.core.verdict.channels.lateness import find_late_member
from ingero.core.verdict.job_steps import MIN_CALM, find_calm, slower_for, without_own
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import CLIP, VerdictPolicy, inflation_of
from ingero.core.verdict.table import (
    RECENT,
    RECENT_HISTORY,
    STEP_SAMPLES,
    CohortRows,
    MemberRows,
)

STEP_K, STEP_LIMIT = 1.0, 8.0
STEP_FLOOR = 0.003  # of a step: no sample of steps is steadier
OF_BLOCK = 0.54  # standard deviation of the median of five samples, in that of one
FOLLOW = 0.01  # per sample: how fast the usual length of steps is followed
AGAIN = 60  # samples after which the noise of steps is measured again
ADOPTED = 300  # samples: steps that stay longer for so long are the usual ones
PER_TICK = 64  # cohorts whose steps are learned in one tick

MIN_SAMPLES = 5  # of slow steps: longer than hiccups
LAST_SAMPLES = 16
ENOUGH = 5.0  # standard errors of the mean excess of a member
MODEST = 2.5  # scales that one sample counts for at most, so that a hiccup proves little
AHEAD = 3.0  # standard errors before the next member
LATELY = 0.5  # of its excess: so much must be left in the last samples
EXPLAINED = 0.25  # of what the step grew by: the excess own time of the member must reach it

Mask = NDArray[np.bool_]


def update_steps(cohorts: CohortRows, chosen: Index, at: Index) -> None:
    """Add the sample of steps that these cohorts just closed, at places of their rings."""
    known = ~np.isnan(cohorts.step_base[chosen])
    if not known.any():
        return
    chosen, at = chosen[known], at[known]
    away = without_own(cohorts, chosen, at) - cohorts.step_base[chosen]
    noise = cohorts.step_noise[chosen]
    before = cohorts.step_cusum[chosen]
    z = np.clip(away / noise, -CLIP, CLIP)
    cohorts.step_cusum[chosen] = np.clip(before + z - STEP_K, 0.0, CAP * STEP_LIMIT)
    calm = cohorts.step_cusum[chosen] == 0.0
    cohorts.step_rose_at[chosen[calm]] = cohorts.step_samples[chosen[calm]] + 1
    calm &= ~cohorts.is_restless[chosen]
    cohorts.step_base[chosen[calm]] += FOLLOW * np.clip(away, -2 * noise, 2 * noise)[calm]


def learn_steps(cohorts: CohortRows) -> None:
    """Learn how long steps are and how much they vary, where that is due."""
    size = cohorts.size
    count, learned = cohorts.step_samples[:size], cohorts.step_learned[:size]
    is_adopted = (cohorts.step_cusum[:size] > 0) & (count - cohorts.step_rose_at[:size] > ADOPTED)
    target = np.where(
        learned == 0, MIN_CALM, np.where(learned < AGAIN, 2 * learned, learned + AGAIN)
    )
    is_due = (count >= target) & ((cohorts.step_cusum[:size] == 0.0) | is_adopted)
    for cohort in np.flatnonzero(is_due & ~cohorts.is_restless[:size])[:PER_TICK].tolist():
        calm = find_calm(cohorts, cohort, int(count[cohort]))
        cohorts.step_learned[cohort] = count[cohort]
        if calm is None:
            continue
        own, steps = calm.explained, calm if calm.explained is None else calm.explained.rest
        cohorts.step_slope[cohort] = 0.0 if own is None else own.slope
        cohorts.step_usual_level[cohort] = 0.0 if own is None else own.level
        cohorts.step_base[cohort] = steps.log_s
        cohorts.step_noise[cohort] = max(steps.noise * steps.inflation / OF_BLOCK, STEP_FLOOR)
        cohorts.step_cusum[cohort] = 0.0
        cohorts.step_rose_at[cohort] = count[cohort]


def is_job_slower(cohorts: CohortRows) -> Mask:
    """Tell which cohorts have steps that are longer than usual, beyond their noise."""
    return np.asarray(cohorts.step_cusum[: cohorts.size] > STEP_LIMIT, bool)


def growth_of_steps(cohorts: CohortRows, cohort: int) -> float:
    """Return by how much the last steps are longer than usual, as a logarithm; NaN if unknown.

    What own times of all explain is not taken out.
    """
    places = (cohorts.step_samples[cohort] - 1 - np.arange(RECENT)) % STEP_SAMPLES
    return float(np.median(cohorts.step_log[cohort, places]) - cohorts.step_base[cohort])


def slow_since(cohorts: CohortRows, cohort: int, rose_at: int) -> int:
    """Return the sample of steps at which a slow period began: the steps and a member agree on it.

    Noise may have raised the channel of the member before, and longer batches that of the steps.
    """
    if cohorts.step_cusum[cohort] <= STEP_LIMIT:
        return rose_at
    return max(int(cohorts.step_rose_at[cohort]), rose_at)


def find_behind(registry: MemberRegistry, judged: Mask, policy: VerdictPolicy) -> Mask:
    """Tell which members explain that the steps of their jobs are longer: at most one per job.

    Where several are slow, or all are, nobody is told, and the other channels decide.
    """
    rows, cohorts = registry.rows, registry.cohorts
    found = np.zeros(rows.size, bool)
    slower = is_job_slower(cohorts)
    if not slower.any():
        return found
    for job in np.unique(cohorts.job[: cohorts.size][slower]).tolist():
        everyone = np.flatnonzero(rows.job[: rows.size] == job)
        lead = np.flatnonzero(slower & (cohorts.job[: cohorts.size] == job))
        grown_for = cohorts.step_samples[lead] - cohorts.step_rose_at[lead]
        longest, slowest = int(grown_for.max()), int(lead[grown_for.argmax()])
        # Steps may have grown before, for another reason.
        lengths = {longest, min(longest, LAST_SAMPLES), slower_for(cohorts, slowest)}
        for length in sorted(each for each in lengths if each >= MIN_SAMPLES):
            best = find_late_member(registry, everyone, length, _grown_s(cohorts, slowest))
            if best is None:
                best = _behind(registry, everyone[judged[everyone]], length, slowest, policy)
            if best is not None:
                found[best] = judged[best]
                break
    return found


def _grown_s(cohorts: CohortRows, cohort: int) -> float:
    """Return by how many seconds the last steps are longer than usual ones."""
    usual_s = float(np.exp(cohorts.step_base[cohort]))
    return usual_s * float(np.expm1(growth_of_steps(cohorts, cohort)))


def _standard_error(rows: MemberRows, members: Index, length: int) -> float:
    """Return the standard error of the mean excess of so many samples, in scales.

    A short baseline is uncertain, too, and makes neighbours seem less alike than they are.
    """
    learned = max(int(rows.baseline_samples[members].min()), 1)
    raw = float(np.median(rows.correlation[members]))
    related = float(np.clip(raw + (1 + 3 * raw) / learned, 0.0, 0.9))
    return inflation_of(related) * float(np.sqrt(1 / length + 1 / learned))


def _is_even(z: Column) -> bool:
    """Tell whether nearly all of these samples may show one and the same slowdown.

    A hiccup next to samples that are slower by chance raises their mean as far, but these are then
    far below the hiccup.
    """
    middle = float(np.median(z))
    low = (z < STEADY * middle) & (z < middle - MODEST)
    return int(low.sum()) <= max(len(z) // MISSES, 1)


def _behind(
    registry: MemberRegistry, members: Index, length: int, lead: int, policy: VerdictPolicy
) -> int | None:
    """Return the member of a job whose own time grew with the steps, clearly more than any other's.

    `length` is how many samples ago the steps of the cohort `lead` began to grow.
    """
    rows, cohorts = registry.rows, registry.cohorts
    length = min(length, RECENT_HISTORY)
    members = members[rows.samples[members] >= length]
    if len(members) < 2:
        return None
    places = (rows.samples[members][:, None] - 1 - np.arange(length)) % RECENT_HISTORY
    excess = rows.latest[members[:, None], places] - rows.bias[members][:, None]
    z = np.nan_to_num(excess / rows.scale[members][:, None])
    errors = 1 / _standard_error(rows, members, length)
    modest = np.clip(z, -MODEST, MODEST)
    # Where batches differ, single samples are far out: then these are less certain than the scale.
    spread = np.maximum(modest.std(axis=1, ddof=1), 1.0)
    certain = modest.mean(axis=1) * errors / spread
    strong = np.clip(z, -CLIP, CLIP).mean(axis=1) * errors
    best = int(strong.argmax())
    second = float(np.delete(strong, best).max())
    if certain[best] < ENOUGH or second > strong[best] - AHEAD:
        return None
    if z[best, :RECENT].mean() < LATELY * z[best].mean() or not _is_even(z[best]):
        return None
    grown = float(np.nanmean(excess[best]))
    step_s = float(np.exp(cohorts.step_log[lead, (cohorts.step_samples[lead] - 1) % STEP_SAMPLES]))
    rise = 1.0 - float(np.exp(cohorts.step_base[lead])) / step_s
    explained_s = _explained_s(registry, members[best], grown, step_s)
    if grown < policy.gate or not explained_s >= EXPLAINED * rise * step_s:
        return None
    return int(members[best])


def _explained_s(registry: MemberRegistry, member: int, grown: float, step_s: float) -> float:
    """Return how much of a step the own time of a member explains.

    Stages of a pipeline compute while they wait for their next data, so that little of what one
    takes longer is own time. Twins share all but that, so how late it comes is its own delay.
    """
    rows = registry.rows
    own_s = float(np.expm1(grown) * np.exp(rows.baseline_log_own[member]))
    if registry.cohorts.is_twinned[rows.cohort[member]]:
        return max(own_s, float(advance_effect(rows, np.array([member]))[0]) * step_s)
    return own_s
