"""Fleet's own metrics, computed when somebody asks; the same figures go out as OTLP."""

from collections.abc import Callable, Iterable

from ingero.contract.exposition import Family, counter, gauge
from ingero.contract.names import CLUSTER_ID
from ingero.contract.otlp import values as otlp
from ingero.fleet.processor import Cluster, FleetProcessor
from ingero.fleet.receive import Receiver
from ingero.fleet.roster import Put
from ingero.storage.input_log import InputLog

Figure = Callable[[Cluster], float | None]


def _median(cluster: Cluster) -> float | None:
    return cluster.threshold.stats.median if cluster.threshold.stats else None


def _mad(cluster: Cluster) -> float | None:
    return cluster.threshold.stats.mad if cluster.threshold.stats else None


CLUSTER_GAUGES: tuple[tuple[str, str, Figure], ...] = (
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
        "1 if coverage is below its alert line",
        lambda c: float(c.threshold.coverage_low),
    ),
    (
        "ingero_fleet_panic_mode",
        "1 while the whole fleet fell at once",
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


def cluster_families(processor: FleetProcessor) -> list[Family]:
    """One gauge per figure and cluster. A figure that is not known is left out, never zero."""
    clusters = sorted(processor.clusters.items())
    families = [
        gauge(
            name,
            help,
            (
                ((("cluster_id", cluster_id),), value)
                for cluster_id, c in clusters
                if (value := figure(c)) is not None
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
    receiver: Receiver, plaintext_listeners: int, failed_ticks: int, exporters: Iterable[Family]
) -> list[Family]:
    """What the push path counted, and what each exporter did."""
    counters = receiver.processor.counters
    return [
        gauge(
            "ingero_fleet_plaintext_listeners", "Listeners without TLS", [((), plaintext_listeners)]
        ),
        gauge("ingero_fleet_clusters", "Clusters known", [((), len(receiver.processor.clusters))]),
        counter(
            "ingero_fleet_replies_total",
            "Replies by transport and status",
            (
                ((("status", str(status)), ("transport", transport)), count)
                for (transport, status), count in sorted(receiver.reply_counts().items())
            ),
        ),
        counter(
            "ingero_fleet_rejected_points_total",
            "Points refused, by reason",
            (
                ((("reason", str(reason)),), count)
                for reason, count in sorted(counters.rejected.items())
            ),
        ),
        counter(
            "ingero_fleet_reports_total",
            "Node reports by what became of them",
            (((("result", put.name.lower()),), counters.puts[put]) for put in Put),
        ),
        _total("ingero_fleet_pushes_total", "Metrics requests taken", counters.pushes),
        _total(
            "ingero_fleet_cluster_defaulted_total",
            "Reports that named no cluster",
            counters.defaulted,
        ),
        _total(
            "ingero_fleet_cluster_mismatch_total",
            "Reports whose body names another cluster",
            counters.mismatched,
        ),
        _total(
            "ingero_fleet_clock_skewed_total",
            "Reports stamped over a minute off our clock",
            counters.skewed,
        ),
        _total("ingero_fleet_forgotten_nodes_total", "Silent nodes dropped", counters.forgotten),
        _total("ingero_fleet_ticks_total", "Recomputations of what is served", counters.ticks),
        _total(
            "ingero_fleet_failed_ticks_total",
            "Recomputations that failed; see the log",
            failed_ticks,
        ),
        _total(
            "ingero_fleet_recomputes_total", "Steps of the smoothed threshold", counters.recomputes
        ),
        counter(
            "ingero_fleet_received_items_total",
            "Spans and log records taken",
            (((("signal", signal),), count) for signal, count in sorted(receiver.items.items())),
        ),
        *exporters,
    ]


def recording_families(inputs: InputLog | None) -> list[Family]:
    """Of what `ingero replay` reads, where it is kept."""
    if inputs is None:
        return []
    return [
        _total(
            "ingero_fleet_recorded_files_removed_total",
            "Oldest recorded files removed",
            inputs.removed,
        )
    ]


def _total(name: str, help: str, value: int) -> Family:
    return counter(name, help, [((), value)])


def own_series(processor: FleetProcessor, wall_ns: int) -> otlp.MetricsRequest:
    """The gauges of every cluster as one OTLP request, for exporters that forward."""
    resources: dict[str, list[otlp.Metric]] = {}
    for family in cluster_families(processor):
        for _, pairs, value in family.samples:
            cluster, *others = pairs
            point = otlp.NumberPoint(
                attributes=_attributes(others), time_unix_nano=wall_ns, as_double=value
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


def _attributes(pairs: Iterable[tuple[str, str]]) -> tuple[otlp.KeyValue, ...]:
    return otlp.attributes(dict(pairs))
