"""Mutants are made as described, named without lines, and killed by tests that look."""

from pathlib import Path

import pytest
from tests.mutation.mutants import mutants_of
from tests.mutation.rooms import ROOMS, lower_bound
from tests.mutation.trial import Copy

SOURCE = '''"""A module."""
LIMIT = 3


def is_high(value: int, strict: bool = True) -> bool:
    """Return whether it is."""
    if value < 0:
        raise ValueError(f"{value} is below zero")
    return strict and value > LIMIT
'''
CHANGES = {
    "module 3 -> 4",
    "is_high True -> False",
    "is_high value < 0 -> value <= 0",
    "is_high 0 -> 1",
    "is_high raise ValueError(f'{value} is below zero') -> pass",
    "is_high return strict and value > LIMIT -> return None",
    "is_high strict and value > LIMIT -> strict or value > LIMIT",
    "is_high value > LIMIT -> value >= LIMIT",
}


def test_every_kind_of_change_is_made_once_and_sentences_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(SOURCE)
    found = mutants_of(tmp_path, "m.py")
    assert {f"{mutant.function} {mutant.change}" for mutant in found} == CHANGES
    assert len({mutant.source() for mutant in found}) == len(CHANGES)
    (tmp_path / "m.py").write_text(f"import os\n\n{SOURCE}")
    assert {mutant.name for mutant in mutants_of(tmp_path, "m.py")} == {m.name for m in found}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_room_has_files_and_tests(room: object) -> None:
    assert isinstance(room, type(ROOMS[0]))
    assert len(room.files()) > 2
    assert all(Path(test).exists() for test in room.tests)


def test_lower_bound_is_wilsons() -> None:
    assert lower_bound(85, 100) == pytest.approx(0.767, abs=1e-3)
    assert lower_bound(0, 0) == 0


def test_a_changed_line_is_noticed_and_an_unchanged_copy_passes(tmp_path: Path) -> None:
    health, copy = ROOMS[0], Copy(tmp_path / "src")
    mutants = mutants_of(Path("src"), "ingero/core/health/throttle.py")
    assert copy.passes(["tests/core/health/test_throttle.py"], 120)
    broken = next(mutant for mutant in mutants if mutant.change.endswith("return None"))
    assert copy.is_killed(broken, health, 120)
