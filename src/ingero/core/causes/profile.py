"""Where a thread spends its time: samples of its state and Python frames, added up by place.

A place is what the thread does there (run, wait for a lock, read, sleep, wait), the innermost
frame outside the standard library, and the innermost frame of the job's own code.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

_LIBRARY: Final = ("/site-packages/", "/dist-packages/")
MAX_PLACES: Final = 1024  # of one profile; further ones are only part of the total


class Doing(StrEnum):
    """What a thread does at one moment."""

    RUNS = "runs"
    LOCK = "waits for a lock"
    INTERPRETER = "waits for the interpreter lock"
    READS = "reads"
    SLEEPS = "sleeps"
    DISK = "waits for a disk"
    CHILD = "waits for a child process"
    WAITS = "waits"  # for something that the kernel does not tell


_PASSIVE: Final = (Doing.LOCK, Doing.INTERPRETER)  # explain nobody else's wait


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame."""

    file: str
    function: str
    line: int

    @property
    def is_standard(self) -> bool:
        """Whether the frame belongs to the standard library."""
        if self.file.startswith("<"):
            return True
        return "/lib/python3" in self.file and not any(part in self.file for part in _LIBRARY)

    @property
    def is_library(self) -> bool:
        """Whether the frame belongs to the standard library or to an installed package."""
        return self.is_standard or any(part in self.file for part in _LIBRARY)

    def where(self) -> str:
        """Return `train.py:212`."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"


NOWHERE: Final = Frame("", "", 0)  # where no Python frames were seen


@dataclass(frozen=True, slots=True)
class Other:
    """Another thread of the process, or of one of its workers, at the same moment."""

    name: str
    doing: Doing
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """The late thread at one moment; `frames` are innermost first."""

    doing: Doing
    frames: tuple[Frame, ...]
    is_collecting: bool = False
    others: tuple[Other, ...] = ()


@dataclass(frozen=True, slots=True)
class PlaceKey:
    """A place without its line, so that a function's lines count together."""

    doing: Doing
    inner: tuple[str, str]  # file and function
    own: tuple[str, str]


@dataclass(slots=True)
class PlaceCount:
    """How often a thread was at a place, at which lines, and what others did meanwhile."""

    samples: int = 0
    inner: Counter[Frame] = field(default_factory=Counter)
    own: Counter[Frame] = field(default_factory=Counter)
    others: Counter[tuple[str, Doing, Frame]] = field(default_factory=Counter)


@dataclass(slots=True)
class Profile:
    """All samples of one thread."""

    samples: int = 0
    collecting: int = 0
    places: dict[PlaceKey, PlaceCount] = field(default_factory=dict)
    others: Counter[tuple[str, Doing, Frame]] = field(default_factory=Counter)
    doing: Counter[Doing] = field(default_factory=Counter)

    def share(self, key: PlaceKey) -> float:
        """Return the share of the samples at a place."""
        count = self.places.get(key)
        return count.samples / self.samples if count and self.samples else 0.0

    def doing_share(self, doing: Doing) -> float:
        """Return the share of the samples in which the thread did this, wherever."""
        return self.doing[doing] / self.samples if self.samples else 0.0

    @property
    def collecting_share(self) -> float:
        """Return the share of the samples during garbage collection."""
        return self.collecting / self.samples if self.samples else 0.0


def add_up(samples: Iterable[Sample]) -> Profile:
    """Return the profile of a thread; time in garbage collection belongs to no place."""
    found = Profile()
    places: defaultdict[PlaceKey, PlaceCount] = defaultdict(PlaceCount)
    for sample in samples:
        found.samples += 1
        found.doing[sample.doing] += 1
        active = [
            (other.name, other.doing, frame)
            for other in sample.others
            if (frame := _inner(other.frames)) is not None and other.doing not in _PASSIVE
        ]
        found.others.update(active)
        if sample.is_collecting:
            found.collecting += 1
            continue
        inner = _inner(sample.frames) or NOWHERE
        own = next((frame for frame in sample.frames if not frame.is_library), inner)
        key = PlaceKey(sample.doing, (inner.file, inner.function), (own.file, own.function))
        if key not in places and len(places) >= MAX_PLACES:
            continue
        count = places[key]
        count.samples += 1
        count.inner[inner] += 1
        count.own[own] += 1
        count.others.update(active)
    found.places = dict(places)
    return found


def _inner(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame outside the standard library, else the innermost one."""
    return next((frame for frame in frames if not frame.is_standard), frames[0] if frames else None)
