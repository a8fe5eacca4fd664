"""How the time on a lent machine is spent: every fault first, then calm time for each job."""

import time
from collections.abc import Sequence
from pathlib import Path

from tests.hardware.real_jobs.plan import Lengths, calm_wanted, least_lengths, lengths_for
from tests.hardware.real_jobs.rows import Row

START_S, END_S = 14.0, 12.0  # until a job's first steps are over; what is left of the last one
ROUNDING_S = 0.5
BARE_S = 34.0  # a run without plugin and agent, its start and end included


class Deadline:
    """When the machine goes back; the file, if there is one, can be written anew meanwhile."""

    def __init__(self, seconds: float, file: Path | None) -> None:
        self._end_s, self._file = time.time() + seconds, file

    def left_s(self) -> float:
        if self._file is not None and self._file.exists():
            return float(self._file.read_text()) - time.time()
        return self._end_s - time.time()


def seconds_of(lengths: Lengths, kinds: Sequence[str]) -> float:
    """Return what a job with these faults takes, its start included."""
    return START_S + lengths.healthy + len(kinds) * (lengths.fault + lengths.calm)


def lengths_that_fit(
    mode: str,
    kinds: Sequence[str],
    later: Sequence[tuple[str, Sequence[str]]],
    rows: list[Row],
    left_s: float,
) -> Lengths | None:
    """Return as much calm time as the job lacks, and no more than leaves all faults of later jobs.

    None where nothing is lacking, or where too little time is left to judge a fault.
    """
    wanted_s = calm_wanted(rows, mode)
    if not kinds and not wanted_s:
        return None
    least = least_lengths(mode)
    reserved_s = sum(seconds_of(least_lengths(each), those) for each, those in later if those)
    faults_s = len(kinds) * least.fault
    free_s = left_s - END_S - reserved_s - START_S - faults_s
    least_s = least.healthy + len(kinds) * least.calm
    if left_s - END_S < START_S + faults_s + least_s - ROUNDING_S:
        return None
    return lengths_for(mode, max(min(wanted_s, free_s), least_s), len(kinds))
