"""Mutants are made as described, named without lines, and killed by tests that look."""

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutation.__main__ import accepted
from tests.mutation.limits import HUNG
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.rooms import ROOMS, ROOT, SOURCE, Room, lower_bound

TEXT = '''"""A module."""
LIMIT = 3
NANOSECONDS = 1e9


def is_high(value: int, strict: bool = True) -> bool:
    """Return whether it is."""
    if value < 0:
        raise ValueError(f"{value} is below zero")
    return strict and value > LIMIT
'''
CHANGES = {
    "module 3 -> 4",
    "module 1000000000.0 -> 2000000000.0",
    "is_high True -> False",
    "is_high value < 0 -> value <= 0",
    "is_high 0 -> 1",
    "is_high raise ValueError(f'{value} is below zero') -> pass",
    "is_high return strict and value > LIMIT -> return None",
    "is_high strict and value > LIMIT -> strict or value > LIMIT",
    "is_high value > LIMIT -> value >= LIMIT",
}


def test_every_kind_of_change_is_made_once_and_sentences_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(TEXT)
    found = mutants_of(tmp_path, "m.py")
    assert {f"{mutant.function} {mutant.change}" for mutant in found} == CHANGES
    assert len({ast.unparse(mutant.tree()) for mutant in found}) == len(CHANGES)
    assert [mutant.change for mutant in found if not mutant.is_inside] == [
        "3 -> 4",
        "1000000000.0 -> 2000000000.0",
        "True -> False",
    ]
    (tmp_path / "m.py").write_text(f"import os\n\n{TEXT}")
    assert {mutant.name for mutant in mutants_of(tmp_path, "m.py")} == {m.name for m in found}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_room_has_files_and_tests(room: Room) -> None:
    assert len(room.files()) > 2
    assert all(list(ROOT.glob(pattern)) for pattern in room.tests)


def test_lower_bound_is_wilsons() -> None:
    assert lower_bound(85, 100) == pytest.approx(0.767, abs=1e-3)
    assert lower_bound(0, 0) == 0


def test_accepted_survivors_have_reasons_and_exist() -> None:
    """A line whose mutant is gone says nothing any more."""
    names = {mutant.name for room in ROOMS for file in room.files() for mutant in made(file)}
    assert accepted().keys() <= names
    assert all(len(reason.split()) > 2 for reason in accepted().values())


def made(file: str) -> list[Mutant]:
    return mutants_of(SOURCE, file)


LIMITED = """
import os, subprocess, sys, time
from tests.mutation.limits import limit

os.setsid()
limit({usual_s}, look_s=0.5)
{work}
"""
BUSY = "end = time.process_time() + 1.2\nwhile time.process_time() < end: pass"
BUSY_CHILD = f"subprocess.run([sys.executable, '-c', {'import time;' + BUSY!r}])"


@pytest.mark.parametrize(
    ("usual_s", "work", "status"),
    [
        pytest.param(10, BUSY, 0, id="busy"),
        pytest.param(10, BUSY_CHILD, 0, id="busy child"),
        pytest.param(10, "time.sleep(60)", HUNG, id="nothing happens"),
        pytest.param(-0.3, BUSY, -signal.SIGPROF, id="far more than usual"),
    ],
)  # fmt: skip
def test_a_trial_ends_by_what_it_uses_or_when_nothing_happens(
    usual_s: float, work: str, status: int
) -> None:
    """How long a trial takes by the clock says more about the machine than about the mutant."""
    code = LIMITED.format(usual_s=usual_s, work=work)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == status, done.stderr.decode()


TRIAL = """
import sys, time, pathlib, pytest
from tests.mutation.__main__ import sample
from tests.mutation.kept import Kept
from tests.mutation.rooms import Room
from tests.mutation.trial import OPTIONS, Trials

room = Room("one", ("core/health/throttle.py",), ("tests/core/health/test_throttle.py",))
folder, *changes = sys.argv[1:]
chosen = [m for m in sample(room, 7, None, "") if m.change in changes]
kept = Kept.of(room, is_resumed=True, folder=pathlib.Path(folder))
trials = Trials(room, kept, chosen, time.monotonic() + 300, 2)
print("to try", sorted(mutant.change for mutant in trials.mutants))
pytest.main([*OPTIONS, *room.test_paths()], plugins=[trials])
print("killed", sorted(mutant.change for mutant in trials.killed))
print("survived", sorted(mutant.change for mutant in trials.survived))
"""


def test_changes_of_functions_and_of_constants_are_noticed_where_a_test_looks(
    tmp_path: Path,
) -> None:
    """The names of the reasons are checked elsewhere, so that this file's own tests miss one.

    A second run tries only the survivor again, and reports all of them.
    """
    function, constant = "return frozenset(reasons) -> return None", "3 -> 4"
    missed = "'power' -> 'XXpower'"
    for to_try in (sorted([function, constant, missed]), [missed]):
        done = subprocess.run(
            [sys.executable, "-c", TRIAL, str(tmp_path), function, constant, missed],
            cwd=ROOT, capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        assert f"to try {to_try}" in done.stdout
        assert f"killed {sorted([function, constant])}" in done.stdout
        assert f"survived {[missed]}" in done.stdout
