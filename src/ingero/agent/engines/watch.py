"""The service that watches the inference engines of this node and reports them to Fleet.

Every second the metrics page of each engine is read. Engines are looked for continuously: one that
ends is removed, and one that starts again, on whatever port, is found again.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from ingero.agent.engines.engine import Engine, EnginePlace
from ingero.agent.engines.find import Candidate, upwards
from ingero.agent.engines.ports import Listening
from ingero.agent.engines.scrape import HEALTH, get_page
from ingero.agent.engines.shares import Shares, crowd, pause_s
from ingero.agent.engines.sight import EngineSight, OwnEngineSight
from ingero.agent.engines.steps import ProbedSteps
from ingero.agent.engines.workers import worker_processes
from ingero.agent.processes.discover import running_since
from ingero.contract.measurements.engines import encode_engine
from ingero.contract.otlp.values import MetricsRequest, ResourceMetrics
from ingero.contract.types import Identity
from ingero.contract.verdict import Verdict
from ingero.core.inference.heartbeat import STALL_AFTER_S
from ingero.core.inference.metric_table import PATHS
from ingero.core.inference.page import EnginePage, read_page
from ingero.stopping import is_set_within
from ingero.transport.otlp.client import MetricsClient

log = logging.getLogger(__name__)

MAX_ENGINES: Final = 64  # of one node
MAX_STRANGERS: Final = 256  # ports that turned out not to be an engine's
STRANGER_S: Final = 60.0  # until such a port is asked again
ROUND_S: Final = 1.0
FIND_S: Final = 5.0
PUSH_S: Final = 2.0
GONE_S: Final = 60.0  # without an answer, a living process is no longer taken for an engine
THREADS: Final = 16  # pages that are read at the same time
TRY_S: Final = 4.0  # for all ports of a process that may be an engine
ENGINES_PER_REQUEST: Final = 16
DENIED: Final = "its ports cannot be read; run the agent as root or as the user of the engine"
T = TypeVar("T")


@dataclass(slots=True)
class EngineCounters:
    """What was read, found and sent."""

    pages: int = 0
    unanswered: int = 0
    left_out: int = 0  # lines of pages that make no sense
    found: int = 0
    gone: int = 0
    refused: int = 0  # engines above the limit
    pushes: int = 0
    failed: int = 0


class EngineWatch:
    """The engines of this node, by process and port."""

    def __init__(
        self,
        client: MetricsClient | None,
        identity: Identity,
        on_verdicts: Callable[[Sequence[Verdict]], None] = lambda verdicts: None,
        gpu_model: Callable[[], str | None] = lambda: None,
        stall_after_s: float = STALL_AFTER_S,
        patience_s: float = ROUND_S,
        probed: ProbedSteps | None = None,
        sight: EngineSight | None = None,
    ) -> None:
        self.counters = EngineCounters()
        self.engines: dict[tuple[int, int], Engine] = {}  # by pid and port
        self._client, self._identity, self._on_verdicts = client, identity, on_verdicts
        self._gpu_model, self._stall_after_s = gpu_model, stall_after_s
        self._probed = probed
        self._sight = sight or OwnEngineSight()
        self._strangers: OrderedDict[tuple[int, int, int], float] = OrderedDict()
        self._denied: frozenset[int] = frozenset()  # engines that we may not look at
        self._find_at_s = self._push_at_s = -math.inf
        self._patience_s = patience_s  # with slow engines, before a round goes on without them
        self._shares = Shares()
        self._reading: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._finding: asyncio.Task[None] | None = None
        self._stalled: set[tuple[int, int]] = set()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="engines")

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until stopped."""
        self._identity = replace(self._identity, gpu_model=await asyncio.to_thread(self._gpu_model))
        due_s = time.monotonic()
        while not stop.is_set():
            try:
                await self.round(time.monotonic())
            # a service loop: one unexpected page or reply must not stop all watching
            except Exception:
                self.counters.failed += 1
                log.exception("engines_failed")
            due_s = max(due_s + ROUND_S, time.monotonic())
            await is_set_within(stop, due_s - time.monotonic())
        for task in (*self._reading.values(), self._finding):
            if task is not None:
                task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def round(self, now_s: float) -> None:
        """Find what is new, read every page that is due, and report.

        What takes longer goes on beside the next rounds, so that slow processes delay nobody.
        """
        self._drop_ended()
        if now_s >= self._find_at_s and self._finding is None:
            self._find_at_s = now_s + FIND_S
            self._finding = asyncio.create_task(self._find(now_s))
        if self._finding is not None and await self._is_done(self._finding):
            done, self._finding = self._finding, None
            done.result()
        if self._probed is not None and self.engines:
            await self._in_thread(self._probed.update, time.time_ns())
        for key, engine in self.engines.items():
            if key not in self._reading and now_s >= engine.due_s:
                self._reading[key] = asyncio.create_task(self._read(engine, now_s))
        await self._is_done(*self._reading.values())
        self._take_read()
        self._drop_silent(now_s)
        stalled = {key for key, engine in self.engines.items() if _is_stalled(engine)}
        is_news, self._stalled = stalled != self._stalled, stalled
        if self._client is not None and self.engines and (is_news or now_s >= self._push_at_s):
            self._push_at_s = now_s + PUSH_S
            await self._push(self._client, time.time_ns())

    async def _is_done(self, *tasks: asyncio.Task[None]) -> bool:
        return not tasks or not (await asyncio.wait(tasks, timeout=self._patience_s))[1]

    def _take_read(self) -> None:
        """Remove the readings that have ended; raise the first error among them."""
        done = [self._reading.pop(key) for key, task in list(self._reading.items()) if task.done()]
        for task in done:
            task.result()

    def is_ready(self, port: int, now_s: float) -> bool:
        """Whether the engine on a port is known, answers and serves its requests."""
        return any(engine.is_ready(now_s) for (_, at), engine in self.engines.items() if at == port)

    def job_of(self, pid: int) -> str | None:
        """Return a job for the ranks of the engine that a process belongs to, or None."""
        above = set(upwards(pid))
        for (server, port), engine in list(self.engines.items()):
            if server in above:
                return f"{engine.model or engine.place.kind}:{port}"
        return None

    async def _find(self, now_s: float) -> None:
        known = {pid for pid, _ in self.engines}
        seen = await self._in_thread(self._sight.find_engines)
        candidates = seen.candidates
        self._note_denied(seen.denied)
        watched = [engine.place.user for engine in self.engines.values()]
        self._shares.forget_others([*watched, *(each.user for each in candidates)])
        new = [each for each in candidates if each.pid not in known]
        await asyncio.gather(*(self._try_in_turn(each, now_s) for each in new))

    def _note_denied(self, denied: frozenset[int]) -> None:
        """Log once for each engine that it cannot be watched, and what would help."""
        for pid in sorted(denied - self._denied):
            log.warning("engine_not_watched", extra={"engine_pid": pid, "why": DENIED})
        self._denied = denied

    async def _try_in_turn(self, candidate: Candidate, now_s: float) -> None:
        async with self._shares.place_of(candidate.user):
            with contextlib.suppress(TimeoutError):  # it has another turn later
                async with asyncio.timeout(TRY_S):
                    await self._try(candidate, now_s)

    async def _try(self, candidate: Candidate, now_s: float) -> None:
        """Ask the ports of a process for the page of an engine."""
        for at in candidate.ports:
            key = (candidate.pid, candidate.start_time, at.port)
            if now_s - self._strangers.get(key, -math.inf) < STRANGER_S:
                continue
            found = await self._in_thread(find_page, candidate, at)
            if found is None:
                self._note_stranger(key, candidate, now_s)
                continue
            if len(self.engines) >= MAX_ENGINES and not self._make_room(candidate.user):
                self.counters.refused += 1
                return
            await self._add(candidate, at, *found, now_s)
            return

    def _make_room(self, newcomer: int) -> bool:
        """Drop the newest engine of the user with the most engines, for a user with fewer."""
        user = crowd((engine.place.user for engine in self.engines.values()), newcomer)
        newest = [key for key, engine in self.engines.items() if engine.place.user == user][-1:]
        for key in newest:
            self._drop(key, "other users have engines, too")
        return bool(newest)

    async def _add(
        self, candidate: Candidate, at: Listening, path: str, page: EnginePage, now_s: float
    ) -> None:
        pid = candidate.pid
        gpus = await self._in_thread(self._sight.count_gpus, pid) if candidate.uses_gpu else 0
        place = EnginePlace(pid, candidate.start_time, at, path, page.kind, gpus, candidate.user)
        engine = Engine(
            place,
            page.model or candidate.line.model,
            lambda: (self._sight.describe_waits(pid), _health(place)),
            self._stall_after_s,
        )
        engine.take(page, now_s)
        self.engines[pid, at.port] = engine
        self.counters.found += 1
        log.info("engine_found", extra=_about(engine))

    def _note_stranger(self, key: tuple[int, int, int], candidate: Candidate, now_s: float) -> None:
        if candidate.line.is_server:
            return  # it is an engine that does not serve yet, or without metrics; ask again soon
        self._strangers[key] = now_s
        while len(self._strangers) > MAX_STRANGERS:
            self._strangers.popitem(last=False)

    async def _read(self, engine: Engine, now_s: float) -> None:
        place = engine.place
        async with self._shares.place_of(place.user):
            began_s = time.monotonic()
            reply, cpu_s = await self._in_thread(read_place_timed, place)
            took_s = time.monotonic() - began_s
        same = sum(each.place.user == place.user for each in self.engines.values())
        engine.due_s = now_s + pause_s(took_s, cpu_s, max(same, 1))
        self.counters.pages += reply is not None
        self.counters.unanswered += reply is None
        self.counters.left_out += reply.left_out if reply is not None else 0
        # looks at the workers of an engine that is stalled, which reads files
        await self._in_thread(self._take, engine, reply, now_s)

    def _take(self, engine: Engine, page: EnginePage | None, now_s: float) -> None:
        if page is not None and self._probed is not None:
            pid = engine.place.pid
            self._probed.complete(page, [pid, *worker_processes(pid)])
        engine.take(page, now_s)

    def _drop_ended(self) -> None:
        for key, engine in list(self.engines.items()):
            if running_since(engine.place.pid) != engine.place.start_time:
                self._drop(key, "its process ended")

    def _drop_silent(self, now_s: float) -> None:
        for key, engine in list(self.engines.items()):
            if now_s - engine.answered_s > GONE_S and not _is_stalled(engine):
                self._drop(key, "its metrics page is gone")

    def _drop(self, key: tuple[int, int], why: str) -> None:
        engine = self.engines.pop(key)
        self.counters.gone += 1
        self._find_at_s = -math.inf  # it may be back under another pid or port
        log.info("engine_gone", extra=_about(engine) | {"why": why})

    async def _push(self, client: MetricsClient, at_ns: int) -> None:
        resources = [
            encode_engine(self._identity, engine.ids()[rank], report, at_ns)
            for engine in self.engines.values()
            for rank, report in engine.reports.items()
        ]
        for start in range(0, len(resources), ENGINES_PER_REQUEST):
            part: tuple[ResourceMetrics, ...] = tuple(resources[start:][:ENGINES_PER_REQUEST])
            reply = await client.push(MetricsRequest(part))
            self.counters.pushes += 1
            self._on_verdicts(reply.verdicts)

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *args)


