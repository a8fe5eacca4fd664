"""Own time and collectives of the ranks on this node, measured live and pushed every second.

Every rank is a resource of its own. For each step only the rank's own time is sent, or the mean of
2ⁿ steps when they are fast. Of its collectives, whole steps are sent that all ranks choose alike.
What Fleet cannot accept waits in a bounded queue; the oldest is dropped first and counted. The
connection is separate, so that a score is never delayed.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ingero.agent.push.claims import RankClaims
from ingero.agent.push.collective_feed import (
    CollectiveFeed,
    RankBatch,
    RecentBatches,
    Rows,
    with_exchanges,
)
from ingero.agent.push.counters import LiveCounters
from ingero.agent.push.rank_report import RankPlace, own_times_of
from ingero.contract.collective import COLLECTIVE_OPS, CollectiveRecord, CollectiveSource
from ingero.contract.measurements.ranks import RankReport, encode_rank
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.decode import problem_with_id
from ingero.contract.types import Identity
from ingero.contract.verdict import Verdict
from ingero.core.collectives.columns import Collectives
from ingero.core.collectives.live_steps import FinishedSteps, LiveSteps
from ingero.core.collectives.pairs.live_exchanges import EXCHANGES, ExchangeJoiner
from ingero.core.collectives.step_points import (
    JOB_POINTS_PER_S,
    POINTS_PER_S,
    StepGroups,
    share_of_rank,
)
from ingero.core.collectives.step_sample import StepSample, Weights
from ingero.core.health.modes import PushOutcome
from ingero.stopping import is_set_within
from ingero.transport.otlp.client import MetricsClient, PushReply

log = logging.getLogger(__name__)

JOB_COLLECTIVES_PER_S: Final = 8_192.0  # of all ranks of a job together
POINTS_PER_REQUEST: Final = 2_000
MAX_PROBLEMS: Final = 100
FORGET_S: Final = 300.0
PLACE_AGAIN_S: Final = 60.0  # a process may be seen before it uses its GPU
MAX_PAUSE_S: Final = 300.0
MAX_BACKOFF_S: Final = 8.0  # after failures in a row; Fleet may still be busy with what it was sent
PLACES: Final = 1 << 12  # of a step, in the numbers of exchanges


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePolicy:
    """How often ranks are measured, and how much of them is kept and sent."""

    interval_s: float = 1.0
    collectives_per_s: float = 32.0  # of one rank at most
    max_queued_points: int = 20_000
    max_ranks: int = 1024


@dataclass(slots=True)
class _Rank:
    sample: StepSample
    exchanges: ExchangeJoiner = field(default_factory=ExchangeJoiner)
    stream: LiveSteps = field(default_factory=LiveSteps)
    groups: StepGroups = field(default_factory=StepGroups)
    batches: RecentBatches = field(default_factory=RecentBatches)
    weights: Weights = field(default_factory=Weights)
    widest: tuple[int, int] = (0, 0)  # size of the largest communicator, and the rank in it
    seen_s: float = 0.0
    who: tuple[str | None, int | None] = (None, None)  # job and rank
    place: RankPlace = field(default_factory=RankPlace)
    place_due_s: float = -math.inf  # when it is looked up again
    is_timed: bool = False  # with the clock of the GPU


class LiveCollectives:
    """One round per second: read, measure, send.

    `on_verdicts` is called with the verdicts in replies.
    """

    def __init__(
        self,
        feeds: Sequence[CollectiveFeed],
        client: MetricsClient,
        identity: Identity,
        on_verdicts: Callable[[Sequence[Verdict]], None],
        gpu_model: Callable[[], str | None] = lambda: None,
        place_of: Callable[[int, int | None], RankPlace] = lambda pid, local_rank: RankPlace(),
        policy: LivePolicy = LivePolicy(),  # noqa: B008 - frozen
    ) -> None:
        self.policy = policy
        self.counters = LiveCounters()
        self.feeds = feeds
        self.ranks: dict[Hashable, _Rank] = {}
        self._client, self._identity, self._on_verdicts = client, identity, on_verdicts
        self._gpu_model, self._place_of = gpu_model, place_of
        self._queue: deque[RankReport] = deque()
        self._not_before_s = 0.0
        self._failures = 0  # in a row
        self._lost = [0] * len(feeds)
        self._logged: set[str] = set()
        self._claims = RankClaims()

    @property
    def queued_points(self) -> int:
        """Points that wait to be sent to Fleet."""
        return sum(report.points for report in self._queue)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stopped; reading in a thread keeps a slow disk from blocking the loop."""
        self._identity = replace(self._identity, gpu_model=await asyncio.to_thread(self._gpu_model))
        due_s = time.monotonic()
        sending: asyncio.Task[None] | None = None
        try:
            while not stop.is_set():
                await self._safely(self._measure_round)
                # one request at a time; meanwhile rings are read on, or their writers overtake
                if sending is None or sending.done():
                    sending = asyncio.create_task(self._safely(self._send_if_due))
                due_s = max(due_s + self.policy.interval_s, time.monotonic())
                await is_set_within(stop, due_s - time.monotonic())
            if sending is not None:
                await sending
        finally:
            for feed in self.feeds:
                feed.close()

    async def _safely(self, part: Callable[[], Awaitable[None]]) -> None:
        """Run a part of a round; an unexpected record or reply does not stop all measuring."""
        try:
            await part()
        except Exception:
            self.counters.failed_rounds += 1
            log.exception("collectives_failed")

    async def _measure_round(self) -> None:
        self.queue(await asyncio.to_thread(self.measure, time.monotonic()))

    async def _send_if_due(self) -> None:
        if time.monotonic() >= self._not_before_s:
            await self.send()

    def measure(self, now_s: float) -> list[RankReport]:
        """Read everything new and return reports."""
        reports = []
        for index, feed in enumerate(self.feeds):
            batches = feed.poll()
            self._log_once(feed.problem)
            if feed.lost > self._lost[index]:
                self._lost[index] = feed.lost
                for rank in self.ranks.values():
                    rank.stream.skip()
            for batch in batches:
                self._log_once(self._claims.problem_with(batch))
                if (
                    not self._is_measured_by_plugin(batch)
                    and (report := self._report_alone(batch, now_s)) is not None
                ):
                    reports.append(report)
        self.ranks = {
            key: rank for key, rank in self.ranks.items() if now_s - rank.seen_s <= FORGET_S
        }
        return reports

    def _log_once(self, problem: str) -> None:
        """Log each problem once, because rounds come every second."""
        if problem and problem not in self._logged and len(self._logged) < MAX_PROBLEMS:
            self._logged.add(problem)
            log.warning("collectives_missing", extra={"problem": problem})

    def queue(self, reports: Sequence[RankReport]) -> None:
        """Queue reports to be sent; the oldest are dropped when there are too many."""
        self._queue.extend(reports)
        waiting = self.queued_points
        while waiting > self.policy.max_queued_points:
            points = self._queue.popleft().points
            self.counters.dropped += points
            waiting -= points

    async def send(self) -> None:
        """Send what is queued, in requests of bounded size, until Fleet does not accept one."""
        while self._queue:
            batch = self._next_batch()
            reply = await self._client.push(
                MetricsRequest(tuple(encode_rank(report) for report in batch))
            )
            self.counters.pushes[reply.outcome.value] += 1
            if reply.outcome is not PushOutcome.OK:
                if reply.outcome is PushOutcome.REFUSED:  # the same request would be refused again
                    self.counters.dropped += sum(report.points for report in batch)
                else:
                    self._queue.extendleft(reversed(batch))
                self._pause(reply)
                return
            self._failures = 0
            self.counters.rejected += reply.rejected_points
            self.counters.own_times += sum(len(report.own_times) for report in batch)
            self.counters.collectives += sum(len(report.collectives) for report in batch)
            self._on_verdicts(reply.verdicts)

    def _pause(self, reply: PushReply) -> None:
        """Wait as long as Fleet asks, else twice as long after every failure.

        A Fleet that is too busy to answer would get busier with every request that is repeated.
        """
        backoff_s = min(self.policy.interval_s * 2.0**self._failures, MAX_BACKOFF_S)
        self._failures += 1
        self._not_before_s = time.monotonic() + min(reply.retry_after_s or backoff_s, MAX_PAUSE_S)

    def _count(self, batch: RankBatch) -> None:
        """Count a batch before anything is left out or dropped."""
        rows = batch.collectives
        for code, name in enumerate(rows.ops):
            own = rows.op == code
            label = name if name in COLLECTIVE_OPS else "other"
            self.counters.operations[label] += int(own.sum())
            self.counters.bytes[label] += int(np.maximum(rows.size_bytes[own], 0).sum())
        self.counters.barriers.update(batch.barriers)

    def _next_batch(self) -> list[RankReport]:
        batch = [self._queue.popleft()]
        points = batch[0].points
        while self._queue and points + self._queue[0].points <= POINTS_PER_REQUEST:
            points += self._queue[0].points
            batch.append(self._queue.popleft())
        return batch

    def _is_measured_by_plugin(self, batch: RankBatch) -> bool:
        """Return whether the plugin already measures the rank of this batch.

        Steps that a job names count only where no ring measures the same rank.
        """
        return batch.steps is not None and any(
            rank.who == (batch.job, batch.rank) and rank.is_timed for rank in self.ranks.values()
        )

    def _report_alone(self, batch: RankBatch, now_s: float) -> RankReport | None:
        """Report one rank; if that fails, this rank starts over and the others go on."""
        try:
            return self._report(batch, now_s)
        except Exception:
            self.ranks.pop(batch.key, None)
            self.counters.failed_rounds += 1
            log.exception("rank_failed", extra={"rank": batch.rank})
            return None

    def _report(self, batch: RankBatch, now_s: float) -> RankReport | None:
        rank = self.ranks.get(batch.key)
        if rank is None:
            if len(self.ranks) >= self.policy.max_ranks:
                self.counters.refused_ranks += 1
                return None
            rank = self.ranks[batch.key] = _Rank(StepSample(self.policy.collectives_per_s))
        rank.seen_s = now_s
        rank.who, rank.is_timed = (batch.job, batch.rank), batch.source is CollectiveSource.PLUGIN
        self._follow_place(rank, batch, now_s)
        rows, source = batch.collectives, batch.source
        self.counters.records[str(source)] += len(rows)
        self._count(batch)
        rank.widest = max(rank.widest, _widest(rows))
        world_size = batch.world_size or rank.widest[0]
        rank.groups.points_per_s = share_of_rank(POINTS_PER_S, JOB_POINTS_PER_S, world_size)
        rank.sample.per_s = share_of_rank(
            self.policy.collectives_per_s, JOB_COLLECTIVES_PER_S, world_size
        )
        incomplete = rank.groups.incomplete
        if batch.steps is None:
            batch = _join_exchanges(rank, batch)
            finished = rank.stream.take(batch.collectives)
            points, records = rank.groups.take(finished.times), _sample(rank, batch, finished)
        else:
            points, records = rank.groups.take(batch.steps), []
        if rank.stream.search.pattern is None:
            records = _spread(rank, batch, rank.sample.per_s * self.policy.interval_s)
        self.counters.incomplete += rank.groups.incomplete - incomplete
        self.counters.thinned += max(len(rows) - len(records), 0)
        if not len(points) and not records:
            return None
        identity = replace(
            self._identity,
            job=batch.job if batch.job and not problem_with_id(batch.job) else self._identity.job,
            rank=batch.rank if batch.rank is not None else rank.widest[1],
            local_rank=batch.local_rank,
            world_size=world_size,
            gpu_uuid=rank.place.gpu_uuid or None,
            pod=rank.place.pod or None,
        )
        return RankReport(identity, own_times_of(points, source), tuple(records))

    def _follow_place(self, rank: _Rank, batch: RankBatch, now_s: float) -> None:
        """Look up where a rank runs, until its GPU is known."""
        if batch.pid and not rank.place.gpu_uuid and now_s >= rank.place_due_s:
            rank.place_due_s = now_s + PLACE_AGAIN_S
            rank.place = self._place_of(batch.pid, batch.local_rank)


