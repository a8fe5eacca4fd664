"""The verdicts of one cluster: its engine, and what Fleet keeps between two ticks to feed it."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import CollectiveRecord
from ingero.contract.measurements.own_time import OwnTime
from ingero.contract.measurements.ranks import Measured
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.collectives.columns import from_records
from ingero.core.collectives.lag import measure_lag
from ingero.core.collectives.live_matching import CollectiveMatcher
from ingero.core.collectives.live_steps import LiveSteps
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.members import Member
from ingero.core.verdict.own_times import make_batch

RESOLVED_FOR_S = 60.0  # resolved verdicts are served this long: an agent may push once a minute
MAX_PENDING = 200_000  # collectives held between two ticks, per cluster
RankKey = tuple[str, str | None, int | None]  # node, job, rank


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
    lateness_s: dict[int, float] = field(default_factory=dict)
    peer_lag_ms: dict[int, float] = field(default_factory=dict)
    measured_s: dict[int, float] = field(default_factory=dict)  # when lateness and lag were
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

    def add_own_times(self, member: int, own: tuple[OwnTime, ...], now_s: float) -> None:
        """Feed own times that the member measured itself."""
        self.self_timed.add(member)
        columns = np.array([(each.own_ms, each.idle_ms, each.span_ms) for each in own]).T / 1e3
        steps = np.array([-1 if each.step is None else each.step for each in own])
        self._observe(member, steps, columns[0], columns[1], columns[2], now_s)

    def add_collectives(self, member: int, records: tuple[CollectiveRecord, ...]) -> int:
        """Keep collectives for the next tick; return how many there was room for."""
        taken = records[: max(MAX_PENDING - self.pending, 0)]
        self.records[member] += taken
        self.pending += len(taken)
        return len(taken)

    def tick(self, now_s: float, stale_s: float) -> list[Verdict]:
        """Return the verdicts that are new or changed; measured lag expires after `stale_s`."""
        self._take_collectives(now_s)
        expired = [index for index, at_s in self.measured_s.items() if at_s < now_s - stale_s]
        self._forget_lag(expired)
        changed = self.engine.tick(now_s)
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
        return [*self.engine.current(), *(verdict for verdict, _ in self.resolved.values())]

    def _take_collectives(self, now_s: float) -> None:
        """Turn the collectives received since the last tick into own times and lag."""
        if self.pending:
            taken = dict(self.records)
            # Cleared first: records that raise must not be tried again every second.
            self.records.clear()
            self.pending = 0
            everything = [record for records in taken.values() for record in records]
            self.matcher.add(from_records(everything), now_s)
            for member, records in taken.items():
                if member not in self.self_timed:
                    self._take_steps(member, records, now_s)
        if len(self.matcher):
            self._measure_lag(now_s)

    def _take_steps(self, member: int, records: list[CollectiveRecord], now_s: float) -> None:
        """Feed the own time of each step that these records complete."""
        live = self.live_steps.get(member)
        if live is None:
            live = self.live_steps[member] = LiveSteps()
        steps = live.take(from_records(records))
        if len(steps):
            self._observe(member, steps.step, steps.own_s, steps.idle_s, steps.span_s, now_s)

    def _observe(
        self,
        member: int,
        step: NDArray[np.int64],
        own_s: NDArray[np.float64],
        idle_s: NDArray[np.float64],
        span_s: NDArray[np.float64],
        now_s: float,
    ) -> None:
        batch = make_batch(
            np.full(len(own_s), member),
            own_s,
            step,
            idle_s=idle_s,
            span_s=span_s,
            lateness_s=np.full(len(own_s), self.lateness_s.get(member, math.nan)),
        )
        self.engine.observe(batch, now_s)

    def _measure_lag(self, now_s: float) -> None:
        """Take lateness and peer lag from the collectives that are complete now."""
        matched = self.matcher.close(now_s)
        columns = matched.collectives
        if not len(columns):
            return
        # Without clock fits, only lateness that needs no common clock is counted.
        lag = measure_lag(columns, matched.groups, {})
        clock_free, size = np.isfinite(lag.error_ms), len(columns.recorders)
        lateness_ms = _means(columns.who[clock_free], lag.lateness_ms[clock_free], size)
        peer_lag_ms = _means(columns.who[lag.is_quorate], lag.peer_lag_ms[lag.is_quorate], size)
        for recorder, late_ms, behind_ms in zip(
            columns.recorders, lateness_ms, peer_lag_ms, strict=True
        ):
            member = self.members.get((recorder.node or "", recorder.job, recorder.global_rank))
            if member is None or math.isnan(behind_ms):  # no quorum: lateness is unknown, too
                continue
            self.measured_s[member], self.peer_lag_ms[member] = now_s, behind_ms
            if not math.isnan(late_ms):
                self.lateness_s[member] = late_ms / 1e3

    def _release(self, indexes: Iterable[int]) -> None:
        """Drop everything kept about rows that the engine has freed."""
        for index in indexes:
            key = self.keys.pop(index, None)
            if key is not None:
                self.members.pop(key, None)
                self.sources.pop(key, None)
            self.live_steps.pop(index, None)
            self.self_timed.discard(index)
            self._forget_lag([index])
            self.pending -= len(self.records.pop(index, ()))

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
