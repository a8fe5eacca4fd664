"""Recordings of the NCCL plugin's rings: what several archives of one job hold, as one ring a rank.

An archive holds the ring files of a job at one moment. Archives of the same processes overlap or
leave a gap; records are joined by the number that the plugin stamped on them.
"""

import json
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ingero.contract.nccl_ring import HEADER, Records, RingCopy, decode_ring, record_checks

LONGEST_SILENCE_S = 5.0  # of a whole job that was recorded without a break


@dataclass(frozen=True, slots=True)
class RankRecording:
    """The records of one process, oldest first, and where (by index) earlier ones are missing."""

    name: str
    rank: int
    header: bytes
    records: Records
    gaps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """The ranks of one job, and what the job says of itself."""

    name: str
    ranks: tuple[RankRecording, ...]
    truth: dict[str, Any] = field(default_factory=dict)
    calm: dict[str, Any] = field(default_factory=dict)  # the truth of the healthy recording
    pauses: tuple[tuple[float, float], ...] = ()  # seconds without any record: when, how long

    @property
    def fault_start_s(self) -> float | None:
        """When the fault began, on the clock of the records."""
        start_s = self.truth.get("fault_start_s")
        return None if start_s is None else self.moved(start_s)

    def moved(self, at_s: float) -> float:
        """Return where pauses that were taken out put a moment."""
        return at_s - sum(length for after, length in self.pauses if at_s > after)

    @property
    def culprit(self) -> int | None:
        return self.truth.get("fault", {}).get("rank")

    @property
    def loss(self) -> float:
        """What the fault costs of the slow step; periodic faults change its mean only."""
        if self.culprit is None or not self.calm:
            return 0.0
        kind = "step_ms_mean" if self.truth["fault"].get("every", 1) > 1 else "step_ms_median"
        slow, calm = self.truth[kind], self.calm[kind]
        return float((slow - calm) / slow)


def find_recordings(folders: Iterable[Path]) -> Iterator[Recording]:
    """Yield every recording of job folders, each joined with the earlier ones of the same job."""
    for folder in folders:
        truth = json.loads((folder / "truth.json").read_text())["recordings"]
        order = sorted(truth, key=lambda name: float(truth[name]["recorded_until_s"]))
        for index, name in enumerate(order):
            ranks = join_archives([folder / f"{part}.tar.xz" for part in order[: index + 1]])
            pauses = _pauses(ranks)
            yield Recording(
                f"{folder.name}/{name}",
                tuple(_without(rank, pauses) for rank in ranks),
                truth[name],
                truth.get("healthy", {}),
                pauses,
            )


def join_archives(archives: Iterable[Path]) -> tuple[RankRecording, ...]:
    """Join the rings of archives, oldest archive first; only those of the last one are kept."""
    found: dict[str, list[tuple[bytes, RingCopy]]] = {}
    last: set[str] = set()
    for archive in archives:
        last.clear()
        with tarfile.open(archive) as files:
            for member in files:
                content = files.extractfile(member) if member.isfile() else None
                if content is not None:
                    data, name = content.read(), Path(member.name).name
                    copy = decode_ring(data, name)
                    last.add(name)
                    found.setdefault(name, []).append((data[: HEADER.itemsize], copy))
    ranks = [_join(name, copies) for name, copies in found.items() if name in last]
    return tuple(sorted(ranks, key=lambda rank: rank.rank))


def _join(name: str, copies: list[tuple[bytes, RingCopy]]) -> RankRecording:
    """Join copies of one ring; the records are numbered anew, so that gaps need no slots."""
    every = np.concatenate([copy.records for _, copy in copies])
    stamps, first = np.unique(every["stamp"], return_index=True)
    records = every[first].copy()
    gaps = np.flatnonzero(np.diff(stamps.astype(np.int64)) > 1) + 1
    records["stamp"] = np.arange(1, len(records) + 1, dtype=np.uint64)
    records["check"] = record_checks(records)
    rank = copies[0][1].header.global_rank
    return RankRecording(name, 0 if rank is None else rank, copies[0][0], records, tuple(gaps))


def _pauses(ranks: Iterable[RankRecording]) -> tuple[tuple[float, float], ...]:
    """Return when nothing was recorded of any rank, between two archives, and for how long."""
    times = np.unique(np.concatenate([rank.records["host_stop_ns"] for rank in ranks]))
    length_s = np.diff(times.astype(np.int64)) / 1e9
    return tuple(
        (float(times[at] / 1e9), float(length_s[at]))
        for at in np.flatnonzero(length_s > LONGEST_SILENCE_S)
    )


def _without(rank: RankRecording, pauses: tuple[tuple[float, float], ...]) -> RankRecording:
    """Move records to where they would be without the pauses."""
    records = rank.records
    stop_s = records["host_stop_ns"] / 1e9
    back_ns = sum((stop_s > after) * np.uint64(length * 1e9) for after, length in pauses)
    for name in ("enqueue_ns", "gpu_start_ns", "gpu_stop_ns", "host_stop_ns"):
        records[name] -= np.asarray(back_ns, np.uint64)
    records["check"] = record_checks(records)
    return rank
