"""The steps of a job: how long they are, and how long they were while the job was calm.

All ranks of a job take the same step, so its length says what the job loses. Each cohort keeps the
last samples of about a second. Samples taken while a member of the job is suspected, or during a
fleet event, are marked: they say nothing about calm steps.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ingero.core.robust import MAD_TO_SIGMA, Column, Index
from ingero.core.scale import autocorrelation
from ingero.core.verdict.table import (
    ADVANCE,
    FAST,
    FRAMES,
    RECENT,
    RECENT_HISTORY,
    STALL,
    STEP_SAMPLES,
    CohortRows,
    MemberRows,
)

MIN_CALM = 20  # samples of calm steps without which the loss is only known to be at most something
BLOCK = 5  # samples: a median of so many is nearly normal, and its neighbours nearly independent
MAX_CORRELATION = 0.9  # of neighbouring blocks
EXPLAINED = 0.5  # of the variance of steps: own times that explain less do not correct anything
FLOOR = 0.001  # of a step: the length of no step is known better
# Calm steps next to an episode say more than old ones where the pace of a job wanders. Windows that
# are tried, the samples that each foretells, and how much better a shorter one must foretell them.
WINDOWS, FORETOLD, BETTER = (80, 40, 20), 10, 0.8
QUICK = 0.25  # quantile of the steps of a sample: a step without a stall
# Quick steps are compared where they vary so much less than means do, as rare steps that are far
# longer make these, and where means are not further above them: then steps are of several kinds.
STEADIER, NEAR_MEAN = 0.8, 1.1
HOLDS = 0.3  # of the decision limit: below it the channel of own times says nothing


@dataclass(frozen=True, slots=True)
class CalmSteps:
    """Steps before an episode, as logarithms of seconds.

    `noise` is the standard deviation of the median of a BLOCK, `inflation` how much wider the mean
    of blocks spreads because neighbours resemble each other, and `error` the standard error of
    `log_s`. `quick` are the quick ones of each sample: where stalls come now and then, such steps
    go on between them, and where some steps are far longer at random, they are steadier. `until` is
    the sample with which the episode begins, and `is_next` whether the last ones of them were taken
    just before it.
    """

    log_s: float
    mean_s: float
    noise: float
    inflation: float
    error: float
    explained: "Explained | None"
    quick: "CalmSteps | None" = None
    is_quick: bool = False
    until: int = 0
    is_next: bool = True

    def steadier(self) -> "CalmSteps":
        """Return the quick steps where they vary far less than means, and else these."""
        if self.quick is None or self.log_s - self.quick.log_s > math.log(NEAR_MEAN):
            return self
        mean, quick = (
            each.explained.rest if each.explained else each for each in (self, self.quick)
        )
        is_far = quick.noise * quick.inflation < STEADIER * mean.noise * mean.inflation
        return self.quick if is_far else self


@dataclass(frozen=True, slots=True)
class Explained:
    """Calm steps where the own times of all members explain most of what varies.

    A step is longer by `slope` where own times are longer than `level`; `rest` are the steps
    without that part. `levels` are the calm own times. When the episode began, they moved by
    `jump`, as the first `shown` samples of it show, and usually they move by `usual_jump`.
    """

    level: float
    slope: float
    rest: CalmSteps
    levels: Column
    jump: float = 0.0
    usual_jump: float = 0.0
    shown: int = 0


class RecentSteps(NamedTuple):
    """Samples of steps, oldest first: log seconds of means, log own times, and quick steps."""

    log_s: Column
    level: Column
    quick: Column

    def like(self, calm: CalmSteps) -> Column:
        """Return what is compared with these calm steps."""
        return self.quick if calm.is_quick else self.log_s


def follow_steps(
    cohorts: CohortRows, present: Index, starts: Index, span_s: Column, levels: Column
) -> None:
    """Add one step of the cohorts `present`, whose members begin at `starts` in `span_s`."""
    is_known = np.isfinite(span_s) & (span_s > 0)
    if not is_known.any():
        return
    known = np.add.reduceat(is_known, starts)
    total = np.add.reduceat(np.where(is_known, span_s, 0.0), starts)
    some = known > 0
    chosen = present[some]
    mean_s = total[some] / known[some]
    cohorts.span_s[chosen, cohorts.frames[chosen] % FRAMES] = mean_s
    cohorts.step_sum_s[chosen] += mean_s
    cohorts.step_level_sum[chosen] += levels[some]
    cohorts.step_count[chosen] += 1


def close_steps(cohorts: CohortRows, complete: Index) -> tuple[Index, Index]:
    """Make a sample of the steps since the last one, in these cohorts.

    Returns the cohorts that have one, and its places in their rings.
    """
    chosen = complete[cohorts.step_count[complete] > 0]
    if not len(chosen):
        return chosen, chosen
    count, at = cohorts.step_count[chosen], cohorts.step_samples[chosen] % STEP_SAMPLES
    cohorts.step_log[chosen, at] = np.log(cohorts.step_sum_s[chosen] / count)
    cohorts.step_quick[chosen, at] = _quick_log(cohorts, chosen, count)
    cohorts.step_level[chosen, at] = cohorts.step_level_sum[chosen] / count
    cohorts.step_is_calm[chosen, at] = ~cohorts.is_restless[chosen]
    cohorts.step_samples[chosen] += 1
    for column in (cohorts.step_sum_s, cohorts.step_level_sum, cohorts.step_count):
        column[chosen] = 0.0
    return chosen, at


def _quick_log(cohorts: CohortRows, chosen: Index, count: Column) -> Column:
    """Return log seconds of the quick ones among the last `count` steps of cohorts."""
    ages = np.arange(FRAMES)
    places = (cohorts.frames[chosen][:, None] - ages) % FRAMES
    spans_s = cohorts.span_s[chosen[:, None], places]
    spans_s = np.sort(np.where(ages < count[:, None], spans_s, np.nan), axis=1)  # NaN come last
    known = np.maximum(np.isfinite(spans_s).sum(axis=1), 1)
    at = (QUICK * (known - 1)).astype(np.intp)
    return np.asarray(np.log(spans_s[np.arange(len(chosen)), at]), np.float64)


def rose_at(rows: MemberRows, cohorts: CohortRows, index: int) -> int:
    """Return the sample of steps at which the channel of a member's episode began to rise.

    Noise may have raised that of own times before: then the member is slow since the sample from
    which on its excess is above half of what it is now. Where own times hardly raise it, the steps
    of the job showed that somebody is slow, and began to.
    """
    cohort = int(rows.cohort[index])
    hardly = rows.channel[index] == FAST and rows.cusum[index] < HOLDS * rows.limit[index]
    if hardly and cohorts.step_cusum[cohort] > 0:
        return int(cohorts.step_samples[cohort]) - slower_for(cohorts, cohort)
    columns = {STALL: rows.stall_rose_at, ADVANCE: rows.advance_rose_at}
    rose = int(columns.get(int(rows.channel[index]), rows.rose_at)[index])
    length = int(cohorts.step_samples[rows.cohort[index]]) - rose
    if rows.channel[index] != FAST or not RECENT < length <= min(
        RECENT_HISTORY, int(rows.samples[index])
    ):
        return rose
    places = (rows.samples[index] - length + np.arange(length)) % RECENT_HISTORY
    excess = np.nan_to_num(rows.latest[index, places].astype(np.float64) - rows.bias[index])
    above = excess - np.median(excess[-RECENT:]) / 2
    since_each = np.cumsum(above[::-1])[::-1]
    return rose + int(since_each.argmax())


def without_own(cohorts: CohortRows, chosen: Index, at: Index) -> Column:
    """Return log steps less what longer own times of all members explain of them."""
    level = cohorts.step_level[chosen, at].astype(np.float64) - cohorts.step_usual_level[chosen]
    explained = cohorts.step_slope[chosen] * np.nan_to_num(level)
    return np.asarray(cohorts.step_log[chosen, at].astype(np.float64) - explained, np.float64)


def slower_for(cohorts: CohortRows, cohort: int) -> int:
    """Return since how many samples steps are longer, by at least half of what they are now.

    Noise may have raised their channel before.
    """
    count = int(cohorts.step_samples[cohort])
    longest = min(count - int(cohorts.step_rose_at[cohort]), STEP_SAMPLES, count)
    places = (count - 1 - np.arange(max(longest, 1))) % STEP_SAMPLES
    own = without_own(cohorts, np.full(len(places), cohort), places)
    away = own - cohorts.step_base[cohort]
    return int(np.cumsum(away - np.median(away[:RECENT]) / 2).argmax()) + 1


def mark_restless(cohorts: CohortRows, cohort: int, samples: int) -> None:
    """Mark the last samples of all cohorts of a job: somebody was slow already."""
    for each in np.flatnonzero(cohorts.job[: cohorts.size] == cohorts.job[cohort]).tolist():
        places = np.arange(STEP_SAMPLES)[: min(samples, STEP_SAMPLES)]
        cohorts.step_is_calm[each, (cohorts.step_samples[each] - 1 - places) % STEP_SAMPLES] = 0.0


def recent_steps(cohorts: CohortRows, cohort: int, since: int, most: int) -> RecentSteps:
    """Return the samples taken since one, at most `most`, the latest ones."""
    count = int(cohorts.step_samples[cohort])
    wanted = min(count - since, most, STEP_SAMPLES, count)
    places = np.arange(count - max(wanted, 0), count) % STEP_SAMPLES
    columns = (cohorts.step_log, cohorts.step_level, cohorts.step_quick)
    return RecentSteps(*(column[cohort, places].astype(np.float64) for column in columns))


def find_calm(
    cohorts: CohortRows, cohort: int, before: int, *, only_near: bool = False
) -> CalmSteps | None:
    """Return the calm steps of a cohort before a sample; None where there are too few.

    `only_near` leaves those out that are too old to foretell the next ones, which takes longer.
    """
    count = int(cohorts.step_samples[cohort])
    numbers = np.arange(max(count - STEP_SAMPLES, 0), min(before, count))
    numbers = numbers[cohorts.step_is_calm[cohort, numbers % STEP_SAMPLES] > 0]
    if len(numbers) < MIN_CALM:
        return None
    kept, is_next = numbers % STEP_SAMPLES, bool(before - numbers[-1] <= BLOCK)
    level = cohorts.step_level[cohort, kept].astype(np.float64)
    means, quick = (
        _describe(column, _explain(column, level, only_near), only_near)
        for column in (
            cohorts.step_log[cohort, kept].astype(np.float64),
            cohorts.step_quick[cohort, kept].astype(np.float64),
        )
    )
    quick = replace(quick, is_quick=True, until=before, is_next=is_next)
    return replace(means, quick=quick, until=before, is_next=is_next)


def follow_jump(cohorts: CohortRows, cohort: int, calm: CalmSteps) -> CalmSteps:
    """Return calm steps with what own times moved by when the episode began.

    Where they wander, few samples next to its begin show that best, and where they scatter, more.
    """
    quick = calm.quick and follow_jump(cohorts, cohort, calm.quick)
    if quick is not calm.quick:
        calm = replace(calm, quick=quick)
    why, count = calm.explained, int(cohorts.step_samples[cohort])
    shown = min(count - calm.until, 2 * BLOCK)
    if why is None or shown <= why.shown or count - calm.until > STEP_SAMPLES:
        return calm
    usual, width = min(
        (_usual_jump(why.levels, width), width) for width in (min(shown, BLOCK), shown)
    )
    if not calm.is_next:  # they may have moved since then as far as they ever do
        usual = max(usual, math.sqrt(2) * float(why.levels.std()))
    places = np.arange(calm.until, calm.until + width) % STEP_SAMPLES
    after = float(np.median(cohorts.step_level[cohort, places]))
    jump = after - float(np.median(why.levels[-width:]))
    return replace(calm, explained=replace(why, jump=jump, usual_jump=usual, shown=shown))


def _usual_jump(levels: Column, width: int) -> float:
    """Return how far the middle of so many samples usually is from that of those before."""
    middles = np.median(np.lib.stride_tricks.sliding_window_view(levels, width), axis=1)
    return float(np.sqrt(((middles[width:] - middles[:-width]) ** 2).mean()))


def _describe(log_s: Column, explained: Explained | None, only_near: bool) -> CalmSteps:
    blocks = np.median(log_s[len(log_s) % BLOCK :].reshape(-1, BLOCK), axis=1)
    noise = max(float(blocks.std(ddof=1)), FLOOR)
    related = float(np.clip(autocorrelation(blocks[None, :])[0], 0.0, MAX_CORRELATION))
    inflation = float(np.sqrt((1 + related) / (1 - related)))
    near, wrong = _nearest(log_s) if only_near else (log_s, 0.0)
    mean_s = float(np.exp(np.minimum(near, np.quantile(near, 0.98))).mean())
    error = float(noise * inflation / np.sqrt(len(blocks)))
    # What was foretold wrong is the error of the middle and that of the few samples foretold.
    of_few = noise * inflation / np.sqrt(FORETOLD / BLOCK)
    error = max(error, float(np.sqrt(max(wrong**2 - of_few**2, 0.0))))
    return CalmSteps(float(np.median(near)), mean_s, noise, inflation, error, explained)


def _nearest(log_s: Column) -> tuple[Column, float]:
    """Return the latest samples that foretell the next ones best, and how wrong they are.

    Each window is tried on the past; all samples are kept unless a shorter one is clearly better.
    """
    ends = np.arange(2 * MIN_CALM, len(log_s) - FORETOLD + 1, BLOCK)
    if len(ends) < 4:
        return log_s, 0.0
    follows = np.array([np.median(log_s[end : end + FORETOLD]) for end in ends])
    best, least = len(log_s), _wrong(log_s, ends, follows, len(log_s))
    for window in WINDOWS:
        wrong = _wrong(log_s, ends, follows, window)
        if wrong < BETTER * least:
            best, least = window, wrong
    return log_s[-best:], least


def _wrong(log_s: Column, ends: Index, follows: Column, window: int) -> float:
    """Return by how much the middle of so many samples before each end misses what follows."""
    middles = [np.median(log_s[max(end - window, 0) : end]) for end in ends.tolist()]
    return float(np.sqrt(np.mean((np.array(middles) - follows) ** 2)))


def _explain(log_s: Column, level: Column, only_near: bool) -> Explained | None:
    """Return how own times explain the length of steps; None where they explain too little."""
    if np.isnan(level).any():
        return None
    x, y = _clipped(level), _clipped(log_s)
    power, product = float((x * x).sum()), float((x * y).sum())
    total = float((y * y).sum())
    if power <= 0 or total <= 0 or product <= 0 or product**2 / (power * total) < EXPLAINED:
        return None
    slope = min(product / power, 1.0)  # own time is a part of the step, so it grows no faster
    middle = float(np.median(level))
    rest = _describe(log_s - slope * (level - middle), None, only_near)
    return Explained(middle, slope, rest, level)


def _clipped(values: Column) -> Column:
    """Return values around their median, at most four spreads away from it."""
    centred = values - np.median(values)
    bound = 4 * MAD_TO_SIGMA * float(np.median(np.abs(centred)))
    return np.clip(centred, -bound, bound)
