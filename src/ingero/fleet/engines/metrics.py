"""Metrics about inference engines: how many replicas report, and which reports were refused."""

from ingero.contract.exposition import Family, counter, gauge
from ingero.fleet.engines.book import EngineBook


def engine_families(engines: EngineBook) -> list[Family]:
    """Return the replicas by cluster, kind and model, and what was received."""
    counts: dict[tuple[str, str, str], int] = {}
    for cluster, judge in engines.judges.items():
        for replica in judge.replicas():
            key = (cluster, str(replica.engine.kind), replica.engine.model)
            counts[key] = counts.get(key, 0) + 1
    inputs = {
        "dropped": sum(judge.dropped for judge in engines.judges.values()),
        "refused": engines.refused,
        "taken": engines.reports,
    }
    return [
        gauge(
            "ingero_fleet_engine_replicas",
            "Inference engines that report, by model; a data-parallel rank counts as one",
            [
                ((("cluster_id", cluster), ("engine", kind), ("model", model)), float(count))
                for (cluster, kind, model), count in sorted(counts.items())
            ],
        ),
        counter(
            "ingero_fleet_engine_reports_total",
            "Reports of inference engines, by what became of them",
            [((("outcome", outcome),), value) for outcome, value in inputs.items()],
        ),
    ]