def _sample(rank: _Rank, batch: RankBatch, finished: FinishedSteps) -> list[CollectiveRecord]:
    """Return the collectives of those finished steps that are sent whole."""
    rank.batches.add(batch, _kinds(rank, batch))
    kinds = rank.batches.kinds(finished.row)
    chosen = rank.sample.choose(finished.step, finished.place, kinds, finished.times.span_s)
    records = rank.batches.pick(finished.row[chosen])
    after_ns = rank.batches.after_anchors(finished)[chosen].tolist()
    rank.batches.drop_before(rank.stream.oldest_row)
    return [
        _in_step(replace(record, step=step, place=place, weight=weight), after)
        for record, step, place, weight, after in zip(
            records,
            finished.step[chosen].tolist(),
            finished.place[chosen].tolist(),
            rank.weights.of(kinds[chosen]).tolist(),
            after_ns,
            strict=True,
        )
    ]


def _in_step(record: CollectiveRecord, after_ns: int) -> CollectiveRecord:
    """Return the record of a step; an exchange gets a number that is the same on all ranks."""
    if record.op not in EXCHANGES or after_ns < 0:
        return record
    number = (record.step or 0) * PLACES + (record.place or 0) % PLACES
    return replace(record, seq=number if record.seq is None else record.seq, after_ns=after_ns)


