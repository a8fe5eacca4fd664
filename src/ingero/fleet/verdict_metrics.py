"""Prometheus metrics of verdicts and lag, computed when they are scraped."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ingero.contract.exposition import Family, Labels, counter, gauge
from ingero.contract.verdict import Verdict
from ingero.fleet.verdicts import VerdictService

if TYPE_CHECKING:
    from ingero.fleet.cluster_verdicts import ClusterVerdicts


ProviderOf = Callable[[str, str], str | None]  # by cluster and node


def no_provider(_cluster: str, _node: str) -> None:
    """Return no provider: for verdicts without a roster of nodes."""


def verdict_families(
    verdicts: VerdictService, provider_of: ProviderOf = no_provider
) -> list[Family]:
    """Return open verdicts, ranks that are judged, and what was received, unused and freed."""
    counters = verdicts.counters
    inputs = {
        "collective": counters.collectives,
        "malformed": counters.malformed,
        "overflow": counters.overflow,
        "own_time": counters.own_times,
        "refused_cluster": counters.refused_clusters,
    }
    return [
        *_open_families(verdicts, provider_of),
        gauge(
            "ingero_fleet_verdict_ranks",
            "Ranks that are judged, that learn a baseline, or that have no repeating steps",
            [
                ((("cluster_id", cluster), ("state", state)), float(count))
                for cluster in sorted(verdicts.clusters)
                for counts in (verdicts.rank_counts(cluster),)
                for state, count in (
                    ("judged", counts.judged),
                    ("learning", counts.learning),
                    ("without_steps", counts.without_steps),
                )
            ],
        ),
        *_lag_families(verdicts, provider_of),
        counter(
            "ingero_fleet_verdict_changes_total",
            "Verdicts that were new or changed",
            [((), counters.verdicts)],
        ),
        counter(
            "ingero_fleet_verdict_inputs_total",
            "Measurements taken or refused, by kind",
            [((("kind", kind),), value) for kind, value in inputs.items()],
        ),
        *_engine_families(verdicts),
    ]


def job_families(verdicts: VerdictService) -> list[Family]:
    """Return which rank of which job runs on which node, to join with the series of others."""
    return [
        gauge(
            "ingero_job_info",
            "1 for each rank that reports",
            [
                (
                    (
                        ("cluster_id", member.cluster),
                        ("gpu_uuid", member.gpu_uuid),
                        ("ingero_job", member.job or ""),
                        ("ingero_pod", member.pod),
                        ("node_id", member.node),
                        ("rank", "" if member.rank is None else str(member.rank)),
                    ),
                    1.0,
                )
                for _, cluster in sorted(verdicts.clusters.items())
                for member in map(cluster.engine.registry.members.__getitem__, sorted(cluster.keys))
            ],
        )
    ]


def _open_families(verdicts: VerdictService, provider_of: ProviderOf) -> list[Family]:
    found = [
        (_labels(cluster, verdict, provider_of(cluster, verdict.node)), verdict)
        for cluster, verdict in verdicts.open_verdicts()
    ]
    return [
        gauge(
            "ingero_fleet_verdict",
            "1 for every open verdict",
            [(labels, 1.0) for labels, _ in found],
        ),
        gauge(
            "ingero_fleet_verdict_loss_ratio",
            "What the job loses by it, as a share of its slow step",
            [(labels, v.loss) for labels, v in found if v.loss is not None],
        ),
        gauge(
            "ingero_fleet_verdict_excess_ratio",
            "Own time above the peers, as a share",
            [(labels, v.excess) for labels, v in found if v.excess is not None],
        ),
        gauge(
            "ingero_fleet_verdict_cost_usd_per_hour",
            "What the whole job loses by it, as money",
            [(labels, v.usd_per_hour) for labels, v in found if v.usd_per_hour is not None],
        ),
    ]


def _engine_families(verdicts: VerdictService) -> list[Family]:
    """Return what no verdict could use, and what the engines freed."""
    clusters = sorted(verdicts.clusters.items())
    return [
        counter(
            "ingero_fleet_verdict_unused_total",
            "Measurements that no verdict could use, by reason",
            [
                ((("cluster_id", name), ("reason", reason)), value)
                for name, cluster in clusters
                for reason, value in _unused(cluster).items()
            ],
        ),
        counter(
            "ingero_fleet_verdict_freed_total",
            "What was freed because it did not report for an hour, by kind",
            [
                ((("cluster_id", name), ("kind", kind)), value)
                for name, cluster in clusters
                for kind, value in (
                    ("cohort", cluster.engine.counters.freed_cohorts),
                    ("rank", cluster.engine.counters.freed_members),
                )
            ],
        ),
    ]


def _unused(cluster: "ClusterVerdicts") -> dict[str, int]:
    return {
        "evicted_collective": cluster.matcher.evicted_groups,
        "evicted_communicator": cluster.matcher.evicted_comms,
        "dropped_advance": cluster.advances.dropped + cluster.closed.dropped,
        "repeated": cluster.engine.frames.duplicates,
        "thin_step": cluster.engine.counters.too_late,
        "refused_member": cluster.engine.counters.refused_members,
        "too_few_peers": cluster.engine.counters.too_few_peers,
    }


def _lag_families(verdicts: VerdictService, provider_of: ProviderOf) -> list[Family]:
    lags: list[tuple[Labels, float]] = []
    lateness: list[tuple[Labels, float]] = []
    for name, cluster in sorted(verdicts.clusters.items()):
        for measured, scale, rows in (
            (cluster.peer_lag_ms, 1.0, lags),
            (cluster.lateness_s, 1e3, lateness),
        ):
            for index, value in sorted(measured.items()):
                member = cluster.engine.registry.members[index]
                rank = "" if member.rank is None else str(member.rank)
                labels = (
                    ("cluster_id", name),
                    *_provider(provider_of(name, member.node)),
                    ("node_id", member.node),
                    ("rank", rank),
                )
                rows.append((labels, value * scale))
    return [
        gauge(
            "nccl_collective_peer_lag_ms",
            "Recent duration of a rank's collectives minus the peers' median",
            lags,
        ),
        gauge(
            "ingero_collective_lateness_ms",
            "How late a rank arrived at its recent collectives",
            lateness,
        ),
        counter(
            "ingero_fleet_barrier_idle_gpu_seconds_total",
            "Time that ranks waited at collectives for the last one; seconds of all ranks added",
            [
                ((("cluster_id", name),), cluster.idle_gpu_s)
                for name, cluster in sorted(verdicts.clusters.items())
            ],
        ),
    ]


def _provider(provider: str | None) -> Labels:
    return (("ingero_provider", provider),) if provider else ()


def _labels(cluster: str, verdict: Verdict, provider: str | None) -> Labels:
    return (
        ("class", str(verdict.cause_class)),
        ("cluster_id", cluster),
        *((("engine", verdict.engine),) if verdict.engine else ()),
        ("episode", verdict.episode),
        ("ingero_job", verdict.job or ""),  # Prometheus owns the label `job`
        *_provider(provider),
        ("node_id", verdict.node),
        ("rank", "" if verdict.rank is None else str(verdict.rank)),
        *((("silenced", "true"),) if verdict.silenced else ()),
        ("state", str(verdict.state)),
    )
