"""The service that pushes the signals of ranks, and answers what Fleet asks about slow ones.

Signals are read every few seconds. An ask leads to one look at a time; asks that come meanwhile
wait in a short queue, and each is answered once.
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ingero.agent.causes.gpu_signals import GpuSignals
from ingero.agent.causes.look import LOOK_S, Look, RankProcess, Subject, look
from ingero.agent.causes.rank_signals import Reading, signals_between, take_reading
from ingero.agent.causes.threads import driving_threads
from ingero.agent.processes.discover import user_of
from ingero.contract.causes import (
    MAX_TEXT,
    Ask,
    CauseKind,
    Finding,
    encode_findings,
    encode_signals,
)
from ingero.contract.otlp.values import MetricsRequest, ResourceMetrics
from ingero.contract.push.decode import problem_with_id
from ingero.contract.types import Identity
from ingero.core.causes.ranking import Difference
from ingero.stopping import is_set_within
from ingero.transport.otlp.client import MetricsClient

log = logging.getLogger(__name__)

LIST_THREADS_S: Final = 60.0  # a process may have hundreds of threads
SIGNALS_S: Final = 5.0  # between two readings of the signals
MAX_RANKS: Final = 1024
FORGET_S: Final = 300.0  # a rank without collectives for this long
MAX_WAITING: Final = 4  # asks
MAX_ANSWERED: Final = 256  # asks that are remembered
PAUSE_S: Final = 5.0  # between two looks
RANKS_PER_REQUEST: Final = 16


@dataclass(slots=True)
class _Kept:
    rank: RankProcess
    seen_s: float
    reading: Reading | None = None
    threads: list[int] = field(default_factory=list)
    listed_s: float = -math.inf


@dataclass(slots=True)
class WatchCounters:
    """What was read, asked and answered."""

    signals: int = 0
    asks: int = 0
    refused_asks: int = 0  # unknown rank, or too many at once
    looks: int = 0
    look_seconds: float = 0.0
    found: int = 0
    failed: int = 0


class CauseWatch:
    """The ranks of this node, their signals, and the asks about them."""

    def __init__(
        self,
        client: MetricsClient,
        identity: Identity,
        gpus: GpuSignals,
        look_s: float = LOOK_S,
        look: Look = look,
    ) -> None:
        self.counters = WatchCounters()
        self._client, self._identity, self._gpus = client, identity, gpus
        self._look_s, self._look_at = look_s, look
        self._ranks: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._asks: deque[Ask] = deque()
        self._taken: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._asked = asyncio.Event()
        self._stop = threading.Event()

    def note(self, key: Hashable, rank: RankProcess, now_s: float) -> None:
        """Note a rank that works on this node; called by the thread that reads collectives."""
        kept = self._ranks.get(key)
        if kept is not None:
            kept.seen_s = now_s
        elif len(self._ranks) < MAX_RANKS:
            self._ranks[key] = _Kept(rank, now_s)

    def receive(self, asks: Sequence[Ask]) -> None:
        """Take the questions of a reply, except those already taken and those beyond the limit."""
        for ask in asks:
            key = (ask.episode, ask.number)
            if key in self._taken:
                continue
            if len(self._asks) >= MAX_WAITING:
                self.counters.refused_asks += 1
                return
            self._taken[key] = None
            while len(self._taken) > MAX_ANSWERED:
                self._taken.popitem(last=False)
            self.counters.asks += 1
            self._asks.append(ask)
            self._asked.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Push signals and answer asks until stopped."""
        tasks = [asyncio.create_task(self._push_signals(stop)), asyncio.create_task(self._look())]
        await stop.wait()
        self._stop.set()
        tasks[1].cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def read_signals(self, now_s: float) -> list[ResourceMetrics]:
        """Read the signals of all ranks since the last call."""
        found, at_ns = [], time.time_ns()
        for key, kept in list(self._ranks.items()):
            if now_s - kept.listed_s >= LIST_THREADS_S:
                kept.listed_s, kept.reading = now_s, None  # other threads, other counts
                kept.threads = driving_threads(kept.rank.pid)
            reading = take_reading(kept.rank.pid, now_s, kept.threads)
            if reading is None or now_s - kept.seen_s > FORGET_S:
                self._ranks.pop(key, None)
                continue
            before, kept.reading = kept.reading, reading
            if before is None:
                continue
            signals = signals_between(before, reading)
            signals |= self._gpus.read(kept.rank.pid, kept.rank.local_rank, now_s)
            found.append(encode_signals(self._who(kept.rank), signals, at_ns))
            self.counters.signals += len(signals)
        return found

    def answer(self, ask: Ask) -> ResourceMetrics | None:
        """Look at the rank of an ask; None where it is not on this node, or has just ended."""
        late = self._find(ask)
        if late is None:
            self.counters.refused_asks += 1
            return None
        uid = user_of(late.pid)  # anybody may give a process the name of this job
        peers = [
            kept.rank
            for kept in list(self._ranks.values())
            if kept.rank.job == late.job
            and kept.rank.pid != late.pid
            and user_of(kept.rank.pid) == uid
        ]
        begin_s = time.monotonic()
        found = self._look_at(Subject(ask, late, peers, self._gpus), self._stop, self._look_s)
        self.counters.looks += 1
        self.counters.look_seconds += time.monotonic() - begin_s
        if found is None:
            return None
        findings = [_finding(ask, found[0])] if found else [_unknown(ask)]
        self.counters.found += findings[0].kind is not CauseKind.UNKNOWN
        log.info(
            "cause_looked_for",
            extra={
                "episode": ask.episode,
                "rank": ask.rank,
                "causes": [each.text for each in found[:3]] or ["unknown"],
            },
        )
        return encode_findings(self._who(late), findings, time.time_ns())

    async def _push_signals(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                ranks = await asyncio.to_thread(self.read_signals, time.monotonic())
                for start in range(0, len(ranks), RANKS_PER_REQUEST):
                    part = tuple(ranks[start : start + RANKS_PER_REQUEST])
                    reply = await self._client.push(MetricsRequest(part))
                    self.receive(reply.asks)
            # a service loop: one unexpected file or reply must not stop all reading
            except Exception:
                self.counters.failed += 1
                log.exception("signals_failed")
            await is_set_within(stop, SIGNALS_S)

    async def _look(self) -> None:
        while True:
            await self._asked.wait()
            while self._asks:
                try:
                    answer = await asyncio.to_thread(self.answer, self._asks.popleft())
                    if answer is not None:
                        await self._client.push(MetricsRequest((answer,)))
                # a service loop: one process that cannot be read must not end all looking
                except Exception:
                    self.counters.failed += 1
                    log.exception("look_for_cause_failed")
                await asyncio.sleep(PAUSE_S)
            self._asked.clear()

    def _find(self, ask: Ask) -> RankProcess | None:
        """Return the rank of an ask; without a rank, the only one of its job on this node."""
        ranks = [kept.rank for kept in list(self._ranks.values())]
        same = [rank for rank in ranks if (rank.job, rank.rank) == (ask.job, ask.rank)]
        if not same and ask.rank is None:
            same = [rank for rank in ranks if ask.job in (None, rank.job)]
        return same[-1] if same and (ask.rank is not None or len(same) == 1) else None

    def _who(self, rank: RankProcess) -> Identity:
        job = rank.job if rank.job and not problem_with_id(rank.job) else self._identity.job
        return replace(
            self._identity,
            job=job,
            rank=rank.rank,
            local_rank=rank.local_rank,
            world_size=rank.world_size,
        )


def _finding(ask: Ask, difference: Difference) -> Finding:
    return Finding(
        episode=ask.episode,
        number=ask.number,
        kind=difference.kind,
        text=difference.text[:MAX_TEXT],
        explains=difference.explains,
    )


def _unknown(ask: Ask) -> Finding:
    return Finding(episode=ask.episode, number=ask.number, kind=CauseKind.UNKNOWN, text="")