def find_page(candidate: Candidate, at: Listening) -> tuple[str, EnginePage] | None:
    """Return the first page of a port that is an engine's, and its path."""
    for path in PATHS:
        reply = get_page(at.address, at.port, path, pid=candidate.pid)
        if reply is None:
            return None
        page = read_page(reply.body) if reply.status == 200 else None
        if page is not None:
            return path, page
    return None


def read_place(place: EnginePlace) -> EnginePage | None:
    """Return the page of an engine; None without an answer, or with that of another engine."""
    reply = get_page(place.at.address, place.at.port, place.path, pid=place.pid)
    page = read_page(reply.body) if reply is not None and reply.status == 200 else None
    return page if page is not None and page.kind is place.kind else None


def read_place_timed(place: EnginePlace) -> tuple[EnginePage | None, float]:
    """Return the page of an engine, and the CPU seconds that reading it took."""
    began_s = time.thread_time()
    page = read_place(place)
    return page, time.thread_time() - began_s


def _health(place: EnginePlace) -> int | None:
    """Return the status that the server itself gives its health; None without an answer."""
    reply = get_page(place.at.address, place.at.port, HEALTH, pid=place.pid)
    return None if reply is None else reply.status


def _is_stalled(engine: Engine) -> bool:
    return any(report.stalled_s is not None for report in engine.reports.values())


def _about(engine: Engine) -> dict[str, object]:
    place = engine.place
    return {
        "engine": str(place.kind),
        "model": engine.model,
        "port": place.at.port,
        "engine_pid": place.pid,
        "gpus": place.gpus,
    }
