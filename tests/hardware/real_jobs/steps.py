"""The step times that each rank of a job writes about itself."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Steps:
    """The steps of one rank: when each ended (Unix seconds) and how long it took.

    `changes` says when the rank saw the control file change.
    """

    ended_s: NDArray[np.float64]
    ms: NDArray[np.float64]
    changes: list[dict[str, Any]] = field(default_factory=list)

    def between(self, begin_s: float, end_s: float) -> NDArray[np.float64]:
        """Return the milliseconds of the steps that ended in this time."""
        return self.ms[(self.ended_s >= begin_s) & (self.ended_s < end_s)]


def read_steps(path: Path) -> Steps:
    """Read one rank's file; an incomplete last line is left out."""
    ended: list[NDArray[np.float64]] = []
    took: list[NDArray[np.float64]] = []
    changes = []
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "ms" in line:
            ms = np.asarray(line["ms"], float)
            took.append(ms)
            ended.append(line["at"] - (ms[::-1].cumsum()[::-1] - ms) / 1e3)
        elif "fault" in line:
            changes.append(line)
    empty = [np.empty(0)]
    return Steps(np.concatenate(ended or empty), np.concatenate(took or empty), changes)


def read_job(folder: Path) -> list[Steps]:
    """Read the files of all ranks, in the order of ranks."""
    files = sorted(folder.glob("steps_*.jsonl"), key=lambda path: int(path.stem.split("_")[1]))
    return [read_steps(path) for path in files]
