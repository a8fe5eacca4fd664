"""The Ingero processor: accepts pushes and keeps a roster and a threshold per cluster.

It owns no socket, thread or clock, so that it fits into any pipeline: call `push` or `take` for
each request, `tick` once a second, and `served` for the threshold that goes back to the sender.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from enum import IntEnum

import msgspec

from ingero.contract.fleet_api import IdleGpus
from ingero.contract.measurements.own_time_columns import (
    OwnTimeColumns,
    decode_own_time_columns,
)
from ingero.contract.names import DEFAULT_CLUSTER, STEP_OWN_TIME_MS
from ingero.contract.otlp.body import Encoding, PartialSuccess, decode
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.decode import (
    NodeReport,
    Push,
    Reject,
    decode_plain_push,
    decode_push,
    problem_with_id,
)
from ingero.contract.threshold import COLD_START, ServedThreshold
from ingero.core.health.threshold import (
    ClusterThreshold,
    ThresholdPolicy,
    reason_without_quorum,
    update_threshold,
)
from ingero.fleet.intake.known_reports import KnownReports
from ingero.fleet.intake.large_push import SLICE, DecodedPush
from ingero.fleet.roster import Put, Roster
from ingero.transport.otlp.decoding import finish

# A sender whose clock differs by more is counted; its push counts at the time it was received
CLOCK_SKEW_NS = 60 * 10**9
MAX_CLUSTERS = 1024
MAX_NODES = 100_000  # of all clusters together, unless one cluster alone may have more
_EXPLANATIONS = {
    Reject.SCORE_NOT_FINITE: "health score is not a finite number",
    Reject.SCORE_OUT_OF_RANGE: "health score is outside 0 to 1",
    Reject.STATE_UNKNOWN: "node state is none of active, calibrating, idle",
    Reject.NODE_ID_MISSING: "health score without ingero.node.id",
    Reject.IDENTITY_INVALID: "node, cluster or job id is empty, too long or has control characters",
    Reject.TOO_MANY_NODES: (
        "the cluster, or Fleet, is full; raise processors.ingero.max_expected_nodes"
    ),
    Reject.TOO_MANY_CLUSTERS: "too many clusters",
}


@dataclass(slots=True)
class Cluster:
    """One cluster: its nodes and its threshold."""

    name: str
    roster: Roster
    threshold: ClusterThreshold = field(default_factory=ClusterThreshold)
    served: ServedThreshold = COLD_START
    counts: dict[str, int] = field(default_factory=dict)
    idle_gpus: IdleGpus = field(default_factory=IdleGpus)


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one request: the cluster and node of its reply, and what was rejected."""

    cluster: str
    node: str
    lead: str = ""  # name of the first metric, which identifies the kind of push
    partial: PartialSuccess | None = None


class Tally(IntEnum):
    """Counts that plain pushes change; an index into `Counters.tally`."""

    PUSHES = 0
    MISMATCHED = 1  # query or header and resource disagree
    SKEWED = 2


@dataclass(slots=True)
class Counters:
    """All counts of the push path; compiled code adds to the arrays as well."""

    tally: "array[int]" = field(default_factory=lambda: array("q", [0] * len(Tally)))
    puts: "array[int]" = field(default_factory=lambda: array("q", [0] * len(Put)))  # by outcome
    defaulted: int = 0  # reports that name no cluster
    rejected: Counter[Reject] = field(default_factory=Counter)
    forgotten: int = 0
    ticks: int = 0
    recomputes: int = 0  # of the smoothed threshold, once per push interval and cluster

    @property
    def pushes(self) -> int:
        """The number of metrics requests accepted."""
        return self.tally[Tally.PUSHES]

    @property
    def mismatched(self) -> int:
        """The number of reports whose body names another cluster than the request."""
        return self.tally[Tally.MISMATCHED]

    @property
    def skewed(self) -> int:
        """The number of reports from senders whose clock is far off."""
        return self.tally[Tally.SKEWED]


def no_measurements(
    request: MetricsRequest, cluster: str, now_s: float, address: str | None
) -> None:
    """Ignore measurements: the default where no verdict service reads them."""


TakeOwnTimes = Callable[[OwnTimeColumns, bytes, str, float], None]


