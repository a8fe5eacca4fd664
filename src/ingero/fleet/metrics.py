"""Fleet's own metrics, computed when they are scraped; the same figures are exported over OTLP."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ingero.contract.exposition import Family, by_label, counter, gauge, total
from ingero.contract.names import CLUSTER_ID
from ingero.contract.otlp import values as otlp
from ingero.fleet.listeners import FleetListeners
from ingero.fleet.processor import Cluster, Counters, FleetProcessor
from ingero.fleet.receive import Receiver
from ingero.fleet.roster import Put
from ingero.storage.input_log import InputLog


def _median(cluster: Cluster) -> float | None:
    return cluster.threshold.stats.median if cluster.threshold.stats else None


def _mad(cluster: Cluster) -> float | None:
    return cluster.threshold.stats.mad if cluster.threshold.stats else None


CLUSTER_GAUGES: tuple[tuple[str, str, Callable[[Cluster], float | None]], ...] = (
    ("ingero_fleet_threshold", "Threshold served to agents", lambda c: c.served.value or None),
    (
        "ingero_fleet_quorum_met",
        "1 if enough nodes are active to compare",
        lambda c: float(c.served.quorum_met),
    ),
    ("ingero_fleet_active_nodes", "Nodes actively reporting", lambda c: c.counts.get("active")),
    ("ingero_fleet_idle_nodes", "Nodes in idle state", lambda c: c.counts.get("idle")),
    (
        "ingero_fleet_calibrating_nodes",
        "Nodes still calibrating",
        lambda c: c.counts.get("calibrating"),
    ),
    (
        "ingero_fleet_silent_nodes",
        "Known nodes that stopped pushing",
        lambda c: c.counts.get("silent"),
    ),
    (
        "ingero_fleet_coverage",
        "Active share of the nodes expected to be active",
        lambda c: c.threshold.coverage,
    ),
    (
        "ingero_fleet_coverage_low",
        "1 if coverage is below its limit",
        lambda c: float(c.threshold.coverage_low),
    ),
    (
        "ingero_fleet_panic_mode",
        "1 while the scores of the whole fleet have dropped at once",
        lambda c: float(c.threshold.panic is not None),
    ),
    ("ingero_fleet_median", "Median score of active nodes", _median),
    ("ingero_fleet_mad", "Median absolute deviation of scores", _mad),
    (
        "ingero_fleet_straggler_count",
        "Active nodes below the threshold",
        lambda c: c.threshold.below,
    ),
)
PUSH_TOTALS: tuple[tuple[str, str, Callable[[Counters], int]], ...] = (
    ("ingero_fleet_pushes_total", "Metrics requests accepted", lambda c: c.pushes),
    (
        "ingero_fleet_cluster_defaulted_total",
        "Reports that named no cluster",
        lambda c: c.defaulted,
    ),
    (
        "ingero_fleet_cluster_mismatch_total",
        "Reports whose body names another cluster",
        lambda c: c.mismatched,
    ),
    (
        "ingero_fleet_clock_skewed_total",
        "Reports whose timestamp is over a minute off Fleet's clock",
        lambda c: c.skewed,
    ),
    ("ingero_fleet_forgotten_nodes_total", "Silent nodes dropped", lambda c: c.forgotten),
    ("ingero_fleet_ticks_total", "Recomputations of what is served", lambda c: c.ticks),
    ("ingero_fleet_recomputes_total", "Steps of the smoothed threshold", lambda c: c.recomputes),
)


def cluster_families(processor: FleetProcessor) -> list[Family]:
    """Return one gauge per figure and cluster; a figure without a value is left out, never zero."""
    clusters = sorted(processor.clusters.items())
    families = [
        gauge(
            name,
            help,
            (
                ((("cluster_id", cluster_id),), value)
                for cluster_id, cluster in clusters
                if (value := figure(cluster)) is not None
            ),
        )
        for name, help, figure in CLUSTER_GAUGES
    ]
    panics = (
        ((("cluster_id", cluster_id), ("reason", str(cluster.threshold.panic))), 1.0)
        for cluster_id, cluster in clusters
        if cluster.threshold.panic is not None
    )
    return [
        *families,
        gauge("ingero_fleet_panic_reason", "Why a cluster is in panic, while it is", panics),
    ]


def service_families(
    receiver: Receiver, listeners: FleetListeners, failed_ticks: int, exporters: Iterable[Family]
) -> list[Family]:
    """Return the counts of the push path and those of each exporter."""
    counters, clusters = receiver.processor.counters, receiver.processor.clusters
    totals = [total(name, help, figure(counters)) for name, help, figure in PUSH_TOTALS]
    replies = (
        ((("status", str(status)), ("transport", transport)), count)
        for (transport, status), count in sorted(receiver.reply_counts().items())
    )
    puts = (((("result", put.name.lower()),), counters.puts[put]) for put in Put)
    rejected = {str(reason): count for reason, count in counters.rejected.items()}
    return [
        gauge(
            "ingero_fleet_plaintext_listeners",
            "Listeners without TLS that other machines can reach",
            [((), len(listeners.plaintext))],
        ),
        gauge(
            "ingero_fleet_unguarded_listeners",
            "Listeners that admit every other machine, without a token or a client certificate",
            [((), len(listeners.unguarded))],
        ),
        total(
            "ingero_fleet_connections_closed_total",
            "HTTP connections closed because too many were open",
            listeners.admission.connections.closed,
        ),
        gauge("ingero_fleet_clusters", "Clusters known", [((), len(clusters))]),
        counter("ingero_fleet_replies_total", "Replies by transport and status", replies),
        by_label(
            "ingero_fleet_rejected_points_total", "Points rejected, by reason", "reason", rejected
        ),
        counter("ingero_fleet_reports_total", "Node reports by how they were handled", puts),
        *totals,
        total(
            "ingero_fleet_failed_ticks_total",
            "Recomputations that failed; see the log",
            failed_ticks,
        ),
        by_label(
            "ingero_fleet_received_items_total",
            "Spans and log records received",
            "signal",
            receiver.items,
        ),
        *exporters,
    ]


def certificate_families(listeners: FleetListeners) -> list[Family]:
    """Return when the certificate of each listener expires; nothing without TLS."""
    files = sorted({str(each.tls.cert_file) for each in listeners.secrets if each.tls is not None})
    if not files:
        return []
    from ingero.transport.certificates import expiry_s  # noqa: PLC0415 - 10 MB, only with TLS

    expiries = [((("file", file),), expiry_s(Path(file))) for file in files]
    return [
        gauge(
            "ingero_fleet_certificate_expiry_timestamp_seconds",
            "Unix time at which a certificate of a listener expires",
            [(labels, at_s) for labels, at_s in expiries if at_s is not None],
        )
    ]


def recording_families(inputs: InputLog | None) -> list[Family]:
    """Return the counts of the recording that `ingero replay` reads; none without a recording."""
    if inputs is None:
        return []
    return [
        total(
            "ingero_fleet_recorded_files_removed_total",
            "Oldest recorded files removed",
            inputs.removed,
        )
    ]


def own_series(
    processor: FleetProcessor, wall_ns: int, more: Sequence[Family] = ()
) -> otlp.MetricsRequest:
    """Return the gauges of every cluster as one OTLP request, for exporters that forward.

    The first label of `more` is the cluster, too.
    """
    resources: dict[str, list[otlp.Metric]] = {}
    for family in (*cluster_families(processor), *more):
        for _, pairs, value in family.samples:
            cluster, *others = pairs
            point = otlp.NumberPoint(
                attributes=otlp.attributes(dict(others)), time_unix_nano=wall_ns, as_double=value
            )
            metric = otlp.Metric(
                name=family.name, description=family.help, gauge=otlp.Gauge(data_points=(point,))
            )
            resources.setdefault(cluster[1], []).append(metric)
    return otlp.MetricsRequest(
        resource_metrics=tuple(
            otlp.ResourceMetrics(
                resource=otlp.Resource(
                    attributes=otlp.attributes(
                        {"service.name": "ingero-fleet", CLUSTER_ID: cluster_id}
                    )
                ),
                scope_metrics=(
                    otlp.ScopeMetrics(
                        scope=otlp.Scope(name="ingero.fleet"), metrics=tuple(metrics)
                    ),
                ),
            )
            for cluster_id, metrics in resources.items()
        )
    )
