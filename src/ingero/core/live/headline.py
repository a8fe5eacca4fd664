"""The one sentence about a cluster: who is slow, or that nobody is, or why nobody can tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ingero.contract.live import Headline
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.counted import counted

MAX_NAMED: Final = 3  # nodes in one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What the sentence is made of, besides the verdicts."""

    slow_nodes: Sequence[tuple[str, float | None]]  # name and score, not silenced
    silenced_nodes: Sequence[str]  # slow ones
    threshold: float | None
    doubt: str  # why nobody can tell; empty where one can
    unjudged_ranks: int = 0  # ranks with a baseline still to learn, while no rank has one


def make_headline(verdicts: Sequence[Verdict], facts: ClusterFacts) -> Headline:
    """Return the sentence about a cluster, from its open verdicts and what its nodes report."""
    slow = [v for v in verdicts if v.state is VerdictState.STRAGGLER]
    loud = sorted((v for v in slow if not v.silenced), key=_weight)
    if loud:
        return _about("slow", loud[0], _slow_text(loud[0], len(loud) - 1))
    events = [v for v in verdicts if v.state is VerdictState.FLEET_EVENT and not v.silenced]
    if events:
        return _about("fleet_event", events[0], _event_text(events[0]))
    if facts.slow_nodes:
        return Headline(kind="slow", text=_nodes_text(facts.slow_nodes, facts.threshold))
    unsure = [v for v in verdicts if v.state is VerdictState.NOT_SURE and not v.silenced]
    if unsure:
        return _about("not_sure", unsure[0], _unsure_text(unsure[0]))
    if facts.doubt:
        return Headline(kind="not_sure", text=f"Not sure who is slow, because {facts.doubt}.")
    hushed = [*(who(v) for v in slow), *facts.silenced_nodes]
    if hushed:
        text = f"Nobody else is slow; silenced: {_listed(hushed)}."
        return Headline(kind="silenced", text=text)
    suspects = [v for v in verdicts if v.state is VerdictState.SUSPECT and not v.silenced]
    if suspects:
        named = _listed([who(v) for v in suspects])
        return _about("suspect", suspects[0], f"Nobody is slow; suspected: {named}.")
    if facts.unjudged_ranks:
        return Headline(
            kind="calm", text=f"No node is slow; {unjudged_text(facts.unjudged_ranks)}."
        )
    return Headline(kind="calm", text="Nobody is slow.")


def unjudged_text(ranks: int) -> str:
    """Return why nothing can be said about these ranks yet."""
    return f"what is normal for {counted(ranks, 'rank')} is still being learned"


def who(verdict: Verdict) -> str:
    """Return whom a verdict is about, such as `rank 11 on gpu-07`."""
    if verdict.engine:
        rank = f", rank {verdict.rank}" if verdict.rank is not None else ""
        return f"{verdict.job or 'an engine'} on {verdict.node} ({verdict.engine}{rank})"
    if verdict.rank is not None and verdict.node:
        return f"rank {verdict.rank} on {verdict.node}"
    return verdict.node or verdict.shared or "the whole job"


def loss_text(verdict: Verdict) -> str:
    """Return what the job loses, such as `5.1% ±0.4%`; empty where it is not known."""
    if verdict.loss is None:
        return ""
    if verdict.at_most:
        return f"at most {verdict.loss:.1%}"
    error = f" ±{verdict.loss_error:.1%}" if verdict.loss_error is not None else ""
    return f"{verdict.loss:.1%}{error}"


def _about(kind: str, verdict: Verdict, text: str) -> Headline:
    return Headline(
        kind=kind,
        text=text,
        episode=verdict.episode,
        since=verdict.since,
        next_step=verdict.next_step,
    )


def _weight(verdict: Verdict) -> tuple[float, float, float]:
    return (-(verdict.usd_per_hour or 0.0), -(verdict.loss or 0.0), verdict.since)


def _slow_text(verdict: Verdict, others: int) -> str:
    if verdict.engine and verdict.cause_class is CauseClass.HANG:
        where = f"; {verdict.cause}" if verdict.cause else ""
        return f"{who(verdict)} is stalled: {verdict.evidence}{where}.{_more(others)}"
    job = f"job {verdict.job}" if verdict.job else "its job"
    parts = [f"{who(verdict)} is slow"]
    if loss := loss_text(verdict):
        price = f", ${verdict.usd_per_hour:,.2f} an hour" if verdict.usd_per_hour else ""
        parts.append(f"{'it' if verdict.engine else job} loses {loss}{price}")
    elif verdict.job and not verdict.engine:
        parts[0] += f" in {job}"
    if verdict.cause:
        parts.append(verdict.cause)
    elif verdict.cause_class is not CauseClass.UNKNOWN:
        parts[0] += f" ({verdict.cause_class})"
    return f"{_capital('; '.join(parts))}.{_more(others)}"


def _more(others: int) -> str:
    return f" {others} more {'are' if others > 1 else 'is'} slow, too." if others else ""


def _event_text(verdict: Verdict) -> str:
    job = f" in job {verdict.job}" if verdict.job else ""
    found = f": {verdict.evidence}" if verdict.evidence else ""
    return f"Nobody alone is to blame{job}{found}."


def _nodes_text(nodes: Sequence[tuple[str, float | None]], threshold: float | None) -> str:
    verb = "is" if len(nodes) == 1 else "are"
    text = f"{_listed([name for name, _ in nodes])} {verb} slow"
    score = nodes[0][1]
    if len(nodes) == 1 and score is not None:
        than = f", below the threshold of {threshold:.2f}" if threshold else ""
        text += f": its health score is {score:.2f}{than}"
    return f"{_capital(text)}."


def _unsure_text(verdict: Verdict) -> str:
    why = verdict.cause or verdict.evidence or "the evidence is not clear"
    return f"Not sure about {who(verdict)}: {why}."


def _listed(found: Sequence[str]) -> str:
    more = len(found) - MAX_NAMED
    return ", ".join(found[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _capital(text: str) -> str:
    """Return a sentence that begins with a capital, unless it begins with the name of a node."""
    return text[:1].upper() + text[1:] if text.startswith(("rank ", "the ")) else text
