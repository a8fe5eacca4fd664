"""Verdicts and lag as Prometheus reads them, computed when somebody asks."""

from ingero.contract.exposition import Family, Labels, counter, gauge
from ingero.contract.verdict import Verdict
from ingero.fleet.verdicts import VerdictDesk


def verdict_families(desk: VerdictDesk) -> list[Family]:
    """Open verdicts, who is judged, what was taken in and what was not used."""
    told = [(_labels(cluster, verdict), verdict) for cluster, verdict in desk.open_verdicts()]
    counters = desk.counters
    inputs = {
        "collective": counters.collectives,
        "malformed": counters.malformed,
        "overflow": counters.overflow,
        "own_time": counters.own_times,
        "refused_cluster": counters.refused_clusters,
    }
    return [
        gauge(
            "ingero_fleet_verdict",
            "1 for every open verdict",
            [(labels, 1.0) for labels, _ in told],
        ),
        gauge(
            "ingero_fleet_verdict_excess_ratio",
            "Own time above the peers, as a share",
            [(labels, v.excess) for labels, v in told if v.excess is not None],
        ),
        gauge(
            "ingero_fleet_verdict_cost_usd_per_hour",
            "What the slow rank costs the whole job, at most",
            [(labels, v.usd_per_hour) for labels, v in told if v.usd_per_hour is not None],
        ),
        gauge(
            "ingero_fleet_verdict_ranks",
            "Ranks whose own times are judged, or still learnt",
            [
                ((("cluster_id", cluster), ("state", state)), float(count))
                for cluster in sorted(desk.clusters)
                for state, count in desk.watched(cluster).items()
            ],
        ),
        *_lag_families(desk),
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
        *_book_families(desk),
    ]


def _book_families(desk: VerdictDesk) -> list[Family]:
    """What no verdict could use, and what was freed."""
    return [
        counter(
            "ingero_fleet_verdict_unused_total",
            "Measurements that no verdict could use, by reason",
            [
                ((("cluster_id", cluster), ("reason", reason)), value)
                for cluster in sorted(desk.clusters)
                for reason, value in _unused(desk, cluster).items()
            ],
        ),
        counter(
            "ingero_fleet_verdict_freed_total",
            "What was freed because nobody heard of it for an hour, by kind",
            [
                ((("cluster_id", cluster), ("kind", kind)), value)
                for cluster, each in sorted(desk.clusters.items())
                for kind, value in (
                    ("cohort", each.engine.counters.freed_cohorts),
                    ("rank", each.engine.counters.freed_members),
                )
            ],
        ),
    ]


def _unused(desk: VerdictDesk, cluster: str) -> dict[str, int]:
    found = desk.clusters[cluster]
    return {
        "evicted_collective": found.matcher.evicted_groups,
        "evicted_communicator": found.matcher.evicted_comms,
        "repeated": found.engine.frames.duplicates,
        "thin_step": found.engine.frames.thin,
        "refused_member": found.engine.counters.refused_members,
        "too_few_peers": found.engine.counters.too_few_peers,
    }


def _lag_families(desk: VerdictDesk) -> list[Family]:
    def rows(kind: str, scale: float) -> list[tuple[Labels, float]]:
        found: list[tuple[Labels, float]] = []
        for cluster, each in sorted(desk.clusters.items()):
            for index, value in sorted(getattr(each, kind).items()):
                member = each.engine.state.members[index]
                rank = "" if member.rank is None else str(member.rank)
                found.append(
                    (
                        (("cluster_id", cluster), ("node_id", member.node), ("rank", rank)),
                        value * scale,
                    )
                )
        return found

    return [
        gauge(
            "nccl_collective_peer_lag_ms",
            "Own duration minus the peers' median, lately",
            rows("peer_lag_ms", 1),
        ),
        gauge(
            "ingero_collective_lateness_ms", "How late a rank came lately", rows("lateness_s", 1e3)
        ),
    ]


def _labels(cluster: str, verdict: Verdict) -> Labels:
    return (
        ("class", str(verdict.cause)),
        ("cluster_id", cluster),
        ("episode", verdict.episode),
        ("job", verdict.job or ""),
        ("node_id", verdict.node),
        ("rank", "" if verdict.rank is None else str(verdict.rank)),
        *((("silenced", "true"),) if verdict.silenced else ()),
        ("state", str(verdict.state)),
    )
