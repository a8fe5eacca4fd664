"""Rows of a few members for tests of single channels, without an engine."""

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
