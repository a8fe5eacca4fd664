"""The push loop: look, think, say, push. Ticks keep their time whatever Fleet does; one push is in flight at most."""

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ingero.agent.push.signals import SignalSource
from ingero.agent.push.verdict_log import verdict_facts
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.encode import HealthReport, StragglerEvent, event_request, health_request
from ingero.contract.straggler import SocketLine, Straggle, encode_line, verdict_line
from ingero.contract.types import DetectionMode
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.health.baseline import is_warm
from ingero.core.health.messages import StragglerMessage
from ingero.core.health.modes import PushOutcome, should_poll
from ingero.core.health.monitor import Evaluation, NodeMonitor
from ingero.core.health.observation import Observation
from ingero.core.health.throttle import ThrottleEdges
from ingero.storage.baseline_file import save_baseline
from ingero.transport.otlp.client import PushClient, PushReply
from ingero.transport.threshold_poll import ThresholdPoll
from ingero.transport.uds import LineServer

log = logging.getLogger(__name__)

TICK_JITTER = 0.10
POLL_JITTER = 0.20
MIN_POLL_WAIT_S = 1.0  # whatever Retry-After says: `0` must not become a loop without a pause
HEARTBEAT_S = 10.0
CHECKPOINT_S = 60.0
WARN_EVERY_S = 300.0  # per reason
FAREWELL_S = 3.0  # for the last events of a node that stops
MAX_OPEN_EVENTS = 8
MAX_VERDICTS = 64
MAX_DETAIL = 200  # characters of somebody else's error text in our log
NEXT_STEP = {
    PushOutcome.TRANSPORT: "is Fleet running there? `ingero check --fleet URL` looks",
    PushOutcome.AUTH: "give Fleet's authority (--fleet-tls-ca), our certificate or the token it asks for",
}
WITHOUT_PEERS = (
    "no Fleet to compare with: only less work than usual makes a straggler, a busy host does not"
)


