"""The heat map: readable labels, one cell per worker and step, bounded size."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import Answer, Culprit, Heat
from ingero.core.blame.drawing import Box, Drawing, Label, to_svg
from ingero.core.blame.heatmap import MAX_COLUMNS, MAX_ROWS, NAMED, UNKNOWN, draw

WHITE, DARKEST, BLUEST = "#fff7ec", "#7f0000", "#2171b5"  # the pace, far slower, far faster


def _answer(workers: int, steps: int) -> Answer:
    values = np.ones((workers, steps))
    values[1] = 1.4
    values[0, 0] = np.nan
    culprit = Culprit(
        worker="rank 1", rank=1, cause=CauseClass.HOST, excess=0.4, error=0.01, confidence=0.9
    )
    heat = Heat(tuple(f"rank {i}" for i in range(workers)), tuple(range(100, 100 + steps)), values)
    return Answer(source="test", culprits=(culprit,), cause=CauseClass.HOST, heat=heat)


def _drawn(values: NDArray[np.float64], culprits: tuple[Culprit, ...] = ()) -> Drawing:
    rows, columns = values.shape
    heat = Heat(tuple(f"rank {i}" for i in range(rows)), tuple(range(100, 100 + columns)), values)
    return draw(Answer(source="test", heat=heat, culprits=culprits), "job")


def _cells(drawing: Drawing) -> dict[str, Box]:
    """Return the cells by their hints."""
    return {box.hint: box for box in drawing.boxes if box.hint}


def _label(drawing: Drawing, text: str) -> Label:
    (found,) = [label for label in drawing.labels if label.text == text]
    return found


def test_svg_is_well_formed_and_names_the_culprit() -> None:
    root = ET.fromstring(to_svg(draw(_answer(4, 6), "a <job> & more")))
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:2] == [
        "a <job> & more",
        "slow – rank 1: host – own time per step against workers of the same role",
    ]
    assert "◀ +40.0%" in texts
    hints = [node.text for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(hints) == 4 * 6
    assert hints[0] == "rank 0, step 100: not recorded"
    assert hints[6] == "rank 1, step 100: 1.40x"


def test_svg_holds_every_shape_with_its_place_and_look() -> None:
    drawing = Drawing(
        40, 30, (Box(1, 2, 3, 4, "#010203", "a < b"), Box(5, 6, 7, 8, "#040506")),
        (Label(9, 10, "bold & dark", 11, "end", "#070809", True), Label(1, 2, "plain")),
    )  # fmt: skip
    svg = "{http://www.w3.org/2000/svg}"
    root = ET.fromstring(to_svg(drawing))
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("40", "30", "0 0 40 30")
    paper, first, second = root.iter(f"{svg}rect")
    assert paper.attrib == {"width": "100%", "height": "100%", "fill": "#ffffff"}
    assert first.attrib == {"x": "1", "y": "2", "width": "3", "height": "4", "fill": "#010203"}
    assert [node.text for node in first] == ["a < b"]
    assert list(second) == []
    bold, plain = root.iter(f"{svg}text")
    look = {"font-size": "11", "text-anchor": "end", "fill": "#070809", "font-weight": "600"}
    assert (bold.attrib, bold.text) == ({"x": "9", "y": "10", **look}, "bold & dark")
    look = {"font-size": "12", "text-anchor": "start", "fill": "#1b1f24"}
    assert (plain.attrib, plain.text) == ({"x": "1", "y": "2", **look}, "plain")


def test_cells_form_a_grid_without_overlap_from_left_to_right_and_top_to_bottom() -> None:
    drawing = _drawn(np.ones((3, 5)))
    cells = list(_cells(drawing).values())
    grid = [cells[row * 5 : row * 5 + 5] for row in range(3)]
    for row in grid:
        assert {box.y for box in row} == {row[0].y}
        assert np.diff([box.x for box in row]).tolist() == [22] * 4
    assert np.diff([row[0].y for row in grid]).tolist() == [24, 24]
    assert {(box.width, box.height) for box in cells} == {(21.5, 23)}
    assert grid[0][0].y == 74
    assert grid[0][0].x == 24 + 7 * len("rank 0")  # there is room for the names


def test_names_are_beside_their_rows_and_step_numbers_below_their_columns() -> None:
    drawing = _drawn(np.ones((3, 5)))
    cells = _cells(drawing)
    first, last = cells["rank 0, step 100: 1.00x"], cells["rank 2, step 103: 1.00x"]
    name = _label(drawing, "rank 0")
    assert (name.anchor, name.size, name.bold) == ("end", 11, False)
    assert (name.x, name.y) == (first.x - 8, pytest.approx(first.y + 24 * 0.72))
    assert {label.text for label in drawing.labels} >= {"100", "103"}
    assert not {label.text for label in drawing.labels} & {"101", "102", "104"}
    number = _label(drawing, "103")
    assert (number.x, number.y) == (last.x + 11, last.y + 24 + 15)
    assert (number.anchor, number.size) == ("middle", 10)
    step = _label(drawing, "step")
    assert (step.x, step.y, step.size) == (first.x, last.y + 24 + 34, 11)
    title = _label(drawing, "job")
    assert (title.x, title.y, title.size, title.bold) == (20, 28, 17, True)
    headline = drawing.labels[1]
    assert (headline.x, headline.y, headline.size) == (20, 50, 13)


def test_the_excess_is_beside_the_row_of_the_culprit() -> None:
    drawing = draw(_answer(4, 6), "job")
    cell = _cells(drawing)["rank 1, step 105: 1.40x"]
    label = _label(drawing, "◀ +40.0%")
    assert (label.x, label.y) == (cell.x + 22 + 8, pytest.approx(cell.y + 24 * 0.72))
    assert (label.size, label.fill, label.bold) == (12, NAMED, True)
    assert [text.text for text in drawing.labels if text.bold] == ["job", "rank 1", "◀ +40.0%"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"period": 7}, "◀ +40.0% every 7 steps"),
        ({"excess": None}, "◀ host"),
        ({"excess": -0.05}, "◀ -5.0%"),
    ],
)
def test_a_culprit_is_described_by_excess_and_period_or_by_its_cause(
    change: dict[str, float | None], text: str
) -> None:
    answer = _answer(4, 6)
    culprit = replace(answer.culprits[0], **change)  # type: ignore[arg-type]  # fields by name
    drawing = draw(replace(answer, culprits=(culprit,)), "job")
    assert _label(drawing, text)


def test_the_row_of_a_culprit_is_found_by_the_whole_name() -> None:
    """Rank 1 is not rank 10; a worker of a stage has its rank behind its name."""
    answer = _answer(11, 3)
    named = [label.text for label in draw(answer, "job").labels if label.bold]
    assert named == ["job", "rank 1", "◀ +40.0%"]
    assert answer.heat is not None
    rows = ("dp0/pp0 (rank 0)", "dp0/pp1 (rank 2)", *answer.heat.rows[2:])
    culprit = replace(answer.culprits[0], worker="dp0/pp1", rank=2)
    staged = replace(answer, culprits=(culprit,), heat=replace(answer.heat, rows=rows))
    drawing = draw(staged, "job")
    named = [label.text for label in drawing.labels if label.bold]
    assert named == ["job", "dp0/pp1 (rank 2)", "◀ +40.0%"]
    assert drawing.labels[1].text.startswith("slow – dp0/pp1 (rank 2): host – own time")


@pytest.mark.parametrize(
    ("cause", "not_sure", "beginning"),
    [
        (CauseClass.DATA_IMBALANCE, None, "data imbalance, no worker is to blame – "),
        (None, "why", "not sure – "),
        (None, None, "nobody is slow – "),
    ],
)
def test_the_headline_says_when_nobody_is_to_blame(
    cause: CauseClass | None, not_sure: str | None, beginning: str
) -> None:
    answer = replace(_answer(4, 6), culprits=(), cause=cause, not_sure=not_sure)
    assert draw(answer, "job").labels[1].text == (
        f"{beginning}own time per step against workers of the same role"
    )


def test_colours_run_from_the_pace_to_the_largest_excess() -> None:
    values = np.ones((2, 6))
    values[1] = [1.0, 1.1, 1.2, 1.3, np.nan, 0.85]
    fills = [box.fill for box in list(_cells(_drawn(values)).values())[6:]]
    assert fills[0] == WHITE
    assert fills[4] == UNKNOWN
    reds, blues = ([int(fill[at : at + 2], 16) for fill in fills] for at in (1, 5))
    assert reds[0] >= reds[1] > reds[2] > reds[3]
    assert blues[0] > blues[1] > blues[2] > blues[3]
    assert blues[5] > reds[5]


@pytest.mark.parametrize(
    ("value", "fill"),
    [
        (1.0, WHITE), (1.1, "#fdbb84"), (1.2, "#e34a33"), (1.3, DARKEST), (1.9, DARKEST),
        (1.05, "#fed9b8"), (0.999999, WHITE), (0.925, "#9ecae1"), (0.85, BLUEST), (0.5, BLUEST),
    ],
)  # fmt: skip
def test_the_excess_of_the_culprit_has_the_darkest_colour_if_it_is_larger(
    value: float, fill: str
) -> None:
    """The ramp has four colours for slower and three for faster workers, at equal distances."""
    culprit = replace(_answer(2, 2).culprits[0], excess=0.3)
    values = np.ones((20, 60))
    values[0, 0] = value
    cells = _cells(_drawn(values, (culprit,)))
    assert cells[f"rank 0, step 100: {value:.2f}x"].fill == fill


def test_every_colour_is_one() -> None:
    drawing = draw(_answer(MAX_ROWS + 6, 6), "job")
    fills = {shape.fill for shape in (*drawing.boxes, *drawing.labels)}
    assert all(re.fullmatch("#[0-9a-f]{6}", fill) for fill in fills), fills
    assert to_svg(drawing).endswith("</text>\n</svg>\n")


def test_small_differences_are_not_drawn_dark() -> None:
    values = np.ones((4, 60))
    values[1] = 1.025
    cells = _cells(_drawn(values))
    assert cells["rank 1, step 100: 1.02x"].fill == "#f0835c"  # half of the least span of 5 %


def test_the_legend_shows_the_range_of_the_colours_below_the_cells() -> None:
    values = np.ones((3, 5))
    values[1] = 1.2
    drawing = _drawn(values)
    left, bottom = 24 + 7 * len("rank 0"), 74 + 3 * 24
    legend = [box for box in drawing.boxes if not box.hint]
    ramp, unknown = legend[:-1], legend[-1]
    assert len(ramp) == 80
    assert {(box.y, box.width, box.height) for box in ramp} == {(bottom + 52, 3, 12)}
    assert [box.x for box in ramp] == [left + 3 * i for i in range(80)]
    assert ramp[0].fill == BLUEST
    assert ramp[40].fill == "#feca9e"  # half of it is a quarter of the excess
    assert ramp[-1].fill == "#850403"
    assert (unknown.x, unknown.y, unknown.width, unknown.height, unknown.fill) == (
        left + 270, bottom + 52, 14, 12, UNKNOWN,
    )  # fmt: skip
    texts = [(label.text, label.x - left, label.y - bottom) for label in drawing.labels[-4:]]
    assert texts == [
        ("0.90x", 0, 79), ("1.00x", 80, 79), ("≥ 1.20x", 240, 79), ("not recorded", 290, 62),
    ]  # fmt: skip
    assert {label.size for label in drawing.labels[-4:]} == {10}
    assert [label.anchor for label in drawing.labels[-4:]] == ["middle"] * 3 + ["start"]


def test_the_paper_holds_rows_legend_and_what_is_written_beside_them() -> None:
    left = 24 + 7 * len("rank 0")
    narrow, wide = _drawn(np.ones((3, 5))), _drawn(np.ones((3, 40)))
    assert (narrow.width, narrow.height) == (left + 420, 74 + 3 * 24 + 100)
    assert (wide.width, wide.height) == (left + 40 * 22 + 170, 74 + 3 * 24 + 100)


@pytest.mark.parametrize(
    ("rows", "columns", "width", "height"),
    [
        (3, 40, 22, 24), (3, 41, 21, 24), (3, MAX_COLUMNS, 6, 24), (3, 1, 22, 24),
        (25, 5, 22, 24), (26, 5, 22, 23), (62, 5, 22, 10), (MAX_ROWS, 5, 22, 10),
        (3, 53, 16, 24), (27, 5, 22, 22),
    ],
)  # fmt: skip
def test_cells_shrink_with_their_number(rows: int, columns: int, width: int, height: int) -> None:
    boxes = _cells(_drawn(np.ones((rows, columns)))).values()
    assert {(box.width, box.height) for box in boxes} == {(width - 0.5, height - 1)}


def test_a_large_job_is_drawn_within_bounds_and_keeps_the_culprit() -> None:
    drawing = draw(_answer(500, 4000), "large")
    labels = {label.text for label in drawing.labels}
    assert "rank 1" in labels
    assert len(_cells(drawing)) == MAX_ROWS * MAX_COLUMNS
    assert drawing.width < 1600 and drawing.height < 1000


def test_workers_furthest_from_their_pace_are_shown_in_their_order() -> None:
    workers = MAX_ROWS + 2
    values = np.ones((workers, 4))
    values[2:] = 1.1
    values[1] = 1 / 1.2  # as far as a worker that takes 1.2 times as long
    values[5] = [1.05, 1.05, 0.0, np.nan]  # 0 is no time at all
    drawing = _drawn(values)
    shown = [label.text for label in drawing.labels if label.anchor == "end"]
    assert shown == [f"rank {i}" for i in range(workers) if i not in (0, 5)]
    note = _label(drawing, f"the {MAX_ROWS} of {workers} workers furthest from their pace")
    assert (note.x, note.y, note.size) == (24 + 7 * len("rank 10"), 68, 11)
    few = _drawn(values[:MAX_ROWS])
    assert not any("furthest" in label.text for label in few.labels)


def test_a_column_for_several_steps_shows_their_mean_and_says_so() -> None:
    values = np.ones((3, 2 * MAX_COLUMNS))
    values[0, 4:6] = 0.7, 1.2
    values[1, 4:6] = np.nan, 1.01
    values[2, 4:6] = np.nan
    values[0, 6:8] = 1.4, 0.7
    drawing = _drawn(values)
    cells = _cells(drawing)
    assert len(cells) == 3 * MAX_COLUMNS
    assert "rank 0, steps 106–107: 1.05x" in cells
    assert {"rank 0, steps 104–105: 0.95x", "rank 1, steps 104–105: 1.01x"} <= cells.keys()
    assert "rank 2, steps 104–105: not recorded" in cells
    assert "rank 0, steps 398–399: 1.00x" in cells
    assert _label(drawing, "step; a column is the mean of 2 steps")


def test_stalls_in_few_steps_of_a_column_are_as_dark_as_what_they_cost() -> None:
    """Every second step takes twice as long: its columns are half as much over the pace."""
    culprit = replace(_answer(2, 2).culprits[0], excess=1.0, period=2)
    values = np.ones((20, 2 * MAX_COLUMNS))
    values[1, ::2] = 2.0
    cells = _cells(_drawn(values, (culprit,)))
    assert cells["rank 1, steps 100–101: 1.50x"].fill == DARKEST
    lasting = _cells(_drawn(values, (replace(culprit, period=None),)))
    assert lasting["rank 1, steps 100–101: 1.50x"].fill not in (DARKEST, WHITE)


def test_a_line_below_a_culprit_shows_when_it_is_slow() -> None:
    answer = _answer(4, 6)
    culprit = replace(answer.culprits[0], steps=(102, 104))
    drawing = draw(replace(answer, culprits=(culprit,)), "job")
    cells = _cells(drawing)
    first, last = cells["rank 1, step 102: 1.40x"], cells["rank 1, step 104: 1.40x"]
    (line,) = [box for box in drawing.boxes if box.fill == NAMED]
    assert (line.x, line.x + line.width) == (first.x, last.x + 22)
    assert (line.y, line.height) == (first.y + 24 - 3, 3)
    pooled = np.ones((2, 4 * MAX_COLUMNS))
    (line,) = [
        box
        for box in _drawn(pooled, (replace(culprit, steps=(109, 121)),)).boxes
        if box.fill == NAMED
    ]
    assert (line.x, line.width) == (24 + 7 * len("rank 0") + 2 * 6, 4 * 6)


@pytest.mark.parametrize(
    ("at_most", "text"),
    [(False, "◀ +40.0%, costs 11.8%"), (True, "◀ +40.0%, costs at most 11.8%")],
)
def test_what_the_job_loses_is_beside_the_row_and_has_room(at_most: bool, text: str) -> None:
    answer = _answer(4, 40)
    culprit = replace(answer.culprits[0], loss=0.118, at_most=at_most)
    drawing = draw(replace(answer, culprits=(culprit,)), "job")
    assert _label(drawing, text).x + 7 * len(text) <= drawing.width


def test_an_answer_without_steps_cannot_be_drawn() -> None:
    empty = Heat(("rank 0",), (), np.empty((1, 0)))
    for answer in (Answer(source="test"), Answer(source="test", heat=empty)):
        with pytest.raises(ValueError, match="no steps to draw"):
            draw(answer, "nothing")


def test_a_worker_without_steps_is_drawn_as_not_recorded_however_many_there_are() -> None:
    answer = _answer(MAX_ROWS + 6, 6)
    assert answer.heat is not None
    answer.heat.values[5] = np.nan
    cells = _cells(draw(answer, "job"))
    assert {f"rank 5, step {step}: not recorded" for step in range(100, 106)} <= cells.keys()
