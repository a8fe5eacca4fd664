"""Who stalls more often than peers: all members at once, by the plain definition."""

import math

import numpy as np
import pytest

from ingero.core.verdict.channels.stall import (
    AS_LONG,
    STALL_CHANCE,
    TINY,
    stalls_more_than_peers,
)
from ingero.core.verdict.table import FEW, CohortRows, MemberRows


def drawn(seed: int) -> tuple[MemberRows, CohortRows]:
    """Return jobs of three roles; some members never stalled, some have hardly reported."""
    rng, rows, cohorts = np.random.default_rng(seed), MemberRows(), CohortRows()
    count = int(rng.integers(2, 60))
    for _ in range(count):
        rows.append()
    for _ in range(9):
        cohorts.append()
    rows.cohort[:count] = rng.integers(0, 9, count)
    rows.job[:count] = rows.cohort[:count] // 3
    cohorts.expected[:9] = np.bincount(rows.cohort[:count], minlength=9)
    rows.recent_steps[:count] = rng.choice([0.3, 100, 200], count)
    rows.recent_stalls[:count] = rng.choice([0, 1, 5, 60], count) * rng.uniform(0.5, 1, count)
    rows.stall_size[:count] = rng.choice([0, 0.1, 0.3, 2.0], count)
    return rows, cohorts


def expected(rows: MemberRows, index: int, group: np.ndarray, is_upper: bool) -> float:
    peers = [int(each) for each in np.flatnonzero(group == group[index]) if each != index]
    steps = sum(float(rows.recent_steps[each]) for each in peers)
    if steps <= 0.5:
        return 0.0
    own = max(math.expm1(rows.stall_size[index]), TINY)
    others = sum(
        min(math.expm1(rows.stall_size[each]) / own / AS_LONG, 1.0) * rows.recent_stalls[each]
        for each in peers
    )
    rate = others + (2 * math.sqrt(others) + 1 if is_upper else 0.0)
    return float(rate * rows.recent_steps[index] / steps)


def stalls_more(rows: MemberRows, cohorts: CohortRows, index: int) -> bool:
    is_few = cohorts.expected[rows.cohort[index]] < FEW
    usual = expected(rows, index, rows.cohort[: rows.size], not is_few)
    if is_few:
        usual = max(usual, expected(rows, index, rows.job[: rows.size], True))
    usual, stalls = max(usual, TINY), float(rows.recent_stalls[index])
    surprise = stalls * math.log(max(stalls, TINY) / usual) - stalls + usual
    return stalls > usual and surprise >= STALL_CHANCE


@pytest.mark.parametrize("seed", range(20))
def test_members_are_asked_about_together_as_one_by_one(seed: int) -> None:
    rows, cohorts = drawn(seed)
    asked = np.flatnonzero(np.random.default_rng(seed).random(rows.size) < 0.8)
    found = stalls_more_than_peers(rows, cohorts, asked)
    assert found.tolist() == [stalls_more(rows, cohorts, index) for index in asked.tolist()]


def test_some_of_them_stall_more_and_some_do_not() -> None:
    """Otherwise the comparison above would prove little."""
    worlds = [drawn(seed) for seed in range(20)]
    found = [stalls_more_than_peers(*world, np.arange(world[0].size)) for world in worlds]
    share = np.concatenate(found).mean()
    assert 0.1 < share < 0.9
