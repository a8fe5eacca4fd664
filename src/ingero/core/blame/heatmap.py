"""The heat map of an answer: own time relative to the peers, worker × step."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.answer import Answer, Culprit, Heat
from ingero.core.blame.drawing import FAINT, Box, Drawing, Label
from ingero.core.robust import nan_median

MAX_ROWS, MAX_COLUMNS = 64, 150
UNKNOWN, NAMED = "#d7dade", "#b3210f"
SLOW = ((255, 247, 236), (253, 187, 132), (227, 74, 51), (127, 0, 0))  # from 1.0 to far slower
FAST = ((255, 247, 236), (158, 202, 225), (33, 113, 181))
MIN_SPAN = 0.05  # the colours cover at least this much excess
LINE = 3  # pixels below the cells of a culprit
TOP = 74  # pixels above the first row


@dataclass(frozen=True, slots=True)
class _Grid:
    """The cells to draw and where they are."""

    heat: Heat
    rows: list[int]  # of `heat`
    values: NDArray[np.float64]  # as [row of `heat`, column shown]
    starts: list[int]  # the column of `heat` at which each column shown begins
    left: float
    cell_w: int
    cell_h: int
    span: float  # excess with the darkest colour

    @property
    def right(self) -> float:
        return float(self.left + self.values.shape[1] * self.cell_w)

    @property
    def bottom(self) -> float:
        return TOP + len(self.rows) * self.cell_h

    @property
    def pooled(self) -> int:
        """How many steps most columns stand for."""
        return round(len(self.heat.columns) / len(self.starts))

    def steps_text(self, column: int) -> str:
        """Return which steps a column shows."""
        numbers, begin = self.heat.columns, self.starts[column]
        end = self.starts[column + 1] if column + 1 < len(self.starts) else len(numbers)
        if end - begin < 2:
            return f"step {numbers[begin]}"
        return f"steps {numbers[begin]}–{numbers[end - 1]}"


def draw(answer: Answer, title: str) -> Drawing:
    """Draw the heat map of an answer; raise ValueError when the answer has no steps."""
    if answer.heat is None or not answer.heat.values.size:
        raise ValueError("this answer has no steps to draw")
    grid = _layout(answer, answer.heat)
    named = _named_rows(answer, answer.heat)
    cells, row_labels = _rows(grid, named)
    cells += _spells(grid, answer)
    legend, legend_labels = _legend(grid.left, grid.bottom + 52, grid.span)
    labels = [
        Label(20, 28, title, 17, bold=True),
        Label(20, 50, _headline(answer), 13, fill=FAINT),
        *row_labels,
        *_axis(grid),
        *legend_labels,
    ]
    beside = max(170, *(24 + 7 * len(text) for text in named.values())) if named else 170
    width = int(max(grid.right + beside, grid.left + 420))
    return Drawing(width, int(grid.bottom + 100), tuple(cells + legend), tuple(labels))


def _layout(answer: Answer, heat: Heat) -> _Grid:
    rows = _shown_rows(heat)
    values, starts = _shown_columns(heat.values)
    excess = float(np.nanquantile(values, 0.995)) - 1.0
    is_pooled = values.shape[1] < heat.values.shape[1]
    lasting = [c.excess or 0.0 for c in answer.culprits[:1] if not (is_pooled and c.period)]
    return _Grid(
        heat,
        rows,
        values,
        starts,
        left=24 + 7 * max(len(heat.rows[r]) for r in rows),
        cell_w=max(4, min(22, 900 // max(1, values.shape[1]))),
        cell_h=max(10, min(24, 620 // max(1, len(rows)))),
        span=max(MIN_SPAN, excess, *lasting),
    )


def _rows(grid: _Grid, named: dict[int, str]) -> tuple[list[Box], list[Label]]:
    """Return the cells of all rows, the name of each row and the excess of named ones."""
    heat, boxes, labels = grid.heat, [], []
    for number, row in enumerate(grid.rows):
        top = TOP + number * grid.cell_h
        base = top + grid.cell_h * 0.72
        labels.append(Label(grid.left - 8, base, heat.rows[row], 11, "end", bold=row in named))
        for x, value in enumerate(grid.values[row]):
            hint = f"{heat.rows[row]}, {grid.steps_text(x)}: {_times(value)}"
            fill = _colour(value, grid.span)
            at = grid.left + x * grid.cell_w
            boxes.append(Box(at, top, grid.cell_w - 0.5, grid.cell_h - 1, fill, hint))
        if row in named:
            text = f"◀ {named[row]}"
            labels.append(Label(grid.right + 8, base, text, 12, fill=NAMED, bold=True))
    return boxes, labels


def _spells(grid: _Grid, answer: Answer) -> list[Box]:
    """Return a line below the cells of each culprit, from its first slow step to its last."""
    lines = []
    for culprit in answer.culprits:
        row = _row_of(culprit, grid.heat)
        if culprit.steps is None or row not in grid.rows:
            continue
        numbers = np.array(grid.heat.columns)[grid.starts]
        begin, end = (int(np.searchsorted(numbers, at, "right")) for at in culprit.steps)
        x = grid.left + max(begin - 1, 0) * grid.cell_w
        y = TOP + (grid.rows.index(row) + 1) * grid.cell_h - LINE
        lines.append(Box(x, y, grid.left + end * grid.cell_w - x, LINE, NAMED))
    return lines


def _axis(grid: _Grid) -> list[Label]:
    """Return step numbers, and a note where not all workers are shown."""
    heat, labels = grid.heat, []
    for x in range(0, grid.values.shape[1], max(1, math.ceil(60 / grid.cell_w))):
        step, centre = str(heat.columns[grid.starts[x]]), grid.left + (x + 0.5) * grid.cell_w
        labels.append(Label(centre, grid.bottom + 15, step, 10, "middle", FAINT))
    pooled = f"; a column is the mean of {grid.pooled} steps" if grid.pooled > 1 else ""
    labels.append(Label(grid.left, grid.bottom + 34, f"step{pooled}", 11, fill=FAINT))
    if len(grid.rows) < len(heat.rows):
        note = f"the {len(grid.rows)} of {len(heat.rows)} workers furthest from their pace"
        labels.append(Label(grid.left, TOP - 6, note, 11, fill=FAINT))
    return labels


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
    """Return the rows of culprits, with what is written beside each."""
    named = {}
    for culprit in answer.culprits:
        row = _row_of(culprit, heat)
        if row is None:
            continue
        often = f" every {culprit.period} steps" if culprit.period else ""
        text = str(culprit.cause) if culprit.excess is None else f"{culprit.excess:+.1%}{often}"
        if culprit.loss is not None:
            text += f", costs {'at most ' if culprit.at_most else ''}{culprit.loss:.1%}"
        named[row] = text
    return named


def _row_of(culprit: Culprit, heat: Heat) -> int | None:
    """Return the row of a culprit; a worker of a stage has its rank behind its name."""
    name = culprit.worker
    found = (i for i, row in enumerate(heat.rows) if row == name or row.startswith(f"{name} "))
    return next(found, None)


def _shown_rows(heat: Heat) -> list[int]:
    """Return at most MAX_ROWS rows, those furthest from the pace of their role."""
    if len(heat.rows) <= MAX_ROWS:
        return list(range(len(heat.rows)))
    ratio = np.where(heat.values > 0, heat.values, np.nan)
    far = np.nan_to_num(np.abs(nan_median(np.log(ratio), 1)))
    rows: list[int] = sorted(np.argsort(-far, kind="stable")[:MAX_ROWS].tolist())
    return rows


def _shown_columns(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[int]]:
    """Return at most MAX_COLUMNS columns, and where each begins.

    A column that stands for several shows their mean: what the job pays, however it is spread.
    """
    if values.shape[1] <= MAX_COLUMNS:
        return values, list(range(values.shape[1]))
    starts = np.linspace(0, values.shape[1], MAX_COLUMNS + 1).astype(int)
    pooled = np.full((len(values), MAX_COLUMNS), np.nan)
    for x, (begin, stop) in enumerate(itertools.pairwise(starts)):
        part = values[:, begin:stop]
        known = np.isfinite(part).sum(axis=1)
        total = np.nansum(part, axis=1)
        pooled[known > 0, x] = total[known > 0] / known[known > 0]
    return pooled, starts[:-1].tolist()


def _legend(x: float, y: float, span: float) -> tuple[list[Box], list[Label]]:
    boxes = [
        Box(x + i * 3, y, 3, 12, _colour(1 - span / 2 + i * 1.5 * span / 80, span))
        for i in range(80)
    ]
    boxes.append(Box(x + 270, y, 14, 12, UNKNOWN))
    labels = [
        Label(x, y + 27, _times(1 - span / 2), 10, "middle", FAINT),
        Label(x + 80, y + 27, _times(1.0), 10, "middle", FAINT),
        Label(x + 240, y + 27, f"≥ {_times(1 + span)}", 10, "middle", FAINT),
        Label(x + 290, y + 10, "not recorded", 10, fill=FAINT),
    ]
    return boxes, labels


def _times(value: float) -> str:
    return "not recorded" if not np.isfinite(value) else f"{value:.2f}x"


def _colour(value: float, span: float) -> str:
    if not np.isfinite(value):
        return UNKNOWN
    ramp, place = (SLOW, (value - 1) / span) if value >= 1 else (FAST, (1 - value) / (span / 2))
    return _blend(ramp, min(1.0, float(place)))


def _blend(ramp: Sequence[tuple[int, int, int]], place: float) -> str:
    """Return the colour at a place between 0 and 1 of a ramp."""
    at = place * (len(ramp) - 1)
    low = min(int(at), len(ramp) - 2)
    part = at - low
    red, green, blue = (
        round(a + (b - a) * part) for a, b in zip(ramp[low], ramp[low + 1], strict=True)
    )
    return f"#{red:02x}{green:02x}{blue:02x}"
