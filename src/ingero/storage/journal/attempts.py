"""How often the store process was started without loading anything new.

A request can end the process that loads it, by using up all memory or by an error in a library.
After two such ends in a row, requests are loaded one by one. The one that ends the process twice
while it is loaded alone is set aside.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from ingero.files import replace_file

SUSPICIOUS_STARTS: Final = 3
MOST_STRIKES: Final = 2


@dataclass(frozen=True, slots=True)
class _State:
    applied_seq: int = -1
    starts: int = 0
    alone: int = -1  # the request that is being loaded alone
    strikes: int = 0


class Attempts:
    """The count, kept in a small file that a killed process leaves behind."""

    def __init__(self, path: Path, applied_seq: int) -> None:
        self._path = path
        try:
            state = _State(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            state = _State()
        starts = state.starts + 1 if state.applied_seq == applied_seq else 1
        self._state = replace(state, applied_seq=applied_seq, starts=starts)
        self._write()

    @property
    def is_careful(self) -> bool:
        """Whether requests are to be loaded one by one."""
        return self._state.starts >= SUSPICIOUS_STARTS

    def begin(self, seq: int) -> bool:
        """Note that a request is about to be loaded alone; return False to set it aside."""
        strikes = self._state.strikes if self._state.alone == seq else 0
        if strikes >= MOST_STRIKES:
            return False
        self._state = replace(self._state, applied_seq=seq - 1, alone=seq, strikes=strikes + 1)
        self._write()
        return True

    def end(self) -> None:
        """Forget everything: requests are loaded again, or the process stops on purpose."""
        self._state = _State()
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        replace_file(self._path, json.dumps(asdict(self._state)).encode())
