"""The heat map: readable labels, one cell per worker and step, bounded size."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import Answer, Culprit, Heat
from ingero.core.blame.drawing import to_svg
from ingero.core.blame.heatmap import MAX_COLUMNS, MAX_ROWS, draw


def _answer(workers: int, steps: int) -> Answer:
    values = np.ones((workers, steps))
    values[1] = 1.4
    values[0, 0] = np.nan
    culprit = Culprit(
        worker="rank 1", rank=1, cause=CauseClass.HOST, excess=0.4, error=0.01, confidence=0.9
    )
    heat = Heat(tuple(f"rank {i}" for i in range(workers)), tuple(range(100, 100 + steps)), values)
    return Answer(source="test", culprits=(culprit,), cause=CauseClass.HOST, heat=heat)


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


def test_a_large_job_is_drawn_within_bounds_and_keeps_the_culprit() -> None:
    drawing = draw(_answer(500, 4000), "large")
    labels = {label.text for label in drawing.labels}
    assert "rank 1" in labels
    assert len(drawing.boxes) < MAX_ROWS * MAX_COLUMNS + 100
    assert drawing.width < 1600 and drawing.height < 1000


def test_an_answer_without_steps_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="no steps to draw"):
        draw(Answer(source="test"), "nothing")


def test_a_worker_without_steps_is_drawn_as_not_recorded_however_many_there_are() -> None:
    answer = _answer(MAX_ROWS + 6, 6)
    assert answer.heat is not None
    answer.heat.values[5] = np.nan
    assert draw(answer, "job").height > 0
