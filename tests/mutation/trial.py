"""Running the tests of a room against one mutant, in a copy of the source."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.mutation.mutants import Mutant
from tests.mutation.rooms import SOURCE, Room

ROOT = SOURCE.parent
_OPTIONS = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider")


class Copy:
    """A copy of the source, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shutil.copytree(SOURCE, folder, symlinks=True, dirs_exist_ok=True)

    def is_killed(self, mutant: Mutant, room: Room, timeout_s: float) -> bool:
        """Return whether a test fails; a test that never ends counts as failing."""
        original, target = (SOURCE / mutant.file).read_text(), self._folder / mutant.file
        for stale in target.parent.glob(f"__pycache__/{target.stem}.*.pyc"):
            stale.unlink()
        target.write_text(mutant.source())
        try:
            return not self.passes(_ordered(mutant, room), timeout_s)
        finally:
            target.write_text(original)

    def passes(self, tests: list[str], timeout_s: float) -> bool:
        """Return whether all these tests pass against the copy as it is."""
        environment = os.environ | {
            "PYTHONPATH": str(self._folder), "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", *_OPTIONS, *tests]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, check=False, timeout=timeout_s,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def _ordered(mutant: Mutant, room: Room) -> list[str]:
    """Return the tests of a room, those of the mutant's own module first."""
    stem = Path(mutant.file).stem
    files = sorted(
        str(path.relative_to(ROOT))
        for test in room.tests
        for path in ([ROOT / test] if test.endswith(".py") else (ROOT / test).glob("test_*.py"))
    )
    return sorted(files, key=lambda file: not file.endswith(f"test_{stem}.py"))
