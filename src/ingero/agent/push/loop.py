"""The push loop: read the signals, evaluate them, report and push.

Ticks stay on time whatever Fleet does; at most one push is in flight.
"""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ingero.agent.push.counters import LoopCounters
from ingero.agent.push.reporter import Reporter
from ingero.agent.push.signals import SignalSource
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.encode import (
    HealthReport,
    StragglerEvent,
    encode_health,
    encode_straggler_event,
)
from ingero.contract.threshold import Delivery
from ingero.core.health.baseline import is_warm
from ingero.core.health.messages import StragglerMessage
from ingero.core.health.modes import PushOutcome, should_poll
from ingero.core.health.monitor import Evaluation, NodeMonitor
from ingero.core.health.observation import Observation
from ingero.core.health.throttle import ThrottleEdges
from ingero.stopping import is_set_within
from ingero.storage.baseline_file import save_baseline
from ingero.transport.otlp.client import PushClient, PushReply
from ingero.transport.threshold_poll import PollOutcome, ThresholdPoll
from ingero.transport.uds import LineServer

log = logging.getLogger(__name__)

TICK_JITTER = 0.10
POLL_JITTER = 0.20
MIN_POLL_WAIT_S = 1.0  # lower limit, so that `Retry-After: 0` does not become a busy loop
HEARTBEAT_S = 10.0
CHECKPOINT_S = 60.0
SHUTDOWN_TIMEOUT_S = 3.0  # for sending the last events of a node that stops
MAX_OPEN_EVENTS = 8
MAX_DETAIL = 200  # characters of an error text from outside that reach the log
NEXT_STEP = {
    PushOutcome.TRANSPORT: "check that Fleet runs there: `ingero check --fleet URL`",
    PushOutcome.AUTH: "give the CA of Fleet (--fleet-tls-ca), the client certificate or "
    "the token that Fleet requires; a node that was revoked runs `ingero leave` and joins again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Intervals of the loop, and the file that keeps the baseline across restarts."""

    push_interval_s: float
    poll_interval_s: float = 10.0
    persist_path: Path | None = None
    max_ticks: int | None = None  # None: run until stopped
    version: str = ""  # of the agent


class PushLoop:
    """Owner of the monitor of one node and of its connections."""

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
        self.reporter = Reporter(monitor, self.counters, socket)
        self.throttle = ThrottleEdges()
        self.last_push: MetricsRequest | None = None
        self.problem = ""  # why pushes do not arrive
        self.lost: Callable[[], int] = lambda: 0  # records that feeds could not read in time
        self._source = source
        self._client = client
        self._settings = settings
        self._chance = chance
        self._poll = poll
        self._on_event = on_event
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._push_task: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[Observation | None] | None = None
        self._not_before_s = 0.0
        self._events: dict[str, StragglerEvent] = {}  # by episode, the latest

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stopped or until the source ends, then shut down."""
        helpers = [
            asyncio.create_task(helper(stop))
            for helper in (self._poll_threshold, self._send_heartbeats, self._save_regularly)
        ]
        try:
            await self._tick_until(stop)
        finally:
            stop.set()
            await asyncio.gather(*helpers)
            await self._shut_down()

    async def tick(self) -> bool:
        """Run one round; return False when the source has ended."""
        seen = await self._read()
        if seen is None:
            return False
        self.counters.ticks += 1
        self.counters.evicted_cgroups = max(self.counters.evicted_cgroups, seen.evicted_cgroups)
        self.throttle.update_all(seen.throttle)
        self.reporter.report_straggles(seen.straggles)
        self._classify()  # still open if the reply to the last push has not arrived yet
        now_s = time.monotonic()
        evaluation = self.monitor.observe(seen, now_s, time.time_ns())
        self.reporter.log_observation(evaluation, seen, now_s)
        if evaluation.message is not None:
            self._report(evaluation, evaluation.message)
        if evaluation.report is None or not self._start_push(evaluation.report, now_s):
            self._classify()
        return True

    async def _tick_until(self, stop: asyncio.Event) -> None:
        interval_s = self._settings.push_interval_s
        due_s = time.monotonic() + self._chance.uniform(0.0, min(interval_s, 1.0))
        limit = self._settings.max_ticks
        while not await is_set_within(stop, due_s - time.monotonic()):
            if not await self.tick() or (limit is not None and self.counters.ticks >= limit):
                return
            due_s += jittered(interval_s, TICK_JITTER, self._chance)
            if due_s < time.monotonic():
                self.counters.late_ticks += 1
                due_s = time.monotonic()

    async def _read(self) -> Observation | None:
        """Read the signals in a thread, so that a slow disk or a hanging tool cannot stop the loop.

        There is never more than one read at a time.
        """
        now_ns = time.time_ns()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(self._source.read, now_ns))
        await asyncio.wait({self._reading}, timeout=max(self._settings.push_interval_s, 1.0))
        problem, seen = "reading the signals takes too long", None
        if self._reading.done():
            try:
                seen, problem = self._reading.result(), ""
            except Exception as error:  # noqa: BLE001 - costs one observation, not the agent
                problem = f"{type(error).__name__}: {error}"
            self._reading = None
        if problem:
            seen = Observation(at_s=now_ns / 1e9, launches=None, problem=problem)
        if seen is not None and seen.launches is None:
            self.counters.failed_reads += 1
        return seen

    def _start_push(self, report: HealthReport, now_s: float) -> bool:
        """Start a push unless Fleet asked for a pause or the last push still runs.

        Return whether a push was started.
        """
        if now_s < self._not_before_s:
            self.counters.skipped_pushes["backoff"] += 1
            return False
        if self._push_task is not None and not self._push_task.done():
            self.counters.skipped_pushes["busy"] += 1
            return False
        self._push_task = asyncio.create_task(self._push(report))
        return True

    def _ready_s(self) -> int | None:
        """Return how long calibration will take if every sample has work; None when it is over."""
        left = self.monitor.samples_left
        return None if left is None else math.ceil(left * self._settings.push_interval_s)

    async def _push(self, report: HealthReport) -> None:
        about = replace(
            report,
            version=self._settings.version,
            lost_records=self.lost(),
            ready_s=self._ready_s(),
        )
        self.last_push = encode_health(self.monitor.identity, about)
        reply = await self._post(self.last_push)
        self._apply_reply(reply)
        self._classify()
        if reply.outcome is not PushOutcome.OK:
            return
        for episode, event in list(self._events.items()):
            outcome = (
                await self._post(encode_straggler_event(self.monitor.identity, event), retry=False)
            ).outcome
            self.counters.events[outcome.value] += 1
            # one attempt per event; a newer event of the episode waits for the next push
            if self._events.get(episode) is event:
                del self._events[episode]

    async def _post(self, request: MetricsRequest, *, retry: bool = True) -> PushReply:
        try:
            return await self._client.push(request, retry=retry)
        except Exception as error:  # noqa: BLE001 - a client that fails costs one push, not the agent
            return PushReply(
                outcome=PushOutcome.TRANSPORT, detail=f"{type(error).__name__}: {error}"
            )

    def _classify(self) -> None:
        evaluation = self.monitor.classify(time.monotonic(), time.time_ns())
        if evaluation is not None:
            self.reporter.log_evaluation(evaluation)
            if evaluation.message is not None:
                self._report(evaluation, evaluation.message)

    def _apply_reply(self, reply: PushReply) -> None:
        """Apply what a reply carries: outcome, threshold, verdicts and Retry-After."""
        now_s = time.monotonic()
        self.counters.pushes[reply.outcome.value] += 1
        self.counters.headers[reply.delivery.value] += 1
        self.counters.rejected_points += reply.rejected_points
        self.monitor.push_finished(reply.outcome, reply.retry_after_s)
        if reply.outcome is not PushOutcome.TRANSPORT:
            self.monitor.threshold_received(reply.delivery, reply.threshold, now_s)
        self._not_before_s = now_s + reply.retry_after_s if reply.retry_after_s else 0.0
        self.problem = ""
        if reply.outcome is not PushOutcome.OK:
            detail, step = reply.detail[:MAX_DETAIL], NEXT_STEP.get(reply.outcome)
            self.problem = "; ".join(filter(None, (f"pushes do not arrive: {detail}", step)))
            self.reporter.warn(
                f"push_{reply.outcome.value}",
                now_s,
                detail=detail,
                retry_after_s=reply.retry_after_s,
                **({"next": step} if step else {}),
            )
        elif reply.rejected_points:
            self.reporter.warn(
                "push_partly_rejected",
                now_s,
                detail=reply.detail[:MAX_DETAIL],
                points=reply.rejected_points,
            )
        if reply.delivery is Delivery.REJECTED:
            self.reporter.warn("threshold_rejected", now_s)
        self.reporter.receive(reply.verdicts)

    def _report(self, evaluation: Evaluation, message: StragglerMessage) -> None:
        self.reporter.log_episode(evaluation, message)
        self._emit(message)

    def _emit(self, message: StragglerMessage) -> None:
        """Send a message to the socket now and to Fleet with the next push, and export its span."""
        self.reporter.send_line(message.line)
        self._keep_event(message.event)
        if self._on_event is not None:
            task = asyncio.ensure_future(self._on_event(message.event))
            self._side_tasks.add(task)
            task.add_done_callback(self._side_tasks.discard)

    def _keep_event(self, event: StragglerEvent) -> None:
        self._events[event.event_id] = event
        while len(self._events) > MAX_OPEN_EVENTS:
            del self._events[next(iter(self._events))]

    async def _poll_threshold(self, stop: asyncio.Event) -> None:
        poll = self._poll
        if poll is None:
            return
        wait_s: float | None = None
        interval_s = self._settings.poll_interval_s
        while not await is_set_within(
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
            if reply.outcome is PollOutcome.OK:
                self.monitor.threshold_polled(reply.threshold, time.monotonic())
            else:
                self.reporter.warn(
                    f"poll_{reply.outcome.value}", time.monotonic(), detail=reply.detail
                )
        await poll.close()

    async def _send_heartbeats(self, stop: asyncio.Event) -> None:
        if not self.reporter.has_socket:
            return
        while not await is_set_within(stop, HEARTBEAT_S):
            self.reporter.send_line(self.monitor.heartbeat(time.time_ns()))

    async def _save_regularly(self, stop: asyncio.Event) -> None:
        """Save the baseline every minute, so that kill -9 loses at most that much."""
        while not await is_set_within(stop, CHECKPOINT_S):
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
            self.reporter.warn(
                "baseline_not_saved", time.monotonic(), path=str(path), detail=error.strerror
            )

    async def _shut_down(self) -> None:
        if self._push_task is not None:
            await self._push_task
        message = self.monitor.shut_down(time.time_ns())
        if message is not None:
            self._emit(message)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                for event in self._events.values():
                    await self._post(
                        encode_straggler_event(self.monitor.identity, event), retry=False
                    )
        if self._side_tasks:
            await asyncio.wait(self._side_tasks, timeout=SHUTDOWN_TIMEOUT_S)
        await self._save()
        await self._client.close()
        self._source.close()


def jittered(interval_s: float, share: float, chance: random.Random) -> float:
    """Return the interval, changed by up to `share` at random.

    Agents that were started together drift apart.
    """
    return interval_s * chance.uniform(1 - share, 1 + share)
