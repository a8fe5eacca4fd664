"""Prometheus metrics about causes: the kind found for each open verdict, asks and answers."""

from ingero.contract.exposition import Family, counter, gauge
from ingero.fleet.verdicts import VerdictService


def cause_families(verdicts: VerdictService) -> list[Family]:
    """Return the kinds of causes of open verdicts, and what was asked and answered."""
    causes, counters = verdicts.causes, verdicts.causes.counters
    return [
        gauge(
            "ingero_fleet_verdict_cause",
            "1 for the kind of cause found for an open verdict",
            [
                (
                    (
                        ("cause", str(kind)),
                        ("cluster_id", cluster),
                        ("episode", verdict.episode),
                        ("node_id", verdict.node),
                    ),
                    1.0,
                )
                for cluster, verdict in verdicts.open_verdicts()
                if (kind := causes.kind_of(cluster, verdict.episode)) is not None
            ],
        ),
        counter(
            "ingero_fleet_cause_asks_total",
            "Questions to agents about why a rank is slow",
            [((), counters.asks)],
        ),
        counter(
            "ingero_fleet_cause_answers_total",
            "Answers of agents, by kind of cause",
            [((("cause", str(kind)),), value) for kind, value in sorted(counters.findings.items())],
        ),
        counter(
            "ingero_fleet_cause_inputs_total",
            "Signals of ranks taken, ranks dropped for room, and answers that nobody asked for",
            [
                ((("kind", kind),), value)
                for kind, value in (
                    ("dropped_rank", counters.dropped_ranks),
                    ("refused_answer", counters.refused),
                    ("signal", counters.signals),
                )
            ],
        ),
    ]
