"""The table of verdicts: who, what the job loses, since when, the price, why, and what next."""

from collections.abc import Sequence

from ingero.cli.show.table import printable, render_table
from ingero.cli.show.wrap import on_screen
from ingero.contract.verdict import CauseClass, Verdict, VerdictState

_ORDER = (
    VerdictState.STRAGGLER,
    VerdictState.FLEET_EVENT,
    VerdictState.OVERLOADED,
    VerdictState.NOT_SURE,
    VerdictState.SUSPECT,
    VerdictState.RECOVERING,
    VerdictState.LATE,
    VerdictState.RESOLVED,
)
_WORDS = {
    VerdictState.STRAGGLER: "SLOW",
    VerdictState.FLEET_EVENT: "ALL SLOW",
    VerdictState.NOT_SURE: "not sure",
}
_STALLED = "STALLED"  # an inference engine that hangs
_INDENT = " " * 6


def verdict_table(verdicts: Sequence[Verdict], now_s: float) -> str:
    """Return one row per verdict, worst first, then evidence and next step of those that matter."""
    ordered = sorted(verdicts, key=lambda v: (_ORDER.index(v.state), v.node, v.rank or 0))
    table = render_table(
        ("node", "rank", "state", "class", "job loses", "since", "cost", "episode", ""),
        [_row(verdict, now_s) for verdict in ordered],
    )
    return "\n".join([table, *(line for verdict in ordered for line in _why(verdict))])


def _row(verdict: Verdict, now_s: float) -> tuple[str, ...]:
    price = verdict.usd_per_hour
    return (
        verdict.node or verdict.shared or "all",
        "" if verdict.rank is None else str(verdict.rank),
        state_word(verdict),
        verdict.cause_class,
        loss_text(verdict),
        ago(max(now_s - verdict.since, 0.0)),
        "" if price is None else f"{'≤ ' if verdict.at_most else ''}${price:,.2f}/h",
        verdict.episode,
        f"silenced {verdict.silenced}" if verdict.silenced else "",
    )


def _is_muted(verdict: Verdict) -> bool:
    """Whether somebody is blamed, and an operator knows."""
    return verdict.state is VerdictState.STRAGGLER and bool(verdict.silenced)


def state_word(verdict: Verdict) -> str:
    """Return how the state of a verdict is shown."""
    if _is_muted(verdict):
        return "silenced"
    is_hung = verdict.engine and verdict.cause_class is CauseClass.HANG
    if is_hung and verdict.state is VerdictState.STRAGGLER:
        return _STALLED
    return _WORDS.get(verdict.state, verdict.state)


def loss_text(verdict: Verdict) -> str:
    """Return `5.1% ±0.4%`, `≤ 8.0%` for an upper bound, and the period of stalls."""
    period = f", every {verdict.period} steps" if verdict.period else ""
    if verdict.state is VerdictState.LATE:
        return f"nothing{period}"
    if verdict.loss is None:
        return period.removeprefix(", ")
    if verdict.at_most:
        return f"≤ {verdict.loss:.1%}{period}"
    error = f" ±{verdict.loss_error:.1%}" if verdict.loss_error is not None else ""
    return f"{verdict.loss:.1%}{error}{period}"


def _why(verdict: Verdict) -> list[str]:
    if verdict.state in (VerdictState.RESOLVED, VerdictState.RECOVERING, VerdictState.SUSPECT):
        return []
    who = f"rank {verdict.rank}" if verdict.rank is not None else verdict.node or "all"
    if verdict.engine:
        rank = f", rank {verdict.rank}" if verdict.rank is not None else ""
        who = printable(f"{verdict.node}, {verdict.job or 'an engine'}, {verdict.engine}{rank}")
    at = f"waited for at {verdict.collective}" if verdict.collective else ""
    where = f"link {verdict.link}" if verdict.link else ""
    reasons = [text for text in (verdict.cause, at, where, verdict.evidence) if text]
    lines = [on_screen(f"  {who}: {printable(text)}", _INDENT) for text in reasons]
    if verdict.next_step:
        lines.append(on_screen(f"    next: {printable(verdict.next_step)}", _INDENT))
    return lines


def ago(seconds: float) -> str:
    """Return a duration with one unit: `12 s`, `5 min`, `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
