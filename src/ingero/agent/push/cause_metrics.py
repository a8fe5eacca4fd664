"""Metrics about causes: signals of ranks that were sent, asks of Fleet, and looks."""

from ingero.agent.causes.watch import CauseWatch
from ingero.contract.exposition import Family, counter, total


def cause_families(watch: CauseWatch | None) -> list[Family]:
    """Return the metrics; none where looking for causes is switched off."""
    if watch is None:
        return []
    counters = watch.counters
    asks = {
        "taken": counters.asks,
        "refused": counters.refused_asks,
        "found": counters.found,
        "failed": counters.failed,
    }
    return [
        total(
            "ingero_agent_rank_signals_total", "Signals of ranks that were read", counters.signals
        ),
        counter(
            "ingero_agent_cause_asks_total",
            "Asks of Fleet about slow ranks, by what became of them",
            [((("outcome", outcome),), value) for outcome, value in asks.items()],
        ),
        total(
            "ingero_agent_cause_look_seconds_total",
            "Seconds during which slow ranks were looked at",
            counters.look_seconds,
        ),
    ]
