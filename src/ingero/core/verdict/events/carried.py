"""Members that seem to be slow because they wait for another one.

A slow rank holds up its group, and the group others that it meets. These compute while they wait,
so that little own time is left to them, and all members of the slow group stand out. The job waits
for one of them alone: the others come late with it and not by themselves, so that nothing of that
wait is left when what they waited for is taken off.
"""

import numpy as np

from ingero.core.robust import Column, Index
from ingero.core.verdict.channels.advance import advance_effect
from ingero.core.verdict.decision import Mask
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import RECENT, STEP_SAMPLES, CohortRows

ALIKE = 0.3  # of the largest advance: a member with more of it is waited for itself
CLEARLY = 2.0  # standard errors between the two
# Of what the steps grew by. The advance is what one place shows of a delay; several ranks that
# slowed down together, of which one is a little slower, explain less.
EXPLAINED = 0.4


def find_carried(
    registry: MemberRegistry, judged: Mask, effect: Column, policy: VerdictPolicy
) -> Mask:
    """Tell which members are slower than usual only because the job waits for another member.

    `effect` is the excess of own time, as a logarithm.
    """
    rows, size = registry.rows, registry.rows.size
    carried = np.zeros(size, bool)
    slower = judged & (effect > policy.gate)
    advance = np.full(size, -np.inf)
    advance[slower] = advance_effect(rows, np.flatnonzero(slower))
    for job in np.unique(rows.job[:size][advance >= policy.gate]).tolist():
        members = np.flatnonzero(slower & (rows.job[:size] == job))
        if len(members) > 1:
            carried[members] = _by_one(registry, members, effect[members], advance[members])
    return carried


def _by_one(registry: MemberRegistry, members: Index, effect: Column, advance: Column) -> Mask:
    """Tell which of these members the one that is waited for most carries along."""
    rows, best = registry.rows, int(advance.argmax())
    most, scale = float(advance[best]), rows.advance_scale[members]
    if most < EXPLAINED * _risen(registry.cohorts, int(rows.cohort[members[best]])):
        return np.zeros(len(members), bool)
    error = np.sqrt((scale**2 + scale[best] ** 2) / RECENT)
    # Members of which no whole steps are known have an advance of minus infinity.
    others = np.isfinite(advance) & (advance < ALIKE * most) & (effect <= effect[best])
    return np.asarray(others & (most - advance >= CLEARLY * error), bool)


def _risen(cohorts: CohortRows, cohort: int) -> float:
    """Return the share of the last steps that usual ones do not have; 0 where it is unknown."""
    count = int(cohorts.step_samples[cohort])
    latest = cohorts.step_log[cohort, np.arange(max(count - RECENT, 0), count) % STEP_SAMPLES]
    if not len(latest) or np.isnan(cohorts.step_base[cohort]):
        return 0.0
    return float(1.0 - np.exp(cohorts.step_base[cohort] - latest.mean()))
