"""The verdicts of one cluster: its engine, and what Fleet keeps between two ticks to feed it."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import MAX_RANKS, CollectiveRecord
from ingero.contract.measurements.own_time import OwnTime
from ingero.contract.measurements.ranks import Measured
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.collectives.columns import Collectives, Recorder, from_records
from ingero.core.collectives.inherited import StepWaits
from ingero.core.collectives.lag import measure_lag
from ingero.core.collectives.live_arrivals import (
    NO_ARRIVALS,
    Arrivals,
    ClosedCollectives,
    StepAdvances,
    has_arrival,
    join_arrivals,
    measure_arrivals,
    step_keys,
)
from ingero.core.collectives.live_matching import CollectiveMatcher, Matched
from ingero.core.collectives.live_roles import LiveRoles
from ingero.core.collectives.live_steps import LiveSteps
from ingero.core.collectives.own_time_queue import OwnTimeQueue
from ingero.core.collectives.pairs.hidden_delays import HiddenDelays
from ingero.core.collectives.pairs.live_exchanges import EXCHANGES
from ingero.core.cost import barrier_idle_s
from ingero.core.places.charged import ChargedPlaces
from ingero.core.places.links import LINK_NEXT_STEP, LinkPlace
from ingero.core.places.live_transfers import LiveTransfers
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.events.stepless import SteplessJobs
from ingero.core.verdict.members import Member
from ingero.core.verdict.own_times import make_batch

RESOLVED_FOR_S = 60.0  # resolved verdicts are served this long: an agent may push once a minute
MAX_PENDING = 200_000  # collectives held between two ticks, per cluster
ALL_RANKS_S = 10.0  # how long roles wait for the next rank of which nothing was received
LINK_EXPLAINS = 0.3  # of what a job loses: what its slow transfers must add up to
RankKey = tuple[str, str | None, int | None]  # node, job, rank
_SLOW = frozenset(
    {VerdictState.SUSPECT, VerdictState.STRAGGLER, VerdictState.LATE, VerdictState.NOT_SURE}
)


@dataclass(slots=True)
class JobRoles:
    """The roles of the ranks of one job, as found from their communicators.

    `since_s` is when a member sent collectives for the first time.
    """

    since_s: float
    finder: LiveRoles = field(default_factory=LiveRoles)
    world_size: int = 0
    ranks: dict[int, int] = field(default_factory=dict)  # of members that sent collectives
    by_rank: dict[RankKey, str] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterVerdicts:
    """One cluster. Dictionaries keyed by `int` use the row index the engine gave to a member."""

    engine: VerdictEngine
    last_push_s: float = 0.0
    matcher: CollectiveMatcher = field(default_factory=CollectiveMatcher)
    members: dict[RankKey, int] = field(default_factory=dict)
    keys: dict[int, RankKey] = field(default_factory=dict)  # the inverse of `members`
    sources: dict[RankKey, str] = field(default_factory=dict)
    live_steps: dict[int, LiveSteps] = field(default_factory=dict)
    # Members that send own times; their collectives are a sample and give no own times.
    self_timed: set[int] = field(default_factory=set)
    records: defaultdict[int, list[CollectiveRecord]] = field(
        default_factory=lambda: defaultdict(list)
    )
    pending: int = 0  # records in `records`
    jobs: dict[str | None, JobRoles] = field(default_factory=dict)
    own_times: OwnTimeQueue = field(default_factory=OwnTimeQueue)
    advances: StepAdvances = field(default_factory=StepAdvances)
    closed: ClosedCollectives = field(default_factory=ClosedCollectives)
    waits: StepWaits = field(default_factory=StepWaits)
    hidden: HiddenDelays = field(default_factory=HiddenDelays)
    hidden_idle: HiddenDelays = field(default_factory=HiddenDelays)
    stepless: SteplessJobs = field(default_factory=SteplessJobs)
    places: ChargedPlaces = field(default_factory=ChargedPlaces)
    transfers: LiveTransfers = field(default_factory=LiveTransfers)
    awaited_at: dict[str, str] = field(default_factory=dict)  # collectives of episodes
    links: dict[str, LinkPlace] = field(default_factory=dict)  # slow ones, of episodes
    late: Arrivals = NO_ARRIVALS  # of this tick, at collectives that were measured before
    lateness_s: dict[int, float] = field(default_factory=dict)
    peer_lag_ms: dict[int, float] = field(default_factory=dict)
    measured_s: dict[int, float] = field(default_factory=dict)  # when lateness and lag were
    idle_gpu_s: float = 0.0  # time that ranks waited at collectives for the last one, in total
    # Members, steps and own times in seconds that the last tick took, for the page.
    observed: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]] | None = None
    resolved: dict[str, tuple[Verdict, float]] = field(default_factory=dict)  # by episode

    def register(self, member: Member, now_s: float) -> int | None:
        """Return the row index of a member, or None when the engine has too many members."""
        key = (member.node, member.job, member.rank)
        index = self.engine.register(member, now_s)
        self._release(self.engine.take_freed())
        if index is None:
            self.sources.pop(key, None)
        elif self.members.get(key) != index:
            self._release([index])  # the row may have belonged to another member before
            self.keys[index], self.members[key] = key, index
        return index

    def source_of(self, key: RankKey, measured: Measured) -> str:
        """Return the source of a member's own times, which its own times override."""
        if measured.own_times or key not in self.sources:
            self.sources[key] = measured.source
        return self.sources[key]

    def role_of(self, key: RankKey) -> str:
        """Return the role of a rank by its communicators; empty where all ranks have one role."""
        job = self.jobs.get(key[1])
        return "" if job is None else job.by_rank.get(key, "")

    def note_world(self, job: str | None, world_size: int) -> None:
        """Note how many ranks a job says it has."""
        found = self.jobs.get(job)
        if found is not None:
            found.world_size = max(found.world_size, min(world_size, MAX_RANKS))

    def add_own_times(self, member: int, own: tuple[OwnTime, ...], now_s: float) -> None:
        """Keep own times that the member measured itself for the next tick."""
        self.self_timed.add(member)
        columns = np.array([(each.own_ms, each.idle_ms, each.span_ms) for each in own]).T / 1e3
        steps = np.array([-1 if each.step is None else each.step for each in own])
        counts = np.array([each.count for each in own])
        self.own_times.add(np.full(len(own), member), steps, counts, columns, now_s)

    def add_collectives(self, member: int, records: tuple[CollectiveRecord, ...]) -> int:
        """Keep collectives for the next tick; return how many there was room for."""
        taken = records[: max(MAX_PENDING - self.pending, 0)]
        self.records[member] += taken
        self.pending += len(taken)
        return len(taken)

    def tick(self, now_s: float, stale_s: float) -> list[Verdict]:
        """Return the verdicts that are new or changed; measured lag expires after `stale_s`."""
        self._take_collectives(now_s)
        self._observe_own_times(now_s)
        expired = [index for index, at_s in self.measured_s.items() if at_s < now_s - stale_s]
        self._forget_lag(expired)
        self.stepless.advance(self.keys, now_s)
        changed = self.engine.tick(now_s)
        self._note_collectives(now_s)
        self._release(self.engine.take_freed())
        for verdict in changed:
            if verdict.state is VerdictState.RESOLVED:
                self.resolved[verdict.episode] = (verdict, now_s)
        self.resolved = {
            episode: (verdict, at_s)
            for episode, (verdict, at_s) in self.resolved.items()
            if now_s - at_s <= RESOLVED_FOR_S
        }
        return changed

    def recent(self) -> list[Verdict]:
        """Return the open verdicts and those resolved within the last RESOLVED_FOR_S seconds."""
        return [
            *self.engine.current(),
            *(verdict for verdict, _ in self.resolved.values()),
            *(each.verdict for each in self.stepless.jobs.values()),
        ]

    def mark(self, verdict: Verdict) -> Verdict:
        """Return the verdict with the collective at which the job waits, and with its slow link.

        A whole job that is slower because of a link has the class of links.
        """
        link, text = self.links.get(verdict.episode), self.awaited_at.get(verdict.episode, "")
        if link is not None:
            verdict = msgspec.structs.replace(
                verdict, cause_class=CauseClass.NETWORK, link=link.text, next_step=LINK_NEXT_STEP
            )
        return msgspec.structs.replace(verdict, collective=text) if text else verdict

    def _note_collectives(self, now_s: float) -> None:
        """Keep the collective and the link of each open episode, as they were while it was slow."""
        opened = self.engine.current()
        served = {verdict.episode for verdict in opened} | self.resolved.keys()
        self.awaited_at = {each: text for each, text in self.awaited_at.items() if each in served}
        self.links = {each: link for each, link in self.links.items() if each in served}
        for verdict in opened:
            if link := self._link_of(verdict, now_s):
                self.links[verdict.episode] = link
            if verdict.rank is None or verdict.state not in _SLOW:
                continue
            member = self.members.get((verdict.node, verdict.job, verdict.rank), -1)
            world = self.jobs.get(verdict.job, JobRoles(0.0)).world_size
            if text := self.places.describe(member, world):
                self.awaited_at[verdict.episode] = text

    def _link_of(self, verdict: Verdict, now_s: float) -> LinkPlace | None:
        """Return the link that slows a whole job; None if no link does."""
        if verdict.cause_class is CauseClass.FLEET:
            lost = self.transfers.lost_by(verdict.job, now_s)
            if lost < LINK_EXPLAINS * (verdict.loss or math.inf):
                return None
        elif verdict.cause_class is not CauseClass.NETWORK:
            return None
        return self.transfers.locate(verdict.job, now_s)

    def _take_collectives(self, now_s: float) -> None:
        """Turn the collectives received since the last tick into own times and lag."""
        if self.pending:
            taken = dict(self.records)
            self.stepless.sent(taken, now_s)
            # Cleared first: records that raise must not be tried again every second.
            self.records.clear()
            self.pending = 0
            everything = [record for records in taken.values() for record in records]
            self._match(from_records(everything), now_s)
            for member, records in taken.items():
                if member not in self.self_timed:
                    self._take_steps(member, records, now_s)
                self._take_roles(member, records, now_s)
            self._find_roles(now_s)
        if len(self.matcher):
            self._measure_lag(now_s)
        elif len(self.late):
            self.advances.add(self._take_late(), np.empty(0, np.int64), now_s)

    def _match(self, columns: Collectives, now_s: float) -> None:
        """Match collectives, except those that came too late for it."""
        self.late, is_late = self.closed.measure(columns, self._members_of(columns)[columns.who])
        self.matcher.add(columns.take(~is_late) if is_late.any() else columns, now_s)

    def _take_late(self) -> Arrivals:
        late, self.late = self.late, NO_ARRIVALS
        return late

    def _take_roles(self, member: int, records: list[CollectiveRecord], now_s: float) -> None:
        key = self.keys.get(member)
        if key is not None and key[2] is not None:
            job = self.jobs.setdefault(key[1], JobRoles(now_s))
            if member not in job.ranks:
                job.since_s = now_s
            job.ranks[member] = key[2]
            job.finder.take(member, records)

    def _find_roles(self, now_s: float) -> None:
        """Find the roles of jobs of which all ranks are known, or have had time to report."""
        for job in self.jobs.values():
            is_waiting = now_s - job.since_s < ALL_RANKS_S
            wanted = (job.world_size or MAX_RANKS) if is_waiting else 0
            found = job.finder.find(job.ranks, wanted)
            if found is not None:
                job.by_rank = {self.keys[member]: role for member, role in found.items()}

    def _take_steps(self, member: int, records: list[CollectiveRecord], now_s: float) -> None:
        """Feed the own time of each step that these records complete."""
        live = self.live_steps.get(member)
        if live is None:
            live = self.live_steps[member] = LiveSteps()
        times = live.take(from_records(records)).times
        if len(times):
            columns = np.array([times.own_s, times.idle_s, times.span_s])
            ones = np.ones(len(times), np.int64)
            self.own_times.add(np.full(len(times), member), times.step, ones, columns, now_s)

    def _observe_own_times(self, now_s: float) -> None:
        """Feed own times, with the advances of those steps that were sent whole."""
        self.observed = None
        ready = self.own_times.take_ready(self.advances, now_s)
        if ready is None:
            return
        member, step, count, (own_s, idle_s, span_s) = ready
        self.observed = (member, step, own_s)
        self.stepless.timed(member)
        known = self.advances.means(member, step, count)
        own_s = own_s + self.hidden.follow(member, known.hidden_s, now_s)
        idle_s = idle_s + self.hidden_idle.follow(member, known.hidden_idle_s, now_s)
        late = np.full(int(member.max()) + 1, math.nan)
        if self.lateness_s:
            late[[each for each in self.lateness_s if each < len(late)]] = [
                late_s for each, late_s in self.lateness_s.items() if each < len(late)
            ]
        batch = make_batch(
            member,
            own_s,
            step,
            idle_s=idle_s,
            span_s=span_s,
            lateness_s=late[member],
            advance_s=known.advance_s,
            start_late_s=known.start_late_s,
            enqueue_late_s=known.enqueue_late_s,
            queue_s=known.queue_s,
            near_late_s=known.near_s,
            far_late_s=known.far_s,
        )
        self.engine.observe(batch, now_s)

    def _measure_lag(self, now_s: float) -> None:
        """Take lateness and peer lag from the collectives that are complete now."""
        matched = self.matcher.close(now_s)
        columns = matched.collectives
        self._measure_arrivals(matched, now_s)
        if not len(columns):
            return
        # Without clock fits, only lateness that needs no common clock is counted.
        lag = measure_lag(columns, matched.groups, {})
        # When an exchange was over is not known, so its duration says nothing.
        clock_free = np.isfinite(lag.error_ms) & ~columns.has_op(EXCHANGES)
        size = len(columns.recorders)
        lateness_ms = _means(columns.who[clock_free], lag.lateness_ms[clock_free], size)
        self.idle_gpu_s += barrier_idle_s(
            matched.groups[clock_free], lag.lateness_ms[clock_free], columns.weight[clock_free]
        )
        peer_lag_ms = _means(columns.who[lag.is_quorate], lag.peer_lag_ms[lag.is_quorate], size)
        for recorder, late_ms, behind_ms in zip(
            columns.recorders, lateness_ms, peer_lag_ms, strict=True
        ):
            member = self._member_of(recorder)
            if member < 0 or math.isnan(behind_ms):  # no quorum: lateness is unknown, too
                continue
            self.measured_s[member], self.peer_lag_ms[member] = now_s, behind_ms
            if not math.isnan(late_ms):
                self.lateness_s[member] = late_ms / 1e3

    def _measure_arrivals(self, matched: Matched, now_s: float) -> None:
        """Take advances from the steps that were sent whole."""
        columns, awaited = matched.collectives, matched.awaited
        members = self._members_of(columns)
        waiting = members[awaited.who]
        # Nobody's own times wait for sends and receives, which are no arrivals.
        tagged = (waiting >= 0) & (awaited.step >= 0) & has_arrival(awaited)
        on_time = measure_arrivals(columns, matched.groups, members[columns.who], self.waits, now_s)
        self.places.take(on_time, columns, now_s)
        self.transfers.take(columns, matched.groups, now_s)
        self.advances.add(
            join_arrivals(self._take_late(), on_time),
            step_keys(waiting[tagged], awaited.step[tagged]),
            now_s,
        )
        self.closed.keep(columns, matched.groups, now_s)

    def _members_of(self, columns: Collectives) -> NDArray[np.int64]:
        """Return the member of each recorder, -1 for those that are none."""
        return np.array([self._member_of(each) for each in columns.recorders] or [-1], np.int64)

    def _member_of(self, recorder: Recorder) -> int:
        key = (recorder.node or "", recorder.job, recorder.global_rank)
        return self.members.get(key, -1)

    def _release(self, indexes: Iterable[int]) -> None:
        """Drop everything kept about rows that the engine has freed."""
        for index in indexes:
            key = self.keys.pop(index, None)
            if key is not None:
                self.members.pop(key, None)
                self.sources.pop(key, None)
                self._forget_role(index, key)
            self.live_steps.pop(index, None)
            self.self_timed.discard(index)
            self.stepless.forget(index)
            self.own_times.forget(index)
            self.places.forget(index)
            self.hidden.forget(index)
            self.hidden_idle.forget(index)
            self._forget_lag([index])
            self.pending -= len(self.records.pop(index, ()))

    def _forget_role(self, index: int, key: RankKey) -> None:
        job = self.jobs.get(key[1])
        if job is None or job.ranks.pop(index, None) is None:
            return
        job.finder.forget(index)
        job.by_rank.pop(key, None)
        if not job.ranks:
            del self.jobs[key[1]]

    def _forget_lag(self, members: Iterable[int]) -> None:
        for index in members:
            for kept in (self.lateness_s, self.peer_lag_ms, self.measured_s):
                kept.pop(index, None)


def _means(who: NDArray[np.int32], values: NDArray[np.float64], size: int) -> list[float]:
    """Return the mean of each recorder's values, NaN for recorders without any."""
    counts = np.bincount(who, minlength=size)
    means = np.divide(
        np.bincount(who, values, size), counts, out=np.full(size, np.nan), where=counts > 0
    )
    return [float(mean) for mean in means]