def _join_exchanges(rank: _Rank, batch: RankBatch) -> RankBatch:
    """Return the batch with the sends and receives of each exchange as one collective.

    Where a ring was found, steps are searched anew.
    """
    turns = rank.exchanges.turns
    joined, row = rank.exchanges.take(batch.collectives)
    if rank.exchanges.turns != turns:
        rank.stream, rank.batches = LiveSteps(), RecentBatches()
    return batch if joined is batch.collectives else with_exchanges(batch, joined, row)


def _kinds(rank: _Rank, batch: RankBatch) -> Rows:
    """Return the kinds of all collectives of a batch, which are counted here."""
    rows = batch.collectives
    kinds = rank.weights.codes(rows.ops, rows.op.astype(np.int64), rows.size_bytes)
    rank.weights.seen(kinds)
    return kinds


def _spread(rank: _Rank, batch: RankBatch, limit: float) -> list[CollectiveRecord]:
    """Return single collectives, about `limit` of them, while no steps are known."""
    rows = choose_rows(batch.collectives, limit)
    weights = rank.weights.of(rank.batches.newest_kinds[rows]).tolist()
    return [
        replace(record, weight=weight)
        for record, weight in zip(batch.pick(rows), weights, strict=True)
    ]


def choose_rows(rows: Collectives, limit: float) -> Rows:
    """Choose at most about `limit` rows.

    Every 2ⁿ-th sequence number is taken, so that all ranks choose the same collectives.
    """
    if len(rows) <= limit:
        return np.arange(len(rows))
    stride = 2 ** math.ceil(math.log2(len(rows) / limit))
    return np.flatnonzero((rows.seq >= 0) & (rows.seq % stride == 0))


def _widest(rows: Collectives) -> tuple[int, int]:
    if not len(rows):
        return (0, 0)
    at = int(rows.nranks.argmax())
    return int(rows.nranks[at]), int(rows.rank[at])
