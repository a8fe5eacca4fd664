"""Rows of a few members and cohorts, for tests of single rules without an engine."""

import numpy as np

from ingero.core.verdict.events import links
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import CohortRows, MemberRows


def member_table(members: int = 4) -> tuple[MemberRows, CohortRows]:
    """Return members of one cohort with a scale of 0.01, k of 0.5 and a limit of 10."""
    rows, cohorts = MemberRows(), CohortRows()
    cohorts.append()
    cohorts.append()
    cohorts.frames_per_sample[:] = 1
    for _ in range(members):
        rows.append()
    rows.cohort[:members] = 1
    rows.scale[:members], rows.k[:members], rows.limit[:members] = 0.01, 0.5, 10.0
    rows.baseline_samples[:members] = 60
    return rows, cohorts


def cohorts_of(*jobs: int) -> CohortRows:
    """Return cohorts of eight expected members each, by the row of their job."""
    cohorts = CohortRows()
    for job in jobs:
        row = cohorts.append()
        cohorts.job[row], cohorts.expected[row] = job, 8.0
        cohorts.level[row] = cohorts.slow_level[row] = cohorts.baseline_level[row] = 0.0
        cohorts.first_seen_s[row] = float(row)
    return cohorts


def linked(
    transfer: float, *, waiting: float = 0.1, step_s: float = 1.0, seconds: int = 40
) -> bool:
    """Return whether links are slow after the transfer of 0.1 s changed for some time."""
    cohorts = cohorts_of(1)
    cohorts.transfer_s[0], cohorts.waiting_s[0] = 0.1, 0.1
    for second in range(5):
        links.judge_links(cohorts, np.array([step_s]), 1000.0 + second)
    cohorts.transfer_s[0], cohorts.waiting_s[0] = transfer, waiting
    found = np.zeros(1, bool)
    for second in range(seconds):
        found = links.judge_links(cohorts, np.array([step_s]), 1010.0 + second)
    return bool(found[0])


def job_members(count: int, **labels: object) -> MemberRegistry:
    """Return ranks of one job, two on each node, which are calm and were seen now."""
    registry = MemberRegistry(VerdictPolicy())
    for rank in range(count):
        made = {"cluster": "c", "node": f"n{rank // 2}", "rank": rank, "job": "j", **labels}
        index = registry.put(Member(**made), 0.0)  # type: ignore[arg-type]
        registry.rows.last_seen_s[index] = 1000.0
    registry.rows.limit[:count] = 10.0
    registry.rows.scale[:count] = 0.01
    return registry
