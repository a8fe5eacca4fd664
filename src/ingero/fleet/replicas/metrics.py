"""Metrics of a replica; those of a Fleet alone say what it received."""

from typing import TYPE_CHECKING

from ingero.contract.exposition import Family, by_label, gauge, total
from ingero.fleet.processor import FleetProcessor

if TYPE_CHECKING:
    from ingero.fleet.replicas.replica import Replica


def replica_families(
    intake: FleetProcessor, replica: "Replica | None", now_s: float
) -> list[Family]:
    """Return how many nodes push to this process, and how it stands with its log."""
    received = gauge(
        "ingero_fleet_received_nodes",
        "Nodes that push to this replica; summed over replicas, all nodes that push",
        (
            (
                (("cluster_id", name),),
                float((cluster.roster.seen_s >= now_s - intake.policy.ttl_s).sum()),
            )
            for name, cluster in sorted(intake.clusters.items())
        ),
    )
    if replica is None:
        return [received]
    counters, agreement = replica.counters, replica.shared.agreement
    return [
        received,
        _one("ingero_fleet_log_up", "1 while the cluster log is reached", not replica.is_away),
        _one("ingero_fleet_log_lag_seconds", "Age of the last entry applied", replica.lag_s),
        _one("ingero_fleet_replica_ready", "1 while this replica takes pushes", replica.is_ready),
        _one(
            "ingero_fleet_replicas",
            "Replicas that take part, as this one knows them",
            len(agreement.alive(replica.shared.at_s)),
        ),
        total(
            "ingero_fleet_log_digest_mismatches_total",
            "Times that this replica's state differed from the others' and was replaced",
            agreement.mismatches,
        ),
        total("ingero_fleet_log_entries_total", "Entries applied", counters.applied),
        total("ingero_fleet_log_appended_bytes_total", "Bytes appended", counters.appended_bytes),
        total("ingero_fleet_log_failures_total", "Calls that failed", counters.failures),
        total("ingero_fleet_log_missed_total", "Gaps found in the log", counters.missed),
        total("ingero_fleet_log_snapshots_total", "Snapshots stored", counters.snapshots),
        by_label(
            "ingero_fleet_log_dropped_total",
            "What was not appended or not applied, by reason",
            "reason",
            {
                "measurements": replica.outbox.dropped,
                "malformed": replica.shared.malformed,
                "records": replica.shared.dropped_records,
            },
        ),
    ]


def _one(name: str, help: str, value: float) -> Family:
    return gauge(name, help, [((), float(value))])
