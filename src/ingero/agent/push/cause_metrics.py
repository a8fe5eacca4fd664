"""Metrics about causes: signals of ranks that were sent, asks of Fleet, looks, and chains."""

from ingero.agent.causes.watch import CauseWatch
from ingero.agent.push.chains import ChainReports
from ingero.contract.exposition import Family, by_label, counter, total


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


def chain_families(reports: ChainReports | None) -> list[Family]:
    """Return the metrics; none where no chains are sent."""
    if reports is None:
        return []
    counters = reports.counters
    return [
        total("ingero_agent_chains_sent_total", "Causal chains that Fleet accepted", counters.sent),
        by_label(
            "ingero_agent_chain_pushes_total",
            "Pushes of causal chains by outcome",
            "outcome",
            counters.pushes,
        ),
        total(
            "ingero_agent_chain_failed_reads_total",
            "Reads of causal chains that failed",
            counters.failed_reads,
        ),
    ]
