"""A verdict as fields of a log record."""

from ingero.contract.timestamps import rfc3339_ns
from ingero.contract.verdict import Verdict


def verdict_facts(verdict: Verdict) -> dict[str, object]:
    """A verdict of Fleet's as fields of a log line; what it does not know is left out."""
    facts = {
        "state": verdict.state.value,
        "node": verdict.node,
        "rank": verdict.rank,
        "class": verdict.cause.value,
        "excess": verdict.excess,
        "error": verdict.error,
        "since": rfc3339_ns(round(verdict.since * 1e3) * 10**6),
        "episode": verdict.episode,
        "evidence": verdict.evidence,
        "next": verdict.next_step,
    }
    return {key: value for key, value in facts.items() if value not in (None, "")}
