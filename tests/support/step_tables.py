"""Steps of a cohort as tables: calm ones, and some that last longer."""

import math

import numpy as np
from numpy.typing import NDArray

from ingero.core.verdict.job_steps import (
    CalmSteps,
    close_steps,
    follow_steps,
)
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import (
    FAST,
    CohortRows,
)

Floats = NDArray[np.float64]


def cohort_table(cohorts: int = 3) -> CohortRows:
    rows = CohortRows()
    for _ in range(cohorts):
        rows.append()
    return rows


def sample(cohorts: CohortRows, log_s: float, level: float = 0.0, cohort: int = 1) -> None:
    """Add one sample of one step."""
    only = np.array([cohort])
    follow_steps(cohorts, only, np.array([0]), np.array([math.exp(log_s)]), np.array([level]))
    close_steps(cohorts, only)


def registry(ranks: int = 4, **labels: object) -> MemberRegistry:
    """Return members of one cohort with steps of 2 s and own times of 1 s, all seen now."""
    found = MemberRegistry(VerdictPolicy())
    for rank in range(ranks):
        index = found.put(
            Member(cluster="c", node=f"n{rank}", rank=rank + 1, job="j", **labels),  # type: ignore[arg-type]
            0.0,
        )
        found.rows.last_seen_s[index] = 100.0
        found.rows.own_s[index] = 1.0
        found.rows.frames[index] = 64
        found.rows.span_s[index] = 2.0
        found.rows.baseline_log_own[index] = 0.0
    return found


CALM = CalmSteps(log_s=0.0, mean_s=1.0, noise=0.01, inflation=1.0, error=0.003, explained=None)


def with_steps(values: Floats, channel: int = FAST, levels: Floats | None = None) -> MemberRegistry:
    found = registry()
    cohort = int(found.rows.cohort[0])
    found.rows.channel[0] = channel
    for at, value in enumerate(values):
        sample(found.cohorts, value, 0.0 if levels is None else levels[at], cohort)
    return found
