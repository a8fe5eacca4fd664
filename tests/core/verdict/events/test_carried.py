"""Members that are slow because they wait for another one, and those that slowed down with it."""

import numpy as np
import pytest
from tests.support.verdict_tables import NOW_S, POLICY, RANKS, calm_world

from ingero.core.verdict.episodes import Episodes
from ingero.core.verdict.events.carried import find_carried
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.table import RECENT

EVERYBODY = np.ones(RANKS, bool)


def job(advance: list[float], scale: float = 0.01, risen: float = 0.1) -> MemberRegistry:
    """A job whose first members are waited for; its steps are longer by a share of them."""
    registry = calm_world()
    rows, cohorts = registry.rows, registry.cohorts
    rows.advance_recent[:RANKS] = 0.0
    rows.advance_recent[: len(advance)] = np.array(advance)[:, None]
    rows.advance_scale[:RANKS] = scale
    cohort = int(rows.cohort[0])
    cohorts.step_samples[cohort] = RECENT
    cohorts.step_log[cohort, :RECENT] = 0.0
    cohorts.step_base[cohort] = np.log(1 - risen)
    return registry


def carried(registry: MemberRegistry, effect: list[float]) -> list[int]:
    excess = np.zeros(RANKS)
    excess[: len(effect)] = effect
    return np.flatnonzero(find_carried(registry, EVERYBODY, excess, POLICY)).tolist()


def test_the_group_of_a_rank_that_is_waited_for_is_carried() -> None:
    assert carried(job([0.08, 0.0, -0.01]), [0.5, 0.3, 0.3]) == [1, 2]


@pytest.mark.parametrize(
    ("advance", "effect", "scale", "risen", "expected"),
    [
        ([0.0401, 0.0], [0.5, 0.3], 0.01, 0.1, [1]),
        ([0.0399, 0.0], [0.5, 0.3], 0.01, 0.1, []),  # too little of what the steps grew by
        ([0.0151, 0.0], [0.5, 0.3], 0.001, 0.0, [1]),
        ([0.0149, 0.0], [0.5, 0.3], 0.001, 0.0, []),  # hardly waited for
        ([0.08, 0.0239], [0.5, 0.3], 0.01, 0.1, [1]),
        ([0.08, 0.0241], [0.5, 0.3], 0.01, 0.1, []),  # is waited for itself
        ([0.08, 0.0], [0.5, 0.51], 0.01, 0.1, []),  # its own time grew by more
        ([0.08, 0.0], [0.5, 0.0149], 0.01, 0.1, []),  # not slow at all
        ([0.08, 0.0], [0.5, 0.3], 0.063, 0.1, [1]),
        ([0.08, 0.0], [0.5, 0.3], 0.064, 0.1, []),  # may be chance
        ([0.08, -np.inf], [0.5, 0.3], 0.01, 0.1, []),  # nothing is known of it
    ],
)
def test_others_slowed_down_by_themselves(
    advance: list[float], effect: list[float], scale: float, risen: float, expected: list[int]
) -> None:
    registry = job(advance, scale, risen)
    registry.rows.advance_recent[:RANKS][np.isinf(registry.rows.advance_recent[:RANKS])] = np.nan
    assert carried(registry, effect) == expected


def test_where_steps_are_not_known_the_advance_alone_decides() -> None:
    registry = job([0.016, 0.0], 0.001)
    registry.cohorts.step_base[:] = np.nan
    assert carried(registry, [0.5, 0.3]) == [1]
    registry.cohorts.step_samples[:] = 0
    assert carried(registry, [0.5, 0.3]) == [1]


def test_who_is_carried_is_not_suspected() -> None:
    registry = job([0.08, 0.0])
    rows = registry.rows
    rows.recent_excess[:2] = [[0.5], [0.3]]
    rows.cusum[:2], rows.stall_cusum[:2] = 20.0, 5.0
    reporting = np.full(registry.cohorts.size, float(RANKS))
    said = Episodes(registry, POLICY).advance(EVERYBODY, reporting, NOW_S)
    assert [verdict.rank for verdict in said] == [1]
    assert rows.cusum[:2].tolist() == [20.0, 0.0]
    assert rows.stall_cusum[:2].tolist() == [5.0, 5.0], "own time that peers hide is no stall"
