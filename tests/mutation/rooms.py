"""The parts of the code whose tests are tried, and the tests of each."""

import math
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True, slots=True)
class Room:
    """Files by pattern below `src/ingero`, their tests, and how many mutants are tried."""

    name: str
    patterns: tuple[str, ...]
    tests: tuple[str, ...]
    sample: int | None = None  # all where it is None

    def files(self) -> list[str]:
        """Return the files, relative to `src`."""
        return sorted(
            str(path.relative_to(SOURCE))
            for pattern in self.patterns
            for path in (SOURCE / "ingero").glob(pattern)
            if path.name != "__init__.py"
        )


ROOMS = (
    Room("health", ("core/health/*.py",), ("tests/core/health",)),
    Room("journal", ("storage/journal/*.py",), ("tests/storage/test_journal.py",)),
    Room(
        "guards",
        ("echo/sql_*.py", "storage/sqlite_guard.py"),
        ("tests/echo/test_sql_guard.py", "tests/storage/test_sqlite_guard.py"),
    ),
    Room("verdict", ("core/verdict/*.py",), ("tests/core/verdict",), 400),
    Room("blame", ("core/blame/*.py",), ("tests/core/blame",), 1000),
)


def lower_bound(killed: int, tried: int) -> float:
    """Return the lower end of Wilson's 95 % interval of a share."""
    if not tried:
        return 0.0
    z, share = 1.96, killed / tried
    centre = share + z * z / (2 * tried)
    spread = z * math.sqrt(share * (1 - share) / tried + z * z / (4 * tried * tried))
    return (centre - spread) / (1 + z * z / tried)