class FleetProcessor:
    """Computes the threshold of every cluster from the scores that its nodes push."""

    def __init__(
        self,
        policy: ThresholdPolicy,
        *,
        max_nodes: int = 10_000,
        expected_nodes: int = 0,
        max_clusters: int = MAX_CLUSTERS,
        on_measurements: Callable[[MetricsRequest, str, float, str | None], None] = no_measurements,
    ) -> None:
        self.policy = policy
        self.max_nodes = max_nodes
        self.expected_nodes = expected_nodes
        self.max_clusters = max_clusters
        self.on_measurements = on_measurements
        # Takes pushes of own times as columns, and without it they go to `on_measurements`.
        self.on_own_times: TakeOwnTimes | None = None
        self._known = KnownReports(max_nodes)
        self.clusters: dict[str, Cluster] = {}
        self.nodes = 0  # of all clusters
        self.counters = Counters()

    def push(
        self,
        body: bytes,
        encoding: Encoding,
        cluster: str | None,
        now_s: float,
        wall_ns: int,
        address: str | None = None,
    ) -> Taken:
        """Handle an encoded request; raises MalformedPush or TooLarge before any of it counts."""
        is_json = encoding is Encoding.JSON
        plain = decode_plain_push(body, is_json)
        if plain is None:
            return self._push_other(body, encoding, cluster, now_s, wall_ns, address)
        report, lead = plain
        found = self.clusters.get(cluster or report.cluster or "")
        if found is None or found.served is COLD_START:  # a first push may set the threshold
            first = Push((report,), False, (), lead)
            return finish(self._apply(first, cluster, now_s, wall_ns))
        return self._put_plain(found, report, lead, now_s, wall_ns)

    def _push_other(
        self,
        body: bytes,
        encoding: Encoding,
        cluster: str | None,
        now_s: float,
        wall_ns: int,
        address: str | None,
    ) -> Taken:
        """Handle a request that is no plain push; own times of known ranks are not decoded."""
        may_be_own = self.on_own_times is not None and encoding is Encoding.PROTOBUF
        columns = decode_own_time_columns(body) if may_be_own else None
        if columns is None or self.on_own_times is None:
            request = decode(MetricsRequest, body, encoding)
            return self.take(request, cluster, now_s, wall_ns, address)
        reports = self._known.find(columns.resources)
        if reports is None:
            request = decode(MetricsRequest, body, encoding)
            self._known.learn(columns.resources, decode_push(request))
            return self.take(request, cluster, now_s, wall_ns, address)
        taken = self._touch(reports, cluster, now_s)
        if taken is None:
            push = Push(reports, True, (), STEP_OWN_TIME_MS)
            taken = finish(self._apply(push, cluster, now_s, wall_ns))
        self.on_own_times(columns, body, taken.cluster, now_s)
        return taken

    def _touch(
        self, reports: tuple[NodeReport, ...], cluster: str | None, now_s: float
    ) -> Taken | None:
        """Do what `_apply` does for ranks of one known node; None where they are not that."""
        node, own = reports[0].node, reports[0].cluster
        found = self.clusters.get(cluster or own or "")
        row = None if found is None else found.roster.rows.get(node)
        if found is None or row is None:
            return None
        for report in reports:
            if report.node != node or report.cluster != own or report.score is not None:
                return None
        self.counters.tally[Tally.PUSHES] += 1
        if own is not None and own != found.name:
            self.counters.tally[Tally.MISMATCHED] += len(reports)
        found.roster.touch(row, len(reports), now_s)
        self.counters.puts[Put.STORED] += len(reports)
        return Taken(found.name, node, STEP_OWN_TIME_MS)

    def _put_plain(
        self, cluster: Cluster, report: NodeReport, lead: str, now_s: float, wall_ns: int
    ) -> Taken:
        """Do what `_apply` does for one report of a served cluster, which nearly all pushes are."""
        counters = self.counters
        counters.tally[Tally.PUSHES] += 1
        if report.cluster != cluster.name and report.cluster is not None:
            counters.tally[Tally.MISMATCHED] += 1
        put = self._store(cluster.roster, report, now_s)
        counters.puts[put] += 1
        if report.sent_ns and not -CLOCK_SKEW_NS <= report.sent_ns - wall_ns <= CLOCK_SKEW_NS:
            counters.tally[Tally.SKEWED] += 1
        partial = self._refuse([(Reject.TOO_MANY_NODES, 1)]) if put is Put.FULL else None
        return Taken(cluster.name, report.node, lead, partial)

    def take(
        self,
        request: MetricsRequest,
        cluster: str | None,
        now_s: float,
        wall_ns: int,
        address: str | None = None,
    ) -> Taken:
        """Handle one decoded request; `cluster`, from query or header, wins over the resource."""
        found = decode_push(request)
        taken = finish(self._apply(found, cluster, now_s, wall_ns))
        if found.has_measurements:
            self.on_measurements(request, taken.cluster, now_s, address)
        return taken

    def take_large(
        self,
        decoded: DecodedPush,
        cluster: str | None,
        now_s: float,
        wall_ns: int,
        address: str | None,
    ) -> Generator[None, None, Taken]:
        """Do what `take` does, in short steps with pauses in between."""
        taken = yield from self._apply(decoded.push, cluster, now_s, wall_ns)
        for part in decoded.measurements:
            yield
            self.on_measurements(part, taken.cluster, now_s, address)
        return taken

    def _apply(
        self, found: Push, cluster: str | None, now_s: float, wall_ns: int
    ) -> Generator[None, None, Taken]:
        """Store the reports of a request, with a pause after every few."""
        self.counters.tally[Tally.PUSHES] += 1
        rejected = list(found.rejected)
        if cluster is not None and cluster not in self.clusters and problem_with_id(cluster):
            cluster = None  # the body may name a valid one; the sender still gets the rejection
            rejected.append((Reject.IDENTITY_INVALID, 1))
        about = ("", "")
        for number, report in enumerate(found.reports, 1):
            name = self._place(report, cluster)
            about = about if about[0] else (name, report.node)
            reason = self._put(name, report, now_s, wall_ns)
            if reason is not None:
                rejected.append((reason, 1))
            if number % SLICE == 0:
                yield
        partial = self._refuse(rejected) if rejected else None
        return Taken(about[0] or cluster or DEFAULT_CLUSTER, about[1], found.lead, partial)

    def _place(self, report: NodeReport, cluster: str | None) -> str:
        """Return the cluster of a report: the one that the request names, else the report's own."""
        name = cluster or report.cluster
        if name is None:
            self.counters.defaulted += 1
            return DEFAULT_CLUSTER
        if report.cluster is not None and report.cluster != name:
            self.counters.tally[Tally.MISMATCHED] += 1
        return name

    def _put(self, name: str, report: NodeReport, now_s: float, wall_ns: int) -> Reject | None:
        cluster = self.clusters.get(name)
        if cluster is None:
            if len(self.clusters) >= self.max_clusters:
                return Reject.TOO_MANY_CLUSTERS
            cluster = self.clusters[name] = Cluster(name, Roster(self.max_nodes))
        put = self._store(cluster.roster, report, now_s)
        self.counters.puts[put] += 1
        if report.sent_ns and abs(report.sent_ns - wall_ns) > CLOCK_SKEW_NS:
            self.counters.tally[Tally.SKEWED] += 1
        if cluster.served is COLD_START and report.score is not None:
            self._advance(cluster, now_s)  # answers the first score at once, not at the next tick
        return Reject.TOO_MANY_NODES if put is Put.FULL else None

    def put_shared(self, name: str, report: NodeReport, pushes: int, seen_s: float) -> bool:
        """Store a report that any replica received; False where the cluster or Fleet is full."""
        reason = self._put(name, report, seen_s, report.sent_ns)
        if reason is None:
            roster = self.clusters[name].roster
            roster.pushes[roster.rows[report.node]] += max(pushes, 1) - 1
        return reason is None

    def _store(self, roster: Roster, report: NodeReport, now_s: float) -> Put:
        if report.node in roster.rows:
            return roster.put(report, now_s)
        if self.nodes >= max(MAX_NODES, self.max_nodes):
            return Put.FULL
        put = roster.put(report, now_s)
        self.nodes += put is not Put.FULL
        return put

    def _refuse(self, rejected: list[tuple[Reject, int]]) -> PartialSuccess:
        by_reason: Counter[Reject] = Counter()
        for reason, points in rejected:
            by_reason[reason] += points
        self.counters.rejected.update(by_reason)
        message = "; ".join(f"{n} x {_EXPLANATIONS[why]}" for why, n in list(by_reason.items())[:4])
        return PartialSuccess(by_reason.total(), message)

    def tick(self, now_s: float) -> None:
        """Drop old nodes and recompute every threshold; call it every second."""
        finish(self.tick_in_steps(now_s))

    def tick_in_steps(self, now_s: float) -> Generator[None, None, None]:
        """Do what `tick` does, with a pause after each cluster: there may be a thousand."""
        self.counters.ticks += 1
        for name, cluster in list(self.clusters.items()):
            self.counters.forgotten += cluster.roster.forget(now_s, self.policy.ttl_s)
            yield
            if cluster.roster.rows:
                self._advance(cluster, now_s)
            else:
                del self.clusters[name]
            yield
        self.nodes = sum(len(cluster.roster.rows) for cluster in self.clusters.values())

    def _advance(self, cluster: Cluster, now_s: float) -> None:
        ttl_s = self.policy.ttl_s
        cluster.counts = counts = cluster.roster.counts(now_s, ttl_s)
        not_working = counts["idle"] + counts["calibrating"] + counts["unscored"]
        expected = max(self.expected_nodes, len(cluster.roster.rows)) - not_working
        before = cluster.threshold
        cluster.threshold = after = update_threshold(
            before, cluster.roster.active_scores(now_s, ttl_s), max(expected, 0), now_s, self.policy
        )
        self.counters.recomputes += after.ema_at_s != before.ema_at_s
        reason = reason_without_quorum(after, self.policy)
        served = ServedThreshold(after.served or 0.0, after.quorum_met, reason)
        cluster.served = COLD_START if not served.value else served

    def set_limits(self, policy: ThresholdPolicy) -> None:
        """Compare with other limits from now on; scores and smoothed thresholds are kept.

        The push interval and what follows from it stay as they were at the start.
        """
        self.policy = replace(
            policy,
            push_interval_s=self.policy.push_interval_s,
            ttl_multiplier=self.policy.ttl_multiplier,
        )

    def provider_of(self, cluster: str, node: str) -> str | None:
        """Return the provider that a node reported, or that rules assign to it."""
        found = self.clusters.get(cluster)
        row = found.roster.rows.get(node) if found is not None else None
        report = found.roster.reports[row] if found is not None and row is not None else None
        return report.provider if report is not None else None

    def served(self, cluster: str) -> ServedThreshold:
        """Return the threshold of a cluster; a cold start where it is unknown."""
        found = self.clusters.get(cluster)
        return found.served if found else COLD_START
