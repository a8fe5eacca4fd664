"""The verdict desk: own times and collectives in, verdicts out, one engine per cluster, everything bounded."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ingero.config.rates import RateTable, canonical_provider
from ingero.contract import names
from ingero.contract.collective import CollectiveRecord
from ingero.contract.measurements.decode import Measured, read_measurements
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.verdict import Verdict, VerdictState, encode_verdicts
from ingero.core.collectives.columns import from_records
from ingero.core.collectives.lag import measure_lag
from ingero.core.collectives.live_steps import LiveSteps
from ingero.core.collectives.matcher import CollectiveMatcher
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import Member
from ingero.fleet.silences import Silences

FORGET_AFTER_S = 3600.0  # a cluster without measurements for this long is over
RESOLVED_FOR_S = (
    60.0  # a resolved verdict is still told for this long: an agent may push once a minute
)
MAX_PENDING = 200_000  # collectives held between two ticks, per cluster
Who = tuple[str, str | None, int | None]  # node, job, rank


@dataclass(slots=True)
class ClusterDesk:
    """One cluster: its engine, its matcher and what waits for the next tick."""

    engine: VerdictEngine
    heard_s: float = 0.0
    matcher: CollectiveMatcher = field(default_factory=CollectiveMatcher)
    members: dict[Who, int] = field(default_factory=dict)
    streams: dict[int, LiveSteps] = field(default_factory=dict)
    self_timed: set[int] = field(
        default_factory=set
    )  # members that send own times: their collectives are samples
    records: defaultdict[int, list[CollectiveRecord]] = field(
        default_factory=lambda: defaultdict(list)
    )
    pending: int = 0
    lateness_s: dict[int, float] = field(default_factory=dict)
    peer_lag_ms: dict[int, float] = field(default_factory=dict)
    measured_s: dict[int, float] = field(default_factory=dict)  # when these two were
    resolved: dict[str, tuple[Verdict, float]] = field(default_factory=dict)
    owners: dict[int, Who] = field(default_factory=dict)
    sources: dict[Who, str] = field(default_factory=dict)

    def admit(self, who: Who, index: int) -> None:
        """A member's index; what is kept of one that had it before goes."""
        self.release([index])
        self.owners[index], self.members[who] = who, index

    def release(self, indexes: Iterable[int]) -> None:
        """Let go of what is kept of members that are over."""
        for index in indexes:
            who = self.owners.pop(index, None)
            if who is not None:
                self.members.pop(who, None)
                self.sources.pop(who, None)
            self.streams.pop(index, None)
            self.self_timed.discard(index)
            self.forget_lag([index])
            self.pending -= len(self.records.pop(index, ()))

    def forget_lag(self, members: Iterable[int]) -> None:
        """What was measured of their collectives is not true any more."""
        for index in members:
            for kept in (self.lateness_s, self.peer_lag_ms, self.measured_s):
                kept.pop(index, None)

    def source_of(self, who: Who, measured: Measured) -> str:
        """Where the own times of a member come from: what it says with them, else what its collectives say."""
        if measured.own_times or who not in self.sources:
            self.sources[who] = measured.source
        return self.sources[who]


@dataclass(slots=True)
class DeskCounters:
    """What came in and what was dropped."""

    own_times: int = 0
    collectives: int = 0
    malformed: int = 0
    overflow: int = 0
    verdicts: int = 0
    refused_clusters: int = 0


