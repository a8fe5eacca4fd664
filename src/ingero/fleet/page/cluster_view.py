"""One cluster as the stream shows it: its snapshot, and what changed since the last tick."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from msgspec import UNSET

from ingero.contract.fleet_api import RankCounts
from ingero.contract.live import (
    LiveDelta,
    LiveJob,
    LiveNode,
    LiveSnapshot,
    LiveSummary,
    encode_message,
)
from ingero.contract.push.decode import STATES
from ingero.contract.silence import Silence
from ingero.contract.types import DetectionMode
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.live.headline import ClusterFacts, make_headline, unjudged_text
from ingero.fleet.episodes.book import EpisodeBook
from ingero.fleet.page.census import Census
from ingero.fleet.processor import Cluster
from ingero.fleet.verdicts import VerdictService

MAX_SLOW_NODES: Final = 100  # that a headline counts
SILENT: Final = "silent"
Columns = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of a tick, by both clocks."""

    monotonic_s: float
    unix_s: float

    @property
    def offset_s(self) -> float:
        """Unix time minus the receiver's monotonic clock."""
        return self.unix_s - self.monotonic_s


class ClusterView:
    """Encodes one cluster; `delta` compares with the last call, and `snapshot` with nothing."""

    def __init__(
        self, cluster: Cluster, verdicts: VerdictService, episodes: EpisodeBook, ttl_s: float
    ) -> None:
        self.cluster, self._verdicts = cluster, verdicts
        self._episodes, self._ttl_s = episodes, ttl_s
        self._columns: Columns | None = None
        self._rows: dict[str, int] = {}
        self._sent: dict[str, object] = {}  # the last value of each part that is sent whole
        self._episode_ids: set[str] = set()
        self._census = Census()
        self._at_s = -math.inf
        self._sent_ns, self._offset_s = np.zeros(0, np.uint64), np.zeros(0)

    def snapshot(self, now: Moment) -> bytes:
        """Encode everything; this changes nothing about the next delta."""
        roster = self.cluster.roster
        parts = self._parts(now)
        message = LiveSnapshot(
            cluster_id=self.cluster.name,
            at=now.unix_s,
            nodes=[self._node(name, row, now) for name, row in sorted(roster.rows.items())],
            episodes=self._episodes.live_since(
                self._episodes.live_ids(self.cluster.name, now.unix_s), -math.inf
            ),
            **parts,
        )
        return encode_message(message) + b"\n"

    def delta(self, now: Moment) -> bytes:
        """Encode what changed since the last call, and nothing where nothing did."""
        changes: dict[str, Any] = {}
        for name, value in self._parts(now).items():
            if self._sent.get(name, UNSET) != value:
                changes[name] = self._sent[name] = value
        nodes = self._changed_nodes(now)
        if nodes:
            changes["nodes"] = nodes
        gone = sorted(self._rows.keys() - self.cluster.roster.rows.keys())
        if gone:
            changes["gone"] = gone
        self._rows = dict(self.cluster.roster.rows)
        ids = self._episodes.live_ids(self.cluster.name, now.unix_s)
        episodes = self._episodes.live_since(ids, self._at_s)
        if episodes:
            changes["episodes"] = episodes
        if dropped := sorted(self._episode_ids - ids):
            changes["episodes_gone"] = dropped
        self._episode_ids, self._at_s = ids, now.unix_s
        if not changes:
            return b""
        message = LiveDelta(cluster_id=self.cluster.name, at=now.unix_s, **changes)
        return encode_message(message) + b"\n"

    def _changed_nodes(self, now: Moment) -> list[LiveNode]:
        """Return the nodes whose columns differ from those of the last call."""
        roster = self.cluster.roster
        is_silent = roster.seen_s < now.monotonic_s - self._ttl_s
        columns: Columns = (
            roster.seen_s,
            roster.score,
            roster.state,
            roster.straggling_s,
            is_silent,
        )
        before = self._columns
        self._columns = tuple(column.copy() for column in columns)
        self._follow_clocks(now)
        if before is None or len(before[0]) != len(columns[0]):
            changed = np.ones(len(is_silent), bool)
        else:
            changed = np.zeros(len(is_silent), bool)
            for old, new in zip(before, columns, strict=True):
                changed |= (old != new) & ~(np.isnan(old) & np.isnan(new))
        found = []
        for row in np.flatnonzero(changed).tolist():
            report = roster.reports[row]
            if report is not None and roster.rows.get(report.node) == row:
                found.append(self._node(report.node, row, now))
        return found

    def _follow_clocks(self, now: Moment) -> None:
        """Compare the clocks of nodes whose health was pushed since the last call.

        Other pushes may have come since, so that the result is up to a second too low.
        """
        roster, known = self.cluster.roster, len(self._offset_s)
        if known < len(roster.sent_ns):
            more = len(roster.sent_ns) - known
            self._offset_s = np.concatenate([self._offset_s, np.full(more, np.nan)])
            self._sent_ns = np.concatenate([self._sent_ns, roster.sent_ns[known:]])
        fresh = np.flatnonzero(roster.sent_ns != self._sent_ns)
        sent_s = roster.sent_ns[fresh] / 1e9
        offset_s = sent_s - (roster.seen_s[fresh] + now.offset_s)
        self._offset_s[fresh] = np.where(sent_s > 0, offset_s, np.nan)
        self._sent_ns = roster.sent_ns.copy()

    def _node(self, name: str, row: int, now: Moment) -> LiveNode:
        roster = self.cluster.roster
        report, state = roster.reports[row], int(roster.state[row])
        assert report is not None
        seen_s = float(roster.seen_s[row])
        offset_s = float(self._offset_s[row]) if row < len(self._offset_s) else math.nan
        is_silent = seen_s < now.monotonic_s - self._ttl_s
        seen = round(seen_s + now.offset_s, 2)
        return LiveNode(
            name,
            None if state < 0 else round(float(roster.score[row]), 4),
            SILENT if is_silent else "" if state < 0 else STATES[state],
            not math.isnan(roster.straggling_s[row]),
            seen,
            self._census.ranks[name],
            report.job or self._census.job_of.get(name),
            report.gpu_model,
            report.mode,
            report.version,
            report.lost_records,
            None if math.isnan(offset_s) else round(offset_s, 1),
            report.ready_s,
        )

    def _parts(self, now: Moment) -> dict[str, Any]:
        """Return what is sent whole when it changes."""
        name = self.cluster.name
        verdicts = self._verdicts.recent_verdicts(name)
        silences = [
            silence
            for silence in self._verdicts.silences.active(now.unix_s)
            if silence.cluster in (None, name)
        ]
        return {
            "summary": self._summary(verdicts, silences),
            "verdicts": verdicts,
            "silences": silences,
            "jobs": self._jobs(verdicts),
        }

    def _summary(self, verdicts: list[Verdict], silences: list[Silence]) -> LiveSummary:
        cluster = self.cluster
        ranks = self._verdicts.rank_counts(cluster.name)
        loud, hushed = self._slow_nodes(silences)
        facts = ClusterFacts(
            slow_nodes=loud,
            silenced_nodes=hushed,
            threshold=cluster.served.value or None,
            doubt=self._doubt(ranks),
            unjudged_ranks=0 if ranks.judged else ranks.learning,
        )
        return LiveSummary(
            **summary_fields(cluster),
            headline=make_headline(verdicts, facts),
            quorum_reason=None if cluster.served.reason is None else str(cluster.served.reason),
            ranks=ranks,
        )

    def _slow_nodes(
        self, silences: list[Silence]
    ) -> tuple[list[tuple[str, float | None]], list[str]]:
        """Return the nodes whose agents say that they are slow, and those that are silenced."""
        roster, loud, hushed = self.cluster.roster, [], []
        for row in np.flatnonzero(~np.isnan(roster.straggling_s))[:MAX_SLOW_NODES].tolist():
            report = roster.reports[row]
            if report is None:
                continue
            covered = (s.covers(self.cluster.name, report.node, report.job) for s in silences)
            if any(covered):
                hushed.append(report.node)
            else:
                has_score = int(roster.state[row]) >= 0
                loud.append((report.node, float(roster.score[row]) if has_score else None))
        loud.sort(key=lambda each: (1.0 if each[1] is None else each[1], each[0]))
        return loud, sorted(hushed)

    def _doubt(self, ranks: RankCounts) -> str:
        """Return why it cannot be said whether somebody is slow; empty where it can."""
        counts, cluster = self.cluster.counts, self.cluster
        if counts and not sum(count for state, count in counts.items() if state != SILENT):
            return "no node pushes"
        if cluster.threshold.panic:
            return "most nodes fell at the same time"
        if cluster.served.quorum_met or ranks.judged:
            return ""
        reports = (cluster.roster.reports[row] for row in cluster.roster.rows.values())
        if any(report and report.mode == DetectionMode.LOCAL_BASELINE for report in reports):
            return ""
        if ranks.learning:
            return unjudged_text(ranks.learning)
        return "there is nothing to compare yet"

    def _jobs(self, verdicts: list[Verdict]) -> list[LiveJob]:
        found = self._verdicts.clusters.get(self.cluster.name)
        self._census.follow(found.members if found else {})
        slow = Counter(v.job for v in verdicts if v.state is VerdictState.STRAGGLER)
        worlds = {} if found is None else found.jobs
        return [
            LiveJob(
                job_id=job,
                ranks=count.ranks,
                nodes=len(count.nodes),
                world_size=(worlds[job].world_size or None) if job in worlds else None,
                slow=slow[job],
            )
            for job, count in sorted(self._census.jobs.items())
        ]


def summary_fields(cluster: Cluster) -> dict[str, Any]:
    """Return the fields of a ClusterSummary, which several answers share."""
    state = cluster.threshold
    return {
        "cluster_id": cluster.name,
        "threshold": cluster.served.value or None,
        "quorum_met": cluster.served.quorum_met,
        "raw_threshold": state.stats.value if state.stats else None,
        "ema": state.ema,
        "median": state.stats.median if state.stats else None,
        "mad": state.stats.mad if state.stats else None,
        "nodes_by_state": cluster.counts,
        "coverage": state.coverage,
        "coverage_low": state.coverage_low,
        "panic": str(state.panic) if state.panic else None,
        "below_threshold": state.below,
        "idle_gpus": cluster.idle_gpus,
    }
