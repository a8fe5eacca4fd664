"""The picture of an answer: a heat map of own time, worker × step, as plain shapes that SVG and PNG share."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.answer import Answer, Heat
from ingero.core.robust import nan_median

MAX_ROWS, MAX_COLUMNS = 64, 150
TEXT, FAINT, UNKNOWN, PAPER = "#1b1f24", "#656d76", "#d7dade", "#ffffff"
SLOW = (
    (255, 247, 236),
    (253, 187, 132),
    (227, 74, 51),
    (127, 0, 0),
)  # pace of the role … far slower
FAST = ((255, 247, 236), (158, 202, 225), (33, 113, 181))
MIN_SPAN = 0.05  # colours never stretch over less than this excess


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    fill: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    y: float
    text: str
    size: int = 12
    anchor: str = "start"
    fill: str = TEXT
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes in pixels, in painting order."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    labels: tuple[Label, ...]


def draw(answer: Answer, title: str) -> Drawing:
    """Draw the heat map of an answer; raises ValueError where there is nothing to draw."""
    if answer.heat is None or not answer.heat.values.size:
        raise ValueError("this answer has no steps to draw")
    rows, heat = _shown_rows(answer.heat)
    values, starts = _shown_columns(heat.values)
    cell_w, cell_h = (
        max(4, min(22, 900 // max(1, values.shape[1]))),
        max(10, min(24, 620 // max(1, len(rows)))),
    )
    left = 24 + 7 * max(len(heat.rows[r]) for r in rows)
    top, named = 74, _named_rows(answer, heat)
    span = max(
        MIN_SPAN,
        float(np.nanquantile(values, 0.995)) - 1.0,
        *(c.excess or 0.0 for c in answer.culprits[:1]),
    )
    boxes, labels = (
        [],
        [Label(20, 28, title, 17, bold=True), Label(20, 50, _headline(answer), 13, fill=FAINT)],
    )
    for y, row in enumerate(rows):
        at = top + y * cell_h
        labels.append(
            Label(left - 8, at + cell_h * 0.72, heat.rows[row], 11, "end", bold=row in named)
        )
        for x, value in enumerate(values[row]):
            hint = f"{heat.rows[row]}, step {heat.columns[starts[x]]}: {_times(value)}"
            boxes.append(
                Box(left + x * cell_w, at, cell_w - 0.5, cell_h - 1, _colour(value, span), hint)
            )
        if row in named:
            labels.append(
                Label(
                    left + values.shape[1] * cell_w + 8,
                    at + cell_h * 0.72,
                    f"◀ {named[row]}",
                    12,
                    fill="#b3210f",
                    bold=True,
                )
            )
    bottom = top + len(rows) * cell_h
    every = max(1, math.ceil(60 / cell_w))
    for x in range(0, values.shape[1], every):
        labels.append(
            Label(
                left + (x + 0.5) * cell_w,
                bottom + 15,
                str(heat.columns[starts[x]]),
                10,
                "middle",
                FAINT,
            )
        )
    labels.append(Label(left, bottom + 34, "step", 11, fill=FAINT))
    if len(rows) < len(heat.rows):
        labels.append(
            Label(
                left,
                top - 6,
                f"the {len(rows)} of {len(heat.rows)} workers furthest from their pace",
                11,
                fill=FAINT,
            )
        )
    legend_boxes, legend_labels = _legend(left, bottom + 52, span)
    width = int(max(left + values.shape[1] * cell_w + 170, left + 420))
    return Drawing(
        width, int(bottom + 100), tuple(boxes + legend_boxes), tuple(labels + legend_labels)
    )


def to_svg(drawing: Drawing) -> str:
    """The drawing as a standalone SVG document; cells carry their value as a tooltip."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width}" height="{drawing.height}" '
        f'viewBox="0 0 {drawing.width} {drawing.height}" font-family="system-ui, sans-serif">',
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
    ]
    for box in drawing.boxes:
        hint = f"<title>{escape(box.hint)}</title>" if box.hint else ""
        parts.append(
            f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" '
            f'fill="{box.fill}">{hint}</rect>'
        )
    for label in drawing.labels:
        weight = ' font-weight="600"' if label.bold else ""
        parts.append(
            f'<text x="{label.x:g}" y="{label.y:g}" font-size="{label.size}" text-anchor="{label.anchor}" '
            f'fill="{label.fill}"{weight}>{escape(label.text)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _headline(answer: Answer) -> str:
    what = "own time per step against workers of the same role"
    if answer.culprits:
        names = [
            c.worker if c.worker.startswith("rank") else f"{c.worker} (rank {c.rank})"
            for c in answer.culprits
        ]
        slow = ", ".join(
            f"{name}: {c.cause}" for name, c in zip(names, answer.culprits, strict=True)
        )
        return f"slow – {slow} – {what}"
    if answer.cause:
        return f"{str(answer.cause).replace('_', ' ')}, no worker is to blame – {what}"
    return f"{'not sure' if answer.not_sure else 'nobody is slow'} – {what}"


def _named_rows(answer: Answer, heat: Heat) -> dict[int, str]:
    named = {}
    for culprit in answer.culprits:
        for i, row in enumerate(heat.rows):
            if row == culprit.worker or row.startswith(f"{culprit.worker} "):
                often = f" every {culprit.period} steps" if culprit.period else ""
                named[i] = (
                    f"{culprit.excess:+.1%}{often}"
                    if culprit.excess is not None
                    else str(culprit.cause)
                )
    return named


def _shown_rows(heat: Heat) -> tuple[list[int], Heat]:
    if len(heat.rows) <= MAX_ROWS:
        return list(range(len(heat.rows))), heat
    far = np.nan_to_num(
        np.abs(nan_median(np.log(np.where(heat.values > 0, heat.values, np.nan)), 1))
    )
    return sorted(np.argsort(-far, kind="stable")[:MAX_ROWS].tolist()), heat


def _shown_columns(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[int]]:
    """At most MAX_COLUMNS columns; a column that stands for several shows the value furthest from the pace."""
    if values.shape[1] <= MAX_COLUMNS:
        return values, list(range(values.shape[1]))
    starts = np.linspace(0, values.shape[1], MAX_COLUMNS + 1).astype(int)
    pooled = np.full((len(values), MAX_COLUMNS), np.nan)
    for x, (begin, stop) in enumerate(itertools.pairwise(starts)):
        part = values[:, begin:stop]
        far = np.nan_to_num(np.abs(part - 1.0), nan=-1.0).argmax(axis=1)
        pooled[:, x] = part[np.arange(len(values)), far]
    return pooled, starts[:-1].tolist()


def _legend(x: float, y: float, span: float) -> tuple[list[Box], list[Label]]:
    boxes = [
        Box(x + i * 3, y, 3, 12, _colour(1 - span / 2 + i * 1.5 * span / 80, span))
        for i in range(80)
    ]
    boxes.append(Box(x + 270, y, 14, 12, UNKNOWN))
    marks = ((1 - span / 2, 0), (1.0, 80), (1 + span, 240))
    labels = [Label(x + at, y + 27, _times(value), 10, "middle", FAINT) for value, at in marks[:2]]
    labels.append(Label(x + marks[2][1], y + 27, f"≥ {_times(marks[2][0])}", 10, "middle", FAINT))
    labels.append(Label(x + 290, y + 10, "not recorded", 10, fill=FAINT))
    return boxes, labels


def _times(value: float) -> str:
    return "not recorded" if not np.isfinite(value) else f"{value:.2f}x"


def _colour(value: float, span: float) -> str:
    if not np.isfinite(value):
        return UNKNOWN
    ramp, place = (SLOW, (value - 1) / span) if value >= 1 else (FAST, (1 - value) / (span / 2))
    return _blend(ramp, min(1.0, float(place)))


def _blend(ramp: Sequence[tuple[int, int, int]], place: float) -> str:
    at = place * (len(ramp) - 1)
    low = min(int(at), len(ramp) - 2)
    part = at - low
    red, green, blue = (
        round(a + (b - a) * part) for a, b in zip(ramp[low], ramp[low + 1], strict=True)
    )
    return f"#{red:02x}{green:02x}{blue:02x}"
