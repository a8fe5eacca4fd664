"""The parts of the code whose tests are tried, and the tests of each."""

import math
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


@dataclass(frozen=True, slots=True)
class Room:
    """Files by pattern below `src/ingero`, their tests, and how many mutants are tried.

    A room is whole or a sample, whose size bounds the time it takes.
    """

    name: str
    patterns: tuple[str, ...]
    tests: tuple[str, ...]
    sample: int | None = None  # all where it is None
    without: str = ""  # a part of the names of tests that take too long to be run twice
    most_test_s: float = 20.0  # of unchanged time for one mutant; slower tests are left out

    def files(self) -> list[str]:
        """Return the files, relative to `src`."""
        return sorted(
            str(path.relative_to(SOURCE))
            for pattern in self.patterns
            for path in (SOURCE / "ingero").glob(pattern)
            if path.name != "__init__.py"
        )

    def test_paths(self) -> list[str]:
        """Return the files and folders of its tests."""
        return sorted(str(path) for pattern in self.tests for path in ROOT.glob(pattern))


ROOMS = (
    Room("health", ("core/health/*.py",), ("tests/core/health",)),
    Room(
        "journal",
        ("storage/journal/*.py",),
        ("tests/storage/test_journal*.py", "tests/storage/test_attempts.py"),
    ),
    Room(
        "guards",
        ("echo/sql_*.py", "storage/sqlite_guard.py"),
        (
            "tests/echo/test_sql_dictionaries.py",
            "tests/echo/test_sql_guard*.py",
            "tests/echo/test_sql_order.py",
            "tests/echo/test_sql_scopes.py",
            "tests/echo/test_sql_functions.py",
            "tests/storage/test_sqlite_guard*.py",
        ),
        without="test_no_function_shows_what_a_text_argument_names",
        most_test_s=6.0,
    ),
    Room("inference", ("core/inference/*.py",), ("tests/core/inference",)),
    Room("verdict", ("core/verdict/**/*.py",), ("tests/core/verdict",), 400, most_test_s=5.0),
    Room(
        "blame",
        ("core/blame/**/*.py",),
        ("tests/core/blame",),
        1000,
        without="test_simulated_jobs",
        most_test_s=6.0,
    ),
)


def lower_bound(killed: int, tried: int) -> float:
    """Return the lower end of Wilson's 95 % interval of a share."""
    if not tried:
        return 0.0
    z, share = 1.96, killed / tried
    centre = share + z * z / (2 * tried)
    spread = z * math.sqrt(share * (1 - share) / tried + z * z / (4 * tried * tried))
    return (centre - spread) / (1 + z * z / tried)
