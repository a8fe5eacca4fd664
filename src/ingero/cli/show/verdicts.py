"""Verdicts on a screen: who, why, by how much, since when, at what price, and what to do."""

from collections.abc import Sequence
from typing import Any

from ingero.cli.show.table import printable, render_table

_ORDER = ("straggler", "fleet_event", "not_sure", "suspect", "recovering", "resolved")
_SAID = {"straggler": "SLOW", "fleet_event": "ALL SLOW", "not_sure": "not sure"}


def verdict_table(verdicts: Sequence[dict[str, Any]], now_s: float) -> str:
    """One row per verdict, worst first; below, the evidence and the next step of those that matter."""
    ordered = sorted(
        verdicts, key=lambda v: (_ORDER.index(v["state"]), v.get("node", ""), v.get("rank") or 0)
    )
    table = render_table(
        ("node", "rank", "state", "class", "excess", "since", "cost at most", "episode", ""),
        [_row(verdict, now_s) for verdict in ordered],
    )
    return "\n".join([table, *(line for verdict in ordered for line in _why(verdict))])


def _row(verdict: dict[str, Any], now_s: float) -> tuple[str, ...]:
    rank, price = verdict.get("rank"), verdict.get("usd_per_hour")
    return (
        verdict.get("node") or "all",
        "" if rank is None else str(rank),
        _SAID.get(verdict["state"], verdict["state"]),
        verdict.get("class", "unknown"),
        excess_text(verdict),
        f"{ago(max(now_s - verdict['since'], 0.0))}",
        "" if price is None else f"${price:,.2f}/h",
        verdict["episode"],
        f"silenced {verdict['silenced']}" if verdict.get("silenced") else "",
    )


def excess_text(verdict: dict[str, Any]) -> str:
    """`+5.1 % ±0.4 %`, with the period of stalls."""
    excess, error, period = (verdict.get(key) for key in ("excess", "error", "period"))
    if excess is None:
        return ""
    text = f"{excess:+.1%}" + (f" ±{error:.1%}" if error is not None else "")
    return f"{text} every {period} steps" if period else text


def _why(verdict: dict[str, Any]) -> list[str]:
    if verdict["state"] in ("resolved", "recovering", "suspect"):
        return []
    rank = verdict.get("rank")
    who = f"rank {rank}" if rank is not None else verdict.get("node") or "all"
    lines = [f"  {who}: {printable(verdict['evidence'])}"] if verdict.get("evidence") else []
    return lines + ([f"    next: {printable(verdict['next'])}"] if verdict.get("next") else [])


def ago(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
