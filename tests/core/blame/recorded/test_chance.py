"""A few pauses of a host that come close together by chance are no fault."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ingero.core.blame.recorded.chance import _at_least
from ingero.core.blame.recorded.spells import find_spells
from ingero.core.blame.suspects import WorkerSteps

Floats = NDArray[np.float64]


def named(own_s: Floats) -> list[int]:
    count, steps = own_s.shape
    workers = WorkerSteps(own_s, np.full(steps, 0.2), np.zeros(count, np.intp), tuple(range(steps)))
    return [spell.worker for spell in find_spells(workers)[1]]


def pauses(ranks: int, steps: int, every: int, seed: int = 4) -> Floats:
    """Return own times of 100 ms; every rank pauses for 50 ms in one of `every` steps."""
    chance = np.random.default_rng(seed)
    own = np.full((ranks, steps), 0.1) * np.exp(0.005 * chance.standard_normal((ranks, steps)))
    own[chance.random((ranks, steps)) < 1 / every] += 0.05
    return own


def test_four_pauses_close_together_are_nobodys_fault() -> None:
    own = pauses(4, 440, 40)
    own[1, 300:400] = 0.1
    own[1, [322, 343, 363, 384]] = 0.15
    assert named(own) == []


def test_the_same_pauses_are_a_fault_where_hosts_do_not_pause() -> None:
    own = pauses(4, 440, 100_000)
    own[1, [322, 343, 363, 384]] = 0.15
    assert named(own) == [1]


@pytest.mark.parametrize("every", [5, 10, 14])
def test_stalls_of_a_fault_are_found_among_pauses(every: int) -> None:
    own = pauses(8, 400, 100)
    own[3, 200::every] += 0.05
    assert named(own) == [3]


def test_no_rank_of_many_healthy_jobs_is_named_for_its_pauses() -> None:
    assert sum(len(named(pauses(8, 400, 60, seed))) for seed in range(40)) == 0


@pytest.mark.parametrize(
    ("count", "expected", "share"), [(0, 1.0, 1.0), (1, 1.0, 0.6321), (4, 0.86, 0.0116)]
)
def test_the_chance_of_so_many_pauses(count: int, expected: float, share: float) -> None:
    assert _at_least(count, expected) == pytest.approx(share, abs=1e-4)