class VerdictDesk:
    """Fed by the processor, ticked by the service. `now_s` is Unix time that never steps back."""

    def __init__(
        self,
        rates: RateTable | None = None,
        policy: VerdictPolicy | None = None,
        max_clusters: int = 1024,
        silences: Silences | None = None,
    ) -> None:
        self.clusters: dict[str, ClusterDesk] = {}
        self.texts: dict[tuple[str, str], str] = {}  # by cluster and node: what push replies carry
        self.counters = DeskCounters()
        self.silences = silences or Silences()
        self._now_s = 0.0  # of the last tick
        self._rates = rates
        self._policy, self._max_clusters = policy or VerdictPolicy(), max_clusters

    def take(self, request: MetricsRequest, cluster: str, now_s: float) -> None:
        """The measurements of one push."""
        desk = self.clusters.get(cluster)
        if desk is None:
            if len(self.clusters) >= self._max_clusters:
                self.counters.refused_clusters += 1
                return
            desk = self.clusters[cluster] = ClusterDesk(VerdictEngine(self._policy))
        desk.heard_s = now_s
        for measured in read_measurements(request):
            self.counters.malformed += measured.malformed
            member = self._member(desk, cluster, measured, now_s)
            if member is not None:
                self._observe(desk, member, measured, now_s)

    def tick(self, now_s: float) -> list[tuple[str, Verdict]]:
        """One second of every cluster: (cluster, verdict) for everything that is new or changed, silenced or not."""
        changed = []
        texts: dict[tuple[str, str], str] = {}
        self._now_s = now_s
        for cluster in [
            name for name, desk in self.clusters.items() if now_s - desk.heard_s > FORGET_AFTER_S
        ]:
            del self.clusters[cluster]
        for cluster, desk in self.clusters.items():
            self._judge_collectives(desk, now_s)
            news = desk.engine.tick(now_s)
            desk.release(desk.engine.take_freed())
            changed += [(cluster, verdict) for verdict in news]
            self._follow_resolved(desk, news, now_s)
            texts |= self._texts_of(cluster, desk)
        self.texts.clear()
        self.texts |= texts
        self.counters.verdicts += len(changed)
        return changed

    def told(self, cluster: str) -> list[Verdict]:
        """Open verdicts of a cluster and those that were resolved a moment ago."""
        desk = self.clusters.get(cluster)
        return [] if desk is None else self._told(cluster, desk)

    def open_verdicts(self) -> list[tuple[str, Verdict]]:
        """(cluster, verdict) of every open one, saying where it is silenced."""
        return [
            (cluster, self.silences.mark(cluster, verdict, self._now_s))
            for cluster, desk in sorted(self.clusters.items())
            for verdict in desk.engine.current()
        ]

    def watched(self, cluster: str) -> dict[str, int]:
        """How many ranks of a cluster are judged, and how many are still learning what is normal."""
        desk = self.clusters.get(cluster)
        judged, learning = (0, 0) if desk is None else desk.engine.learning()
        return {"judged": judged, "learning": learning}

    def _member(
        self, desk: ClusterDesk, cluster: str, measured: Measured, now_s: float
    ) -> int | None:
        resource = measured.resource
        node, job = resource.get(names.NODE_ID), resource.get(names.JOB_ID)
        rank = resource.get(names.RANK, resource.get(names.NODE_RANK))
        if not isinstance(node, str) or not node:
            self.counters.malformed += 1
            return None
        who = (node, None if job is None else str(job), rank if isinstance(rank, int) else None)
        model, provider = str(resource.get(names.GPU_MODEL) or ""), resource.get(names.PROVIDER)
        found = canonical_provider(provider) if isinstance(provider, str) else None
        gpus = resource.get(names.GPU_COUNT)
        member = Member(
            cluster=cluster,
            node=node,
            rank=who[2],
            job=who[1],
            gpu_model=model,
            role=str(resource.get(names.ROLE) or ""),
            source=desk.source_of(who, measured),
            gpus=gpus if who[2] is None and isinstance(gpus, int) and gpus > 0 else 1,
            usd_per_gpu_hour=self._rates.find(found, model) if self._rates is not None else None,
        )
        index = desk.engine.register(member, now_s)
        desk.release(desk.engine.take_freed())
        if index is None:
            desk.sources.pop(who, None)
        elif desk.members.get(who) != index:
            desk.admit(who, index)
        return index

    def _observe(self, desk: ClusterDesk, member: int, measured: Measured, now_s: float) -> None:
        own = measured.own_times
        if own:
            self.counters.own_times += len(own)
            desk.self_timed.add(member)
            columns = np.array([(each.own_ms, each.idle_ms, each.span_ms) for each in own]).T / 1e3
            batch = make_batch(
                np.full(len(own), member),
                columns[0],
                np.array([-1 if each.step is None else each.step for each in own]),
                idle_s=columns[1],
                span_s=columns[2],
                lateness_s=np.full(len(own), desk.lateness_s.get(member, math.nan)),
            )
            desk.engine.observe(batch, now_s)
        if measured.collectives:
            room = max(MAX_PENDING - desk.pending, 0)
            taken = measured.collectives[:room]
            self.counters.overflow += len(measured.collectives) - len(taken)
            self.counters.collectives += len(taken)
            desk.records[member] += taken
            desk.pending += len(taken)

    def _judge_collectives(self, desk: ClusterDesk, now_s: float) -> None:
        """Lag of finished collectives; own time of finished steps."""
        if desk.pending:
            taken = dict(desk.records)
            desk.records.clear()  # first: what cannot be judged must not be tried again every second
            desk.pending = 0
            desk.matcher.add(
                from_records([record for records in taken.values() for record in records]), now_s
            )
            for member, records in taken.items():
                if member not in desk.self_timed:
                    self._own_times(desk, member, records, now_s)
        if len(desk.matcher):
            self._measure(desk, now_s)
        stale_s = now_s - self._policy.stale_s
        desk.forget_lag([index for index, at_s in desk.measured_s.items() if at_s < stale_s])

    def _own_times(
        self, desk: ClusterDesk, member: int, records: list[CollectiveRecord], now_s: float
    ) -> None:
        stream = desk.streams.get(member)
        if stream is None:
            stream = desk.streams[member] = LiveSteps()
        steps = stream.take(from_records(records))
        if len(steps):
            batch = make_batch(
                np.full(len(steps), member),
                steps.own_s,
                steps.step,
                idle_s=steps.idle_s,
                span_s=steps.span_s,
                lateness_s=np.full(len(steps), desk.lateness_s.get(member, math.nan)),
            )
            desk.engine.observe(batch, now_s)

    def _measure(self, desk: ClusterDesk, now_s: float) -> None:
        matched = desk.matcher.close(now_s)
        columns = matched.collectives
        if not len(columns):
            return
        lag = measure_lag(
            columns, matched.groups, {}
        )  # no clock fits: only clock-free lateness counts
        clock_free, size = np.isfinite(lag.error_ms), len(columns.recorders)
        lateness_ms = _means(columns.who[clock_free], lag.lateness_ms[clock_free], size)
        peer_lag_ms = _means(columns.who[lag.is_quorate], lag.peer_lag_ms[lag.is_quorate], size)
        for recorder, late_ms, behind_ms in zip(
            columns.recorders, lateness_ms, peer_lag_ms, strict=True
        ):
            member = desk.members.get((recorder.node or "", recorder.job, recorder.global_rank))
            if member is None or math.isnan(
                behind_ms
            ):  # without a quorum there is no lateness either
                continue
            desk.measured_s[member], desk.peer_lag_ms[member] = now_s, behind_ms
            if not math.isnan(late_ms):
                desk.lateness_s[member] = late_ms / 1e3

    def _follow_resolved(self, desk: ClusterDesk, news: Iterable[Verdict], now_s: float) -> None:
        for verdict in news:
            if verdict.state is VerdictState.RESOLVED:
                desk.resolved[verdict.episode] = (verdict, now_s)
        desk.resolved = {
            e: pair for e, pair in desk.resolved.items() if now_s - pair[1] <= RESOLVED_FOR_S
        }

    def _texts_of(self, cluster: str, desk: ClusterDesk) -> dict[tuple[str, str], str]:
        by_node: defaultdict[str, list[Verdict]] = defaultdict(list)
        for verdict in self._told(cluster, desk):
            if verdict.node:
                by_node[verdict.node].append(verdict)
        return {(cluster, node): encode_verdicts(verdicts) for node, verdicts in by_node.items()}

    def _told(self, cluster: str, desk: ClusterDesk) -> list[Verdict]:
        told = [*desk.engine.current(), *(verdict for verdict, _ in desk.resolved.values())]
        return [self.silences.mark(cluster, verdict, self._now_s) for verdict in told]


def _means(who: NDArray[np.int32], values: NDArray[np.float64], size: int) -> list[float]:
    """Mean of the values of each, NaN for those without any."""
    counts = np.bincount(who, minlength=size)
    means = np.divide(
        np.bincount(who, values, size), counts, out=np.full(size, np.nan), where=counts > 0
    )
    return [float(mean) for mean in means]
