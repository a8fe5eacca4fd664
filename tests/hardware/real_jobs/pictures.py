"""Two SVG pictures of real jobs: the pace of every job with its faults, and the loss as said."""

from typing import Any

from tests.hardware.real_jobs.plan import CALM

Row = dict[str, Any]
WIDTH, PANEL, LEFT, TOP = 860, 120, 60, 46
GREY, PACE, FAULT, NAMED, WRONG = "#888888", "#1f6fb2", "#f6dcc8", "#2e8b57", "#c0392b"
SIDE, EDGE = 420, 56


def pace_picture(rows: list[Row]) -> str:
    """A panel per job: the median step of every second, faults shaded, the naming marked."""
    runs = last_runs(rows)
    height = TOP + PANEL * max(len(runs), 1) + 20
    parts = [
        _text(WIDTH / 2, 18, "median step of each second, ms", "middle"),
        _text(
            WIDTH / 2, 36, "shaded: one rank is slowed · green line: it is named", "middle", GREY
        ),
    ]
    for number, (job, found) in enumerate(runs.items()):
        parts += _panel(job, found, TOP + PANEL * number)
    return _svg(parts, WIDTH, height)


def last_runs(rows: list[Row]) -> dict[str, list[Row]]:
    """The phases of the last run of every job; a run begins with the phase `healthy`."""
    runs: dict[str, list[Row]] = {}
    for row in rows:
        if row["phase"] == "healthy":
            runs[row["job"]] = []
        if row["kind"] != "overhead":
            runs.setdefault(row["job"], []).append(row)
    return runs


def _panel(job: str, rows: list[Row], top: float) -> list[str]:
    paces = [ms for row in rows for ms in row["pace_ms"] if ms is not None]
    if not paces:
        return []
    low, high = min(paces) * 0.97, sorted(paces)[int(0.99 * (len(paces) - 1))] * 1.05
    seconds = max(sum(len(row["pace_ms"]) for row in rows), 1)
    bottom, scale = top + PANEL - 26, (WIDTH - LEFT - 20) / seconds

    def y(ms: float) -> float:
        return bottom - (min(ms, high) - low) / (high - low) * (PANEL - 44)

    parts = [_text(8, top + 30, job, "start"), _text(LEFT - 4, y(low), f"{low:.0f}", "end", GREY)]
    parts.append(_text(LEFT - 4, y(high) + 8, f"{high:.0f}", "end", GREY))
    at = 0
    for row in rows:
        x, width = LEFT + at * scale, len(row["pace_ms"]) * scale
        if row["kind"] != CALM:
            parts.append(_box(x, top + 10, width, bottom - top - 10, FAULT))
            label = f"rank {row['fault']['rank']} {row['kind']}"
            parts.append(_text(x + 3, bottom + 13, label, "start", GREY))
            if row["named_s"] is not None:
                named = x + row["named_s"] * scale
                parts.append(_line(named, top + 10, named, bottom, NAMED))
        points = [
            f"{LEFT + (at + second) * scale:.1f},{y(ms):.1f}"
            for second, ms in enumerate(row["pace_ms"])
            if ms is not None
        ]
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{PACE}" '
            'stroke-width="1.3"/>'
        )
        for each in row["others"]:
            wrong = x + each["after_s"] * scale
            parts.append(_line(wrong, top + 10, wrong, bottom, WRONG))
        at += len(row["pace_ms"])
    return parts


def loss_picture(rows: list[Row]) -> str:
    """Loss as said against loss as the job measured it, with both errors; the line is equality."""
    found = [row for row in rows if row.get("truth") is not None and row.get("loss") is not None]
    top = max((max(row["truth"], row["loss"]) for row in found), default=0.1) * 1.15

    def x(share: float) -> float:
        return EDGE + max(share, 0.0) / top * (SIDE - EDGE - 20)

    def y(share: float) -> float:
        return SIDE - EDGE - max(share, 0.0) / top * (SIDE - EDGE - 40)

    parts = [_text(SIDE / 2, 18, "loss as said, against the job's own", "middle")]
    parts.append(_line(x(0), y(0), x(top), y(top), GREY))
    parts += [_line(x(0), y(0), x(top), y(0), GREY), _line(x(0), y(0), x(0), y(top), GREY)]
    for share in (0.0, top / 2, top):
        parts.append(_text(x(share), y(0) + 16, f"{share:.0%}", "middle", GREY))
        parts.append(_text(x(0) - 6, y(share) + 4, f"{share:.0%}", "end", GREY))
    for row in found:
        colour = NAMED if row["right"] else WRONG
        across, up = row["truth_error"] or 0.0, row.get("loss_error") or 0.0
        truth, said = row["truth"], row["loss"]
        parts.append(_line(x(truth - across), y(said), x(truth + across), y(said), colour))
        parts.append(_line(x(truth), y(said - up), x(truth), y(said + up), colour))
        parts.append(f'<circle cx="{x(truth):.1f}" cy="{y(said):.1f}" r="3" fill="{colour}"/>')
        label = f"{row['job']} {row['kind']}"
        parts.append(_text(x(truth) + 5, y(said) - 5, label, "start", GREY))
    return _svg(parts, SIDE, SIDE)


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333333") -> str:
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{safe}</text>'


def _svg(parts: list[str], width: float, height: float) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n"])
