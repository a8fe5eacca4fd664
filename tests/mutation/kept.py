"""What became of mutants in earlier runs, so that a room can be tried in slices."""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from tests.mutation.mutants import Mutant
from tests.mutation.rooms import ROOT, SOURCE, Room

FOLDER = ROOT / ".cache" / "mutants"


@dataclass
class Kept:
    """A file with one line per outcome: the mutant, the content of its file, and the test.

    The test is empty for a survivor. A file that has changed since has no outcomes.
    """

    path: Path
    outcomes: dict[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def of(cls, room: Room, *, is_resumed: bool, folder: Path = FOLDER) -> Self:
        """Return the outcomes of a room, none of them where it is tried from the start."""
        folder.mkdir(parents=True, exist_ok=True)
        kept = cls(folder / f"{room.name}.jsonl")
        if is_resumed and kept.path.exists():
            for line in kept.path.read_text(encoding="utf-8").splitlines():
                name, content, test = json.loads(line)
                kept.outcomes[name, content] = test
        else:
            kept.path.write_text("")
            kept.measured.unlink(missing_ok=True)
        return kept

    @property
    def measured(self) -> Path:
        """Where the lines and times of tests are kept."""
        return self.path.with_suffix(".measured.json")

    def outcome(self, mutant: Mutant) -> str | None:
        """Return the test that noticed a mutant, nothing for a survivor, None if not tried."""
        return self.outcomes.get((mutant.name, _content(mutant.file)))

    def add(self, mutant: Mutant, test: str) -> None:
        """Keep one outcome at once, since a run may be ended at any time; the last one counts."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([mutant.name, _content(mutant.file), test]) + "\n")


@cache
def _content(file: str) -> str:
    return hashlib.sha256((SOURCE / file).read_bytes()).hexdigest()[:16]
