"""What a slow worker costs the job: the step while it is slow against calm steps.

Steps are as long as the job itself measures them, so the loss is what a user pays, whatever of the
delay is hidden. Without calm steps in the recording only an upper bound is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.recorded.spells import Spell
from ingero.core.robust import MAD_TO_SIGMA, median_and_mad

Floats = NDArray[np.float64]

CALM_STEPS = 100
FEW_CALM_STEPS, CALM_S = 16, 40.0  # long steps: fewer are enough if they last so long
NOISY, NOISY_CALM_S = 0.05, 20.0  # scatter of steps, as a share, that hides the pace so long
NEAR_STEPS = 400  # on each side of a spell, or CALM_S if that is more: four blocks, for the error
MARGIN = 2  # steps next to a spell, and at the beginning, that are neither calm nor slow
BLOCK_STEPS = 100  # the wander of a noisy job shows between blocks of so many steps
MIN_BLOCKS = 4
MIN_PIECES = 3
SIGMAS = 2.0
PACE_FLOOR = 0.003  # of the step: the pace of two phases does not repeat better than this
CLEAR = 3.0  # standard errors of a rise that is believed
HIGHEST = 0.98  # means are cut at this quantile, or above the stalls of the slow worker
COSTLY = 0.015  # of the step: a smaller change is no loss


@dataclass(frozen=True, slots=True)
class Loss:
    """Seconds per step; `calm_s` is None where the recording has no calm steps.

    Then `lost_s` is an upper bound, by a replay of the steps if `is_replayed`. `is_joint` says that
    other ranks were slow in the same steps, and not in the calm ones.
    """

    slow_s: float
    calm_s: float | None
    lost_s: float
    error_s: float | None
    is_joint: bool = False
    is_replayed: bool = False

    @property
    def share(self) -> float:
        """The share of the slow step that is lost."""
        return self.lost_s / self.slow_s if self.slow_s > 0 else 0.0

    @property
    def error(self) -> float | None:
        """The error of the share."""
        return None if self.error_s is None else self.error_s / self.slow_s

    @property
    def costs_nothing(self) -> bool:
        """Whether calm steps show that the step did not change, or it could not change enough."""
        if self.calm_s is None or self.error_s is None:
            return self.is_replayed and self.lost_s <= COSTLY * self.slow_s
        return self.lost_s <= max(self.error_s, COSTLY * self.slow_s)


def measure_loss(
    period_s: Floats, own_s: Floats, spell: Spell, spells: Sequence[Spell], at_most_s: float
) -> Loss:
    """Compare the steps of a spell with calm steps: those that differ by this spell alone.

    `own_s` are the own times of the rank, NaN in steps without records of it.
    """
    steps = len(period_s)
    slow, calm, is_joint = _phases(period_s, spell, spells)
    calm = _near(calm, period_s, spell)
    unknown = bool(calm.any()) and not np.isfinite(own_s[calm]).any()
    rise = find_rise(np.where(calm, period_s, np.nan)) if unknown else None
    if rise is not None:  # records of the rank begin after the fault
        calm &= np.arange(steps) < rise
    centre = _centre(spell)
    slow_s = centre(period_s[slow])
    if not _is_enough(period_s[calm]):
        return Loss(slow_s, None, min(at_most_s, slow_s), None)
    calm_s = centre(period_s[calm])
    error = _phase_error(period_s[slow], period_s[calm], centre)
    lost_s = max(0.0, slow_s - calm_s)
    if unknown and lost_s <= SIGMAS * error:  # the rank may have been slow there as well
        return Loss(slow_s, None, min(at_most_s, slow_s), None)
    return Loss(slow_s, calm_s, lost_s, SIGMAS * error, is_joint)


def _phases(
    period_s: Floats, spell: Spell, spells: Sequence[Spell]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], bool]:
    """Return the slow and the calm steps to compare.

    Another one may be slow in both, as one that always has more to do than its peers. The third
    result says whether others are slow in the former only.
    """
    steps = len(period_s)
    inside = spell.columns(steps) & np.isfinite(period_s)
    beside = [other for other in spells if other is not spell]
    with_whom = np.array([other.columns(steps) for other in beside], bool)
    with_whom = with_whom.reshape(len(beside), steps)
    outside = calm_steps(period_s, [spell])
    for other in beside:
        for moment in (other.begin, other.end):
            outside &= calm_steps(period_s, [replace(other, begin=moment, end=moment)])
    best: tuple[NDArray[np.bool_], NDArray[np.bool_], bool] | None = None
    for company in np.unique(with_whom[:, inside], axis=1).T:
        same = (with_whom == company[:, None]).all(axis=0)
        slow, calm = inside & same, outside & same
        is_better = slow.sum() > (FEW_CALM_STEPS - 1 if best is None else best[0].sum())
        if _is_enough(period_s[calm]) and (is_better or (slow == inside).all()):
            best = slow, calm, False
    if best is not None:
        return best
    is_joint = bool((with_whom & inside).any())
    return inside, calm_steps(period_s, spells), is_joint


def calm_steps(period_s: Floats, spells: Sequence[Spell]) -> NDArray[np.bool_]:
    """Return the steps that lie outside all spells."""
    at = np.arange(len(period_s))
    calm: NDArray[np.bool_] = np.isfinite(period_s) & (at > MARGIN)
    for spell in spells:
        calm &= (at < spell.begin - MARGIN) | (at >= spell.end + MARGIN)
    return calm


def _near(calm: NDArray[np.bool_], period_s: Floats, spell: Spell) -> NDArray[np.bool_]:
    """Return the calm steps next to a spell: the pace of a job wanders in the long run."""
    at = np.flatnonzero(calm)
    before, after = at[at < spell.begin][::-1], at[at >= spell.begin]
    near = [
        side[(np.cumsum(period_s[side]) <= CALM_S) | (np.arange(len(side)) < NEAR_STEPS)]
        for side in (before, after)
    ]
    result = np.zeros_like(calm)
    result[np.concatenate(near)] = True
    return result if _is_enough(period_s[result]) else calm


def _is_enough(calm_s: Floats) -> bool:
    """Whether there are enough calm steps; the pace of a job wanders as much as its steps scatter.

    What a few seconds of a noisy job show is not its usual pace.
    """
    if len(calm_s) < FEW_CALM_STEPS:
        return False
    centre, mad = median_and_mad(calm_s)
    noise = min(MAD_TO_SIGMA * mad / max(centre, 1e-12) / NOISY, 1.0)
    is_long = float(calm_s.sum()) >= CALM_S
    return is_long or (len(calm_s) >= CALM_STEPS and float(calm_s.sum()) >= NOISY_CALM_S * noise**2)


def _centre(spell: Spell) -> Callable[[Floats], float]:
    """Return the median for a lasting fault, and a mean where it comes in bursts."""
    stalls = spell.suspect.stalls
    if not stalls:
        return _median
    rarity = len(stalls) / max(1, spell.end - spell.begin)
    highest = max(HIGHEST, 1 - rarity / 4)
    return lambda values: float(np.minimum(values, np.quantile(values, highest)).mean())


def _phase_error(slow: Floats, calm: Floats, centre: Callable[[Floats], float]) -> float:
    """Return the standard error of the difference of two phases.

    The pace of a noisy job wanders: a short phase differs from others like equally long pieces of
    the longer phase differ from each other.
    """
    errors = [block_error(slow, centre), block_error(calm, centre)]
    for index, (one, other) in enumerate(((slow, calm), (calm, slow))):
        pieces = len(other) // max(1, len(one))
        if pieces >= MIN_PIECES:
            centres = [centre(part) for part in np.array_split(other, pieces)]
            errors[index] = max(errors[index], float(np.std(centres, ddof=1)))
    return float(np.hypot(np.hypot(errors[0], errors[1]), PACE_FLOOR / SIGMAS * centre(slow)))


def block_error(values: Floats, centre: Callable[[Floats], float]) -> float:
    """Return the standard error of a centre from blocks as long as the wander of the job."""
    blocks = max(len(values) // BLOCK_STEPS, MIN_BLOCKS)
    centres = [centre(part) for part in np.array_split(values, blocks) if len(part)]
    return float(np.std(centres, ddof=1) / np.sqrt(len(centres)))


def find_rise(period_s: Floats) -> int | None:
    """Return the step from which on steps are clearly longer; None if there is no such step."""
    known = np.flatnonzero(np.isfinite(period_s))
    if len(known) < 2 * CALM_STEPS:
        return None
    values = period_s[known]
    low, high = np.quantile(values, [1 - HIGHEST, HIGHEST])
    logs = np.log(np.clip(values, low, high))
    drift = np.cumsum(logs - logs.mean())[CALM_STEPS - 1 : -CALM_STEPS]
    split = int(drift.argmin()) + CALM_STEPS
    before, after = values[:split], values[split:]
    rise = float(np.median(after) - np.median(before))
    error = np.hypot(block_error(before, _median), block_error(after, _median))
    if rise <= max(CLEAR * float(error), COSTLY * float(np.median(before))):
        return None
    return int(known[split])


def _median(values: Floats) -> float:
    return float(np.median(values))
