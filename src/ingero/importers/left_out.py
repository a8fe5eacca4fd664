"""Rows of a file that are left out because they make no sense: one bad row refuses no file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

# what a field that is missing, of another kind or out of range raises
BAD_ROW: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
MAX_REASON: Final = 200  # characters: a part of the file may be in the message


@dataclass(slots=True)
class LeftOut:
    """How many rows of a file were left out, and what is wrong with the first of them."""

    count: int = 0
    first: str = ""

    def add(self, where: str, error: Exception) -> None:
        """Count one more row; `where` says which."""
        self.count += 1
        self.first = self.first or f"{where}: {reason_of(error)}"

    def note(self, path: Path, kept: int, rows: str) -> str | None:
        """Return a sentence for the answer, None where nothing was left out."""
        if not self.count:
            return None
        return f"{path}: {self.count} of {self.count + kept} {rows} are left out; " + (
            f"the first is {self.first}"
        )


def reason_of(error: Exception) -> str:
    """Return what is wrong with a row in a few words."""
    words = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
    return words if len(words) <= MAX_REASON else f"{words[:MAX_REASON]}…"
