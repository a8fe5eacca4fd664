"""What slow ranks add to a step by a replay: shared by own time, and nothing for consequences."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.blame_tables import spell

from ingero.core.blame.recorded import replays
from ingero.core.blame.recorded.replays import charge_by_replay
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.suspects import Suspect


class Replayed:
    """A fixer whose replay saves so many seconds per step for the given ranks."""

    can_replay = True

    def __init__(self, saved: dict[int, float], needed: set[int]) -> None:
        self._saved, self._needed = saved, needed
        self.steps: list[slice] = []

    def __call__(self, *given: Any) -> "Replayed":
        self.steps.append(given[-1])
        return self

    def needed(self, suspects: list[Suspect]) -> list[Suspect]:
        return [each for each in suspects if each.worker in self._needed]

    def saved(self, suspects: list[Suspect]) -> float:
        return sum(self._saved[each.worker] for each in suspects)


def charged(fixer: Any, spells: list[Spell], exact_ends: bool = True) -> list[tuple[int, float]]:
    job: Any = SimpleNamespace(collectives=(), measured=(), exact_ends=exact_ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replays, "Fixer", fixer)
        found = charge_by_replay(job, spells)
    return [(each.worker, pytest.approx(charge_s)) for each, charge_s in found]


def test_what_a_replay_saves_is_shared_by_own_time_and_told_per_step_of_each_spell() -> None:
    """Together they save 0.6 s in each of 200 steps; one was slow in all of them, one in half."""
    fixer = Replayed({1: 0.4, 2: 0.2, 3: 0.1}, needed={1, 2, 3})
    spells = [
        spell(100, 300, 1, excess=0.9, excess_s=0.3),
        spell(200, 300, 2, excess_s=0.6),
        spell(400, 500, 3, excess_s=0.5),
    ]
    assert charged(fixer, spells) == [(1, 0.3), (2, 0.6), (3, 0.1)]
    assert fixer.steps == [slice(100, 300), slice(400, 500)], "each part is replayed by itself"


def test_consequences_of_others_are_not_charged() -> None:
    spells = [spell(0, 10, 1, excess_s=0.3), spell(0, 10, 2, excess_s=0.2)]
    assert charged(Replayed({1: 0.25}, needed={1}), spells) == [(1, 0.25)]


def test_ranks_without_own_time_share_what_a_replay_saves_equally() -> None:
    spells = [spell(0, 10, 1, excess_s=0.0), spell(0, 5, 2, excess_s=0.0)]
    found = charged(Replayed({1: 0.2, 2: 0.2}, needed={1, 2}), spells)
    assert found == [(1, 0.2), (2, 0.4)], "the shorter spell costs as much in half of the steps"


def test_where_records_cannot_be_replayed_own_time_is_charged() -> None:
    fixer = Replayed({1: 0.1}, needed={1})
    fixer.can_replay = False
    spells = [spell(0, 10, 1, excess_s=0.3)]
    assert charged(fixer, spells) == [(1, 0.3)]
    assert charged(fixer, spells, exact_ends=False) == [(1, 0.1)], "times of entry are unknown"
