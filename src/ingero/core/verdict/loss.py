"""What the job loses by a slow member: its steps now against its calm steps.

Own time is not additive where collectives overlap compute, but the step is what the job pays. A
member that is behind its peers while the steps did not change is late and costs nothing.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from ingero.core.cost import loss_per_hour
from ingero.core.robust import Column, Index
from ingero.core.verdict.channels.step import slow_since
from ingero.core.verdict.job_steps import (
    BLOCK,
    FLOOR,
    CalmSteps,
    Explained,
    recent_steps,
    rose_at,
)
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import STALL, STEP_SAMPLES
from ingero.core.verdict.what_if import AT_MOST, job_usd, most_lost, part_of_loss

MIN_LOSS = 0.015  # of a step: a smaller change is no reason to move a rank, and listed as late
MAX_DOUBT = math.log(
    19
)  # one jump in twenty is work, however rare it was: work also changes at once
WINDOW = 60  # samples of slow steps that are compared: the latest minute
LATEST = 20  # the same for a member that costs nothing so far
LEAST_ALARM = 2 * MIN_LOSS  # where steps do not decide, less than this at most is listed as late
# What was said of a member stays until the change is this many times as clear: it does not flap.
STAY = 2.0
OTHER_PACE = 0.015  # of a step: jobs run so much faster or slower between stalls than without any
FAR = 4.0  # errors of calm steps
# Errors: steps between stalls that are further from calm ones have stalls themselves, and quick
# steps that are further from means are not those that the fault makes longer.
AWAY = 2.0
HIDDEN = 0.001  # of a step: a slower GPU model makes the job wait for longer anyway


@dataclass(frozen=True, slots=True)
class Loss:
    """The share of its time that a job loses, give or take `error`; without it, at most `share`."""

    share: float
    error: float | None
    is_late: bool
    usd_per_hour: float | None
    calm_s: float | None = None
    slow_s: float | None = None

    @property
    def at_most(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True)
class Change:
    """By how much steps are longer than calm ones, as a share of the longer step.

    `plain` is the same without what the work of all explains.
    """

    share: float
    error: float  # one standard error
    calm_s: float
    slow_s: float
    plain: float


def measure_loss(
    registry: MemberRegistry,
    index: int,
    peers: Index,
    calm: CalmSteps | None,
    policy: VerdictPolicy,
    *,
    excess: float,
    period: int | None,
    was_late: bool | None,
) -> Loss:
    """Return what the job loses by a member; `was_late` is what was said about it so far."""
    rows = registry.rows
    most = most_lost(registry, index, peers, excess=excess, period=period)
    usd = job_usd(rows, index, policy)

    def said(share: float, error: float | None, is_late: bool, change: Change | None) -> Loss:
        price = None if math.isnan(usd) else round(loss_per_hour(share, usd), 2)
        lengths = (None, None) if change is None else (change.calm_s, change.slow_s)
        return Loss(share, error, is_late, price, *lengths)

    # One that was late may become slow: that shows in the latest steps first.
    window = LATEST if was_late else WINDOW
    change = None if calm is None else _clearest_change(registry, index, calm, most, window)
    # In pipelines own times are small and far from regular: what stalls add to them says little.
    is_small = rows.channel[index] == STALL and registry.slowest_model_s(index) == 0
    is_hidden = most < HIDDEN and not is_small
    if change is None or is_hidden:
        return said(most, None, most < HIDDEN, change)
    part = part_of_loss(rows, index, peers)  # of what all slow members cost together
    share, error = max(change.share, 0.0) * part, 2 * change.error * part
    bar = max(MIN_LOSS, change.error)
    if was_late is not None:
        bar = bar * STAY if was_late else MIN_LOSS / STAY
    if change.share >= bar:
        return said(share, error, False, change)
    if was_late or _is_unchanged(change, most / max(part, 0.1)):
        return said(share, error, True, change)
    # What own times of all explain may be a reaction to the fault, so the plain change counts, too.
    upper = max(most, (change.share + AT_MOST * change.error) * part, change.plain * part)
    return said(min(upper, 1.0), None, False, change)


def _is_unchanged(change: Change, most: float) -> bool:
    """Tell whether the steps hardly changed, where own times say that they may have by `most`.

    A change that was not seen at all counts for more than one that is too small to be certain.
    """
    errors = 1.0 if change.share < MIN_LOSS else 2.0
    return most < LEAST_ALARM or change.share + errors * change.error < max(most, MIN_LOSS)


def _clearest_change(
    registry: MemberRegistry, index: int, calm: CalmSteps, waited: float, window: int
) -> Change | None:
    """Compare means of steps, and quick steps, too, where these are steadier.

    Both measure the same fault, unless they contradict each other: then it is in some steps only.
    """
    means = change_of_step(registry, index, calm, waited, window)
    steadier = calm.steadier()
    if means is None or steadier is calm or registry.rows.channel[index] == STALL:
        return means
    quick = change_of_step(registry, index, steadier, waited, window)
    if quick is None:
        return means
    apart = abs(quick.share - means.share)
    if apart > AWAY * math.hypot(quick.error, means.error):
        return means
    weights = 1 / quick.error**2, 1 / means.error**2
    share = (weights[0] * quick.share + weights[1] * means.share) / sum(weights)
    return replace(means, share=share, error=quick.error, calm_s=(1 - share) * means.slow_s)


def change_of_step(
    registry: MemberRegistry,
    index: int,
    calm: CalmSteps,
    waited: float = 0.0,
    window: int = WINDOW,
) -> Change | None:
    """Compare the steps since a member became slow with calm ones; None without such steps.

    Medians are compared where it is slow all the time, and means where it stalls now and then.
    `waited` is the share of a step that its peers wait for it at most, `window` how many of the
    latest slow steps count.
    """
    rows, cohorts = registry.rows, registry.cohorts
    is_stall = rows.channel[index] == STALL
    since = slow_since(cohorts, int(rows.cohort[index]), rose_at(rows, cohorts, index))
    most = STEP_SAMPLES if is_stall else window
    recent = recent_steps(cohorts, int(rows.cohort[index]), since, most)
    log_s = recent.like(calm)
    if not len(log_s):
        return None
    before, expected, unsure = calm, 0.0, 0.0
    if calm.explained is not None:
        before = calm.explained.rest
        grown = float(np.median(log_s)) - calm.log_s
        moved = float(np.median(recent.level)) - calm.explained.level
        expected, unsure = _explained_by_work(calm.explained, moved, max(waited, abs(grown)))
    spread = before.noise * before.inflation / math.sqrt(max(len(log_s) / BLOCK, 1.0))
    if is_stall:
        slow_s, spread = float(np.exp(log_s).mean()), max(spread, _spread_of_stalls(log_s))
        calm_s, error = _between_stalls(before, calm, expected, recent.quick)
    else:
        slow_s, error = math.exp(float(np.median(log_s))), before.error
        calm_s = math.exp(before.log_s + expected)
    share = 1 - calm_s / slow_s
    error = calm_s / slow_s * math.hypot(error, spread, unsure)
    plain = 1 - math.exp(calm.log_s) / slow_s
    return Change(share, error, calm_s, slow_s, plain)


def _explained_by_work(why: Explained, moved: float, reaction: float) -> tuple[float, float]:
    """Return by how much steps would be longer without the fault, and its standard error, in logs.

    Own times of all members moved by `moved`: they have other work now, or they react to the fault.
    Peers that wait for a slow host earn back what they wait, and ranks that share a GPU slow each
    other down, by about `reaction` of a step at most. Either begins with the fault, so only the
    jump at its begin is in doubt. It is work alone, as large as calm jumps are, or both; each is as
    likely before it is seen.
    """
    jump = why.slope * why.jump
    usual = max(why.slope * why.usual_jump, FLOOR)
    both = math.hypot(usual, reaction)
    doubt = ((jump / usual) ** 2 - (jump / both) ** 2) / 2 + math.log(usual / both)
    only_work = 1 / (1 + math.exp(min(doubt, MAX_DOUBT)))
    of_both = (usual / both) ** 2  # the part of a jump that is work, if both are in it
    work = jump * (only_work + (1 - only_work) * of_both)
    unsure = (1 - only_work) * (only_work * (jump * (1 - of_both)) ** 2 + of_both * reaction**2)
    return why.slope * moved - jump + work, math.sqrt(unsure)


def _spread_of_stalls(log_s: Column) -> float:
    """Return the error of the mean of steps that stalls make, as a share; 0 for few steps."""
    blocks = np.exp(log_s[len(log_s) % BLOCK :]).reshape(-1, BLOCK).mean(axis=1)
    if len(blocks) <= 2:
        return 0.0
    return float(blocks.std(ddof=1) / np.exp(log_s).mean()) / math.sqrt(len(blocks))


def _between_stalls(
    before: CalmSteps, calm: CalmSteps, expected: float, quick: Column
) -> tuple[float, float]:
    """Return how long steps would be without stalls, and its relative error.

    Steps between stalls show the pace of now, if the job does not run differently there; calm ones
    show the pace of before, which wanders as the quick steps of calm blocks do. The mean of both
    counts, each weighted by how well it is known.
    """
    far = math.log(before.mean_s) + expected
    if calm.quick is None:
        return math.exp(far), before.error
    near = float(np.median(quick)) + math.log(calm.mean_s) - calm.quick.log_s
    wanders = calm.quick.noise * calm.quick.inflation
    of_far = max(before.error, wanders)
    of_near = math.hypot(OTHER_PACE, wanders / math.sqrt(max(len(quick) / BLOCK, 1)))
    if not abs(near - far) <= FAR * of_far + AWAY * of_near:
        return math.exp(far), of_far
    weights = 1 / of_far**2, 1 / of_near**2
    both = (weights[0] * far + weights[1] * near) / sum(weights)
    return math.exp(both), max(1 / math.sqrt(sum(weights)), abs(near - far) / 4)
