"""A report of one episode: one HTML file without scripts, to send to somebody who was not there."""

import datetime
import html
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version

import msgspec

from ingero.cli.show.verdicts import ago, loss_text
from ingero.contract.episodes.episode import Episode
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.counted import counted

_COLOURS = {
    VerdictState.SUSPECT: "#b8860b", VerdictState.STRAGGLER: "#c62828",
    VerdictState.LATE: "#8d6e63", VerdictState.RECOVERING: "#2e7d32",
    VerdictState.RESOLVED: "#607d8b", VerdictState.FLEET_EVENT: "#6a1b9a",
    VerdictState.NOT_SURE: "#616161", VerdictState.OVERLOADED: "#ef6c00",
}  # fmt: skip
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid #8884; }
.wide { overflow-x: auto; } svg text { fill: currentColor; font-size: 12px; }
"""
WIDTH, HEIGHT = 900, 60


def report_page(episode: Episode) -> str:
    """Return the whole page; names in it are text, whatever they contain."""
    parts = [
        f"<h1>{_text(_sentence(episode))}</h1>",
        _facts(episode),
        "<h2>Timeline (UTC)</h2>", _drawing(episode), _timeline(episode),
        "<h2>Why nobody else was blamed</h2>", _peers(episode),
        "<h2>Who was told</h2>", _alerts(episode),
        "<h2>Versions</h2>",
        f"<p>Written by ingero {_text(version('ingero'))}. "
        f"<code>ingero replay {_text(episode.episode)}</code> repeats the decision from the kept "
        "inputs, byte for byte.</p>",
    ]  # fmt: skip
    title = f"Episode {_text(episode.episode)}"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def redacted(episode: Episode) -> Episode:
    """Return the episode with `node-1`, `job-1` and so on in place of names, also within texts."""
    verdicts = [moment.verdict for moment in episode.verdicts] + [episode.latest]
    nodes = [verdict.node for verdict in verdicts] + [peer.node for peer in episode.peers]
    jobs = [verdict.job or "" for verdict in verdicts]
    names = {
        **{name: f"cluster-{n}" for n, name in _numbered([episode.cluster])},
        **{name: f"job-{n}" for n, name in _numbered(jobs)},
        **{name: f"node-{n}" for n, name in _numbered(nodes)},
    }
    ordered = sorted(names, key=lambda name: -len(name))  # `n12` before `n1`
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in ordered))
    plain = _replace(msgspec.to_builtins(episode), pattern, names)
    return msgspec.convert(plain, Episode)


def _numbered(names: Iterable[str]) -> list[tuple[int, str]]:
    return list(enumerate(dict.fromkeys(name for name in names if name), 1))


def _replace(value: object, pattern: re.Pattern[str], names: dict[str, str]) -> object:
    if isinstance(value, dict):
        kept = ("episode", "state", "class")  # no names of theirs
        return {k: v if k in kept else _replace(v, pattern, names) for k, v in value.items()}
    if isinstance(value, list):
        return [_replace(each, pattern, names) for each in value]
    if isinstance(value, str):
        return pattern.sub(lambda found: names[found[0]], value)
    return value


def _sentence(episode: Episode) -> str:
    verdict = _worst(episode)
    rank = "" if verdict.rank is None else f" rank {verdict.rank}"
    job = f" of job {verdict.job}" if verdict.job else ""
    who = f"{verdict.node or 'Many members'}{rank}{job}"
    loss = loss_text(verdict)
    tail = f"; the job lost {loss}" if loss and verdict.loss is not None else ""
    return f"{who}: {verdict.state} ({verdict.cause_class}){tail}"


def _worst(episode: Episode) -> Verdict:
    """Return the last verdict that blamed somebody or named an event, else the latest one."""
    blamed = (VerdictState.STRAGGLER, VerdictState.FLEET_EVENT)
    found = [moment.verdict for moment in episode.verdicts if moment.verdict.state in blamed]
    return found[-1] if found else episode.latest


def _facts(episode: Episode) -> str:
    verdict = _worst(episode)
    lasted = "" if episode.ended is None else f", {ago(episode.ended - episode.began)}"
    ended = "still open" if episode.ended is None else f"{_clock(episode.ended)}{lasted}"
    facts = {
        "Cluster": episode.cluster,
        "Began": _clock(episode.began),
        "Ended": ended,
        "Job lost": loss_text(verdict),
        "Price": "" if verdict.usd_per_hour is None else f"{verdict.usd_per_hour:,.2f} USD an hour",
        "Cost": "" if episode.cost_usd is None else f"{episode.cost_usd:,.2f} USD",
        "Cause": verdict.cause,
        "Waited for at": verdict.collective,
        "Evidence": verdict.evidence,
        "Compared with": counted(verdict.peers, "peer") if verdict.peers else "",
        "In common": verdict.shared,
        "Link": verdict.link,
        "Next step": verdict.next_step,
    }
    return _table((), [(name, text) for name, text in facts.items() if text])


def _timeline(episode: Episode) -> str:
    rows = [
        (_clock(moment.at), moment.verdict.state, moment.verdict.cause_class,
         loss_text(moment.verdict), moment.verdict.evidence)
        for moment in episode.verdicts
    ]  # fmt: skip
    return _table(("time", "state", "class", "job loses", "why"), rows)


def _drawing(episode: Episode) -> str:
    """Draw the states as bars along the time."""
    start_s = min(episode.began, episode.verdicts[0].at) if episode.verdicts else episode.began
    times = [moment.at for moment in episode.verdicts]
    end_s = max([*times, episode.ended or start_s, start_s + 1.0])
    scale = (WIDTH - 20) / (end_s - start_s)
    bars = []
    for number, moment in enumerate(episode.verdicts):
        until_s = times[number + 1] if number + 1 < len(times) else end_s
        left, width = 10 + (moment.at - start_s) * scale, max((until_s - moment.at) * scale, 3.0)
        state = moment.verdict.state
        bars.append(
            f'<rect x="{left:.1f}" y="8" width="{width:.1f}" height="26" fill="{_COLOURS[state]}">'
            f"<title>{_text(f'{_clock(moment.at)} {state}')}</title></rect>"
        )
    ends = (
        f'<text x="10" y="52">{_clock(start_s)}</text>'
        f'<text x="{WIDTH - 10}" y="52" text-anchor="end">{_clock(end_s)}</text>'
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="states over time">'
        f"{''.join(bars)}{ends}</svg>"
    )


def _peers(episode: Episode) -> str:
    if not episode.peers:
        return "<p>No peers were compared.</p>"
    rows = [
        (peer.node, "" if peer.rank is None else peer.rank, f"{peer.excess:+z.1%}",
         f"{peer.bars:.2f}", peer.reason)
        for peer in episode.peers
    ]  # fmt: skip
    return _table(("node", "rank", "own time", "of the limit", "because"), rows)


def _alerts(episode: Episode) -> str:
    if not episode.alerts:
        return "<p>Nobody.</p>"
    rows = [
        (_clock(told.at), told.target, told.message, told.outcome, told.why)
        for told in episode.alerts
    ]
    return _table(("time", "target", "message", "outcome", "why"), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{_text(each)}</th>" for each in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table>{f"<tr>{head}</tr>" if heads else ""}{body}</table></div>'


def _text(text: str) -> str:
    return html.escape("".join(c if c.isprintable() else "�" for c in text))


def _clock(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
