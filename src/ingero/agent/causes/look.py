"""Examines a slow rank, and peers on the same node, for a few seconds."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ingero.agent.causes.rank_signals import Reading, signals_between, take_reading
from ingero.agent.causes.rivals import find_rival
from ingero.agent.causes.sampling import ThreadSampler
from ingero.agent.causes.threads import driving_threads
from ingero.agent.stacks.python import GarbageCollection
from ingero.contract.causes import Ask, CauseKind, PeerValue, Signal
from ingero.contract.verdict import CauseClass
from ingero.core.causes.answer import Seen, add_up_readings, find_causes, name_rival
from ingero.core.causes.profile import Sample, add_up
from ingero.core.causes.python_places import Collections
from ingero.core.causes.ranking import Difference, Lateness
from ingero.core.causes.signal_rules import Place

LOOK_S: Final = 5.0
ENOUGH: Final = 250  # samples; a busy machine takes longer to give them
LONGEST: Final = 4.0  # times the usual length that a look may take
INTERVAL_S: Final = 0.01  # between samples of the late thread
GPU_EVERY_S: Final = 1.0  # a GPU that is slowed down for some seconds in ten must be seen, too
CPU_SHARE: Final = 0.2  # of one CPU that sampling may cost; beyond it, samples become rarer
MAX_PEERS: Final = 2
_CLASSES: Final = {str(each): each for each in CauseClass}
_SIGNALS: Final = {str(each): each for each in Signal}


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A rank on this node and its process."""

    pid: int
    job: str | None
    rank: int | None
    local_rank: int | None = None
    world_size: int | None = None


class GpuReader(Protocol):
    """Reads the signals of the GPU of a process."""

    def read(self, pid: int, local_rank: int | None, now_s: float) -> Mapping[Signal, float]: ...


@dataclass(frozen=True, slots=True)
class Subject:
    """What to examine: a late rank, peers on its node, and Fleet's question about it."""

    ask: Ask
    late: RankProcess
    peers: Sequence[RankProcess]
    gpus: GpuReader


class _Watched:
    """One rank during a look."""

    def __init__(self, rank: RankProcess, gpus: GpuReader, *, is_late: bool) -> None:
        self.rank, self._gpus = rank, gpus
        self.sampler = ThreadSampler(rank.pid, with_others=is_late)
        self.samples: list[Sample] = []
        self._threads = driving_threads(rank.pid)
        self._before: Reading | None = take_reading(rank.pid, time.monotonic(), self._threads)
        self._collection: GarbageCollection | None = self.sampler.collection()
        self._of_gpu: list[Mapping[Signal, float]] = []

    def read_gpu(self) -> None:
        """Read what the GPU of the rank says now; a clock that falls now and then is a mean."""
        rank = self.rank
        self._of_gpu.append(self._gpus.read(rank.pid, rank.local_rank, time.monotonic()))

    def sample(self) -> bool:
        """Take one sample; return False when the process is gone."""
        found = self.sampler.sample()
        if found is not None:
            self.samples.append(found)
        return found is not None

    def seen(self, step_ms: float | None = None, period: int | None = None) -> Seen | None:
        """Return everything that was seen; None when the process is gone."""
        after = take_reading(self.rank.pid, time.monotonic(), self._threads)
        if self._before is None or after is None:
            return None
        signals = signals_between(self._before, after)
        signals |= add_up_readings(self._of_gpu)
        profile = add_up(self.samples)
        before, last = self._collection, self.sampler.collection()
        count = _count_collections(before, last) if before and last else 0
        seconds = after.at_s - self._before.at_s
        runs = Collections(count=count, seconds=seconds, step_ms=step_ms, period=period)
        if last is not None:
            signals[Signal.GC_SHARE] = profile.collecting_share
        return Seen(signals=signals, profile=profile, collections=runs)


Look = Callable[[Subject, threading.Event, float], list[Difference] | None]


def look(subject: Subject, stop: threading.Event, seconds: float) -> list[Difference] | None:
    """Return what sets a rank apart, the largest share first; None when it is gone.

    If nothing sets it apart and Python frames could not be read, the answer is "unknown" and says
    so. This takes a few seconds of wall time and at most a fifth of one CPU.
    """
    ask, late, gpus = subject.ask, subject.late, subject.gpus
    watched = [_Watched(late, gpus, is_late=True)]
    watched += [_Watched(peer, gpus, is_late=False) for peer in subject.peers[:MAX_PEERS]]
    if not _sample(watched, stop, seconds):
        return None
    mine = watched[0].seen(ask.step_ms, ask.period)
    if mine is None:
        return None
    others = [seen for one in watched[1:] if (seen := one.seen()) is not None]
    lateness = Lateness(
        share=ask.late, cause_class=_CLASSES.get(ask.cause_class, CauseClass.UNKNOWN)
    )
    found = find_causes(mine, others, known_signals(ask.peers), lateness)
    problem = watched[0].sampler.problem
    if found and found[0].kind is CauseKind.CPU:
        rival = find_rival(late.pid, stop)
        # Who often wakes up from a lock or a read waits for a CPU as well: without frames and
        # without anybody who takes it, that would be a guess.
        is_clear = bool(rival) or not problem
        found = [name_rival(found[0], rival), *found[1:]] if is_clear else found[1:]
    return found or ([not_seen(problem)] if problem else [])


def not_seen(problem: str) -> Difference:
    """Return the part of an answer "unknown" that says why Python frames were not read."""
    text = f"its Python frames were not read, because {problem}"
    return Difference(kind=CauseKind.UNKNOWN, place=Place.HOST, text=text)


def known_signals(values: dict[str, PeerValue]) -> dict[Signal, PeerValue]:
    """Return the peers' values by signal; signals of a later version are left out."""
    return {_SIGNALS[name]: value for name, value in values.items() if name in _SIGNALS}


def _sample(watched: Sequence[_Watched], stop: threading.Event, seconds: float) -> bool:
    """Sample for a while; return False when the late process is gone or the agent stops."""
    begin_s, number, gpu_due_s = time.monotonic(), 0, 0.0
    while (passed_s := time.monotonic() - begin_s) < seconds or (
        number < ENOUGH and passed_s < LONGEST * seconds
    ):
        if passed_s >= gpu_due_s:
            gpu_due_s = passed_s + GPU_EVERY_S
            for one in watched:
                one.read_gpu()
        before_s = time.thread_time()
        if not watched[0].sample():
            return False
        if number % 2 == 0:
            for peer in watched[1:]:
                peer.sample()
        number += 1
        cost_s = time.thread_time() - before_s
        if stop.wait(max(INTERVAL_S, cost_s / CPU_SHARE - cost_s)):
            return False
    return True


def _count_collections(before: GarbageCollection, after: GarbageCollection) -> int:
    """Return how many full collections ran, or how many of any kind where none was full."""
    return after.full - before.full or after.collections - before.collections
