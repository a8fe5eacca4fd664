"""Everything that is known about one rank or node, as lines of a terminal."""

import re
import time
from typing import Final

from ingero.cli.show.verdicts import ago, loss_text, state_word
from ingero.cli.top.state import plain_state
from ingero.contract.live import LiveEpisode, LiveSnapshot
from ingero.contract.verdict import Verdict
from ingero.core.live.headline import who

_COMMAND: Final = re.compile(r"`([^`]+)`")


def find_verdict(view: LiveSnapshot, node: str, rank: int | None) -> Verdict | None:
    """Return the verdict about a rank or node: the open one, else the last."""
    mine = [v for v in view.verdicts if v.node == node and rank in (None, v.rank)]
    if not mine:
        mine = [
            e.verdict for e in view.episodes if (e.verdict.node, e.verdict.rank) == (node, rank)
        ]
    return max(mine, key=lambda v: (v.state != "resolved", v.since), default=None)


def next_command(verdict: Verdict, same_fleet: str) -> str:
    """Return the command of the next step; it stands between backquotes there.

    `same_fleet` are the options that a command needs to ask the Fleet that is shown.
    """
    found = _COMMAND.search(verdict.next_step)
    return found[1] if found else f"ingero replay {verdict.episode}{same_fleet}"


def evidence_lines(
    view: LiveSnapshot, verdict: Verdict, at: float, url: str, same_fleet: str
) -> list[tuple[str, str]]:
    """Return name and text of each line about a verdict; an empty name continues the last."""
    price = verdict.usd_per_hour
    episode = next((e for e in view.episodes if e.verdict.episode == verdict.episode), None)
    lines = [
        ("who", who(verdict) + (f", job {verdict.job}" if verdict.job else "")),
        ("state", f"{state_word(verdict)} for {ago(max(at - verdict.since, 0.0))}"),
        ("class", str(verdict.cause_class)),
        ("cause", verdict.cause),
        ("collective", verdict.collective),
        ("link", verdict.link),
        ("job loses", loss_text(verdict)),
        ("price", "" if price is None else f"{'at most ' * verdict.at_most}${price:,.2f} an hour"),
        ("so far", f"${episode.cost_usd:,.2f}" if episode and episode.cost_usd else ""),
        ("evidence", verdict.evidence),
        ("silenced", verdict.silenced),
        ("next", verdict.next_step),
        ("command", next_command(verdict, same_fleet)),
        ("page", f"{url}/episode/{verdict.episode}"),
    ]
    return [line for line in lines if line[1]] + (_timeline(episode) if episode else [])


def _timeline(episode: LiveEpisode) -> list[tuple[str, str]]:
    rows = [
        (
            time.strftime("%H:%M:%S", time.localtime(change.at)),
            plain_state(change.state),
            change.evidence,
        )
        for change in episode.changes
    ]
    return [
        ("history" if at == 0 else "", f"{clock} {state}  {evidence}".rstrip())
        for at, (clock, state, evidence) in enumerate(rows)
    ]