@dataclass(slots=True)
class LoopCounters:
    """What happened so far; the agent's metrics are made of these."""

    ticks: int = 0
    late_ticks: int = 0
    failed_looks: int = 0
    pushes: Counter[str] = field(default_factory=Counter)  # by outcome
    skipped_pushes: Counter[str] = field(default_factory=Counter)  # by reason
    events: Counter[str] = field(default_factory=Counter)  # by outcome
    verdicts: Counter[str] = field(default_factory=Counter)  # news, by state
    headers: Counter[str] = field(default_factory=Counter)  # by delivery
    polls: Counter[str] = field(default_factory=Counter)  # by outcome, and "suspended"
    rejected_points: int = 0
    episodes: int = 0
    straggles: int = 0  # lines about processes that lost their CPU
    evicted_cgroups: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Cadence and the file that survives a restart."""

    push_interval_s: float
    poll_interval_s: float = 10.0
    persist_path: Path | None = None
    max_ticks: int | None = None  # end after so many; None runs until stopped


class PushLoop:
    """Owns the monitor of one node and everything it talks to."""

    def __init__(
        self,
        monitor: NodeMonitor,
        source: SignalSource,
        client: PushClient,
        settings: LoopSettings,
        *,
        chance: random.Random,
        poll: ThresholdPoll | None = None,
        socket: LineServer | None = None,
        on_event: Callable[[StragglerEvent], Awaitable[None]] | None = None,
    ) -> None:
        self.monitor = monitor
        self.counters = LoopCounters()
        self.throttle = ThrottleEdges()
        self.last_push: MetricsRequest | None = None
        self._source = source
        self._client = client
        self._settings = settings
        self._chance = chance
        self._poll = poll
        self._socket = socket
        self._on_event = on_event
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._push_task: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[Observation | None] | None = None
        self._not_before_s = 0.0
        self._events: dict[str, StragglerEvent] = {}  # by episode, the latest
        self._heard: dict[
            str, Verdict
        ] = {}  # by episode, the latest word on each, resolved ones too
        self._mode: DetectionMode | None = None
        self._warned_s: dict[str, float] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped or out of signals; then close what is open."""
        helpers = [
            asyncio.create_task(helper(stop))
            for helper in (self._keep_polling, self._keep_alive, self._keep_file)
        ]
        try:
            await self._tick_until(stop)
        finally:
            stop.set()
            await asyncio.gather(*helpers)
            await self._shut_down()

    async def tick(self) -> bool:
        """One round; False when the source has nothing more to say."""
        look = await self._look()
        if look is None:
            return False
        self.counters.ticks += 1
        self.counters.evicted_cgroups = max(self.counters.evicted_cgroups, look.evicted_cgroups)
        self.throttle.look_at_all(look.throttle)
        self._tell_straggles(look.straggles)
        self._judge()  # what the last push left open, because its reply is still on the way
        now_s = time.monotonic()
        evaluation = self.monitor.observe(look, now_s, time.time_ns())
        self._log_look(evaluation, look, now_s)
        if evaluation.message is not None:
            self._tell(evaluation)
        if evaluation.report is None or not self._push_soon(evaluation.report, now_s):
            self._judge()
        return True

    def snapshot(self) -> list[bytes]:
        """What a new reader of the socket must know: the open episode and the open verdicts."""
        lines: list[SocketLine] = (
            [self.monitor.open_message.line] if self.monitor.open_message else []
        )
        cluster = self.monitor.identity.cluster
        lines += [
            verdict_line(verdict, cluster, time.time_ns()) for verdict in self.verdicts.values()
        ]
        return [encode_line(line) for line in lines]

    async def _tick_until(self, stop: asyncio.Event) -> None:
        interval_s = self._settings.push_interval_s
        due_s = time.monotonic() + self._chance.uniform(0.0, min(interval_s, 1.0))
        limit = self._settings.max_ticks
        while not await _stopped_within(stop, due_s - time.monotonic()):
            if not await self.tick() or (limit is not None and self.counters.ticks >= limit):
                return
            due_s += jittered(interval_s, TICK_JITTER, self._chance)
            if due_s < time.monotonic():
                self.counters.late_ticks += 1
                due_s = time.monotonic()

    async def _look(self) -> Observation | None:
        """Look in a thread, so that a slow disk or a hanging tool cannot stop the loop; never two looks at once."""
        now_ns = time.time_ns()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(asyncio.to_thread(self._source.read, now_ns))
        await asyncio.wait({self._looking}, timeout=max(self._settings.push_interval_s, 1.0))
        if self._looking.done():
            try:
                look = self._looking.result()
            except Exception as error:  # noqa: BLE001 - whatever a source does costs one look, not the agent
                look = Observation(
                    at_s=now_ns / 1e9, launches=None, problem=f"{type(error).__name__}: {error}"
                )
            self._looking = None
        else:
            look = Observation(
                at_s=now_ns / 1e9, launches=None, problem="reading the signals takes too long"
            )
        if look is not None and look.launches is None:
            self.counters.failed_looks += 1
        return look

    def _push_soon(self, report: HealthReport, now_s: float) -> bool:
        """Start a push unless Fleet asked for a pause or the last one still runs; False when none was started."""
        if now_s < self._not_before_s:
            self.counters.skipped_pushes["backoff"] += 1
            return False
        if self._push_task is not None and not self._push_task.done():
            self.counters.skipped_pushes["busy"] += 1
            return False
        self._push_task = asyncio.create_task(self._push(report))
        return True

    async def _push(self, report: HealthReport) -> None:
        self.last_push = health_request(self.monitor.identity, report)
        reply = await self._post(self.last_push)
        self._absorb(reply)
        self._judge()
        if reply.outcome is not PushOutcome.OK:
            return
        for episode, event in list(self._events.items()):
            outcome = (
                await self._post(event_request(self.monitor.identity, event), retry=False)
            ).outcome
            self.counters.events[outcome.value] += 1
            if (
                self._events.get(episode) is event
            ):  # one attempt each; a newer one waits for the next push
                del self._events[episode]

    async def _post(self, request: MetricsRequest, *, retry: bool = True) -> PushReply:
        try:
            return await self._client.push(request, retry=retry)
        except Exception as error:  # noqa: BLE001 - whatever a client does costs one push, not the agent
            return PushReply(
                outcome=PushOutcome.TRANSPORT, detail=f"{type(error).__name__}: {error}"
            )

    def _judge(self) -> None:
        evaluation = self.monitor.classify(time.monotonic(), time.time_ns())
        if evaluation is not None:
            self._log_judgement(evaluation)
            if evaluation.message is not None:
                self._tell(evaluation)

    def _absorb(self, reply: PushReply) -> None:
        """What the reply brought: outcome, threshold, verdicts, a wish for patience."""
        now_s = time.monotonic()
        self.counters.pushes[reply.outcome.value] += 1
        self.counters.headers[reply.delivery.value] += 1
        self.counters.rejected_points += reply.rejected_points
        self.monitor.push_finished(reply.outcome, reply.retry_after_s)
        if reply.outcome is not PushOutcome.TRANSPORT:
            self.monitor.threshold_received(reply.delivery, reply.threshold, now_s)
        self._not_before_s = now_s + reply.retry_after_s if reply.retry_after_s else 0.0
        if reply.outcome is not PushOutcome.OK:
            self._warn(
                f"push_{reply.outcome.value}",
                now_s,
                detail=reply.detail[:MAX_DETAIL],
                retry_after_s=reply.retry_after_s,
                **({"next": NEXT_STEP[reply.outcome]} if reply.outcome in NEXT_STEP else {}),
            )
        elif reply.rejected_points:
            self._warn(
                "push_partly_rejected",
                now_s,
                detail=reply.detail[:MAX_DETAIL],
                points=reply.rejected_points,
            )
        if reply.delivery.value == "rejected":
            self._warn("threshold_rejected", now_s)
        self.hear(reply.verdicts)

    def hear(self, verdicts: Sequence[Verdict]) -> None:
        """What Fleet decided about this node and its ranks. Every change goes to the socket, news also to the log."""
        for verdict in verdicts:
            before = self._heard.pop(verdict.episode, None)
            self._heard[verdict.episode] = verdict
            if before != verdict:
                self._say(verdict_line(verdict, self.monitor.identity.cluster, time.time_ns()))
                if before is None or (before.state, before.cause) != (verdict.state, verdict.cause):
                    self._log_verdict(verdict)
        while len(self._heard) > MAX_VERDICTS:
            del self._heard[next(iter(self._heard))]

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Open ones, by episode."""
        return {
            episode: one
            for episode, one in self._heard.items()
            if one.state is not VerdictState.RESOLVED
        }

    def _log_verdict(self, verdict: Verdict) -> None:
        self.counters.verdicts[verdict.state.value] += 1
        level = logging.WARNING if verdict.state is VerdictState.STRAGGLER else logging.INFO
        log.log(level, "verdict", extra=verdict_facts(verdict))

    def _tell(self, evaluation: Evaluation) -> None:
        """The same message on all channels: socket and log now, Fleet with the push, tracing on its own."""
        assert evaluation.message is not None
        event = evaluation.message.event
        facts = {
            "score": event.score,
            "threshold": event.threshold,
            "mode": event.mode.value,
            "episode": event.event_id,
        }
        if evaluation.raised:
            self.counters.episodes += 1
            log.info("straggler_raised", extra=facts | {"dominant": event.dominant_signal})
        elif evaluation.closing is not None:
            log.info("straggler_resolved", extra=facts | {"reason": evaluation.closing.value})
        self._emit(evaluation.message)

    def _tell_straggles(self, found: Sequence[Straggle]) -> None:
        identity = self.monitor.identity
        for line in found:
            self.counters.straggles += 1
            self._say(
                msgspec.structs.replace(line, rank=identity.rank, world_size=identity.world_size)
            )

    def _emit(self, message: StragglerMessage) -> None:
        self._say(message.line)
        self._keep_event(message.event)
        if self._on_event is not None:
            task = asyncio.ensure_future(self._on_event(message.event))
            self._side_tasks.add(task)
            task.add_done_callback(self._side_tasks.discard)

    def _keep_event(self, event: StragglerEvent) -> None:
        self._events[event.event_id] = event
        while len(self._events) > MAX_OPEN_EVENTS:
            del self._events[next(iter(self._events))]

    def _say(self, line: SocketLine) -> None:
        if self._socket is not None:
            self._socket.send(encode_line(line))

    async def _keep_polling(self, stop: asyncio.Event) -> None:
        poll = self._poll
        if poll is None:
            return
        wait_s: float | None = None
        interval_s = self._settings.poll_interval_s
        while not await _stopped_within(
            stop,
            jittered(interval_s, POLL_JITTER, self._chance)
            if wait_s is None
            else max(wait_s, MIN_POLL_WAIT_S),
        ):
            wait_s = None
            fresh_s = self.monitor.policy.modes.fresh_max_age_s(self.monitor.backoff_s)
            if not should_poll(self.monitor.delivery, time.monotonic(), fresh_s):
                self.counters.polls["suspended"] += 1
                continue
            reply = await poll.ask()
            self.counters.polls[reply.outcome.value] += 1
            wait_s = reply.wait_s
            if reply.outcome.value == "ok":
                self.monitor.threshold_polled(reply.threshold, time.monotonic())
            else:
                self._warn(f"poll_{reply.outcome.value}", time.monotonic(), detail=reply.detail)
        await poll.close()

    async def _keep_alive(self, stop: asyncio.Event) -> None:
        if self._socket is None:
            return
        while not await _stopped_within(stop, HEARTBEAT_S):
            self._say(self.monitor.heartbeat(time.time_ns()))

    async def _keep_file(self, stop: asyncio.Event) -> None:
        """Save now and then, so that kill -9 costs at most a minute of baseline."""
        while not await _stopped_within(stop, CHECKPOINT_S):
            await self._save()

    async def _save(self) -> None:
        path, baseline, policy = (
            self._settings.persist_path,
            self.monitor.baseline,
            self.monitor.policy.baseline,
        )
        if path is None or not is_warm(baseline, policy) or baseline.sample_count == 0:
            return
        try:
            await asyncio.to_thread(save_baseline, path, baseline, policy, time.time_ns())
        except OSError as error:
            self._warn(
                "baseline_not_saved", time.monotonic(), path=str(path), detail=error.strerror
            )

    async def _shut_down(self) -> None:
        if self._push_task is not None:
            await self._push_task
        message = self.monitor.shut_down(time.time_ns())
        if message is not None:
            self._emit(message)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                for event in self._events.values():
                    await self._post(event_request(self.monitor.identity, event), retry=False)
        if self._side_tasks:
            await asyncio.wait(self._side_tasks, timeout=FAREWELL_S)
        await self._save()
        await self._client.close()
        self._source.close()

    def _log_look(self, evaluation: Evaluation, look: Observation, now_s: float) -> None:
        if look.problem:
            self._warn("look_failed", now_s, problem=look.problem)
        for signal, kind in evaluation.score.anomalies if evaluation.score else ():
            self._warn(f"signal_{kind}_{signal}", now_s)
        self._log_judgement(evaluation)

    def _log_judgement(self, evaluation: Evaluation) -> None:
        mode = evaluation.decision.mode
        if mode is not self._mode:
            why = {"why": WITHOUT_PEERS} if mode is DetectionMode.LOCAL_BASELINE else {}
            log.info(
                "mode_changed",
                extra={"mode": mode.value, "was": self._mode and self._mode.value, **why},
            )
            self._mode = mode
        if evaluation.is_host_load_only and evaluation.score is not None:
            facts = {
                "score": evaluation.score.value,
                "threshold": evaluation.decision.threshold,
                "low": evaluation.dominant,
            }
            self._warn("not_named", time.monotonic(), **facts, why=WITHOUT_PEERS)

    def _warn(self, name: str, now_s: float, **facts: object) -> None:
        if now_s - self._warned_s.get(name, -WARN_EVERY_S) >= WARN_EVERY_S:
            self._warned_s[name] = now_s
            log.warning(name, extra=facts)


def jittered(interval_s: float, share: float, chance: random.Random) -> float:
    """The interval, longer or shorter by up to a share of it, so that agents started together drift apart."""
    return interval_s * chance.uniform(1 - share, 1 + share)


async def _stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep, but not longer than until `stop`."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), max(seconds, 0.0))
    return stop.is_set()
