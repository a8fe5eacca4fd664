"""Real jobs with a published truth, asked as `ingero blame` does; missing recordings are listed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import Answer
from ingero.errors import IngeroError
from ingero.importers.ask import blame_inputs
from ingero.importers.detect import load

DATA = Path(__file__).parents[3] / "shared" / "data"
FOLDERS = ("bytedance", "flight-recorder", "nccl-h200")
SLOWED = {"AR": 0}  # step traces by name: the worker that was slowed, as published in words
CLOSE = 0.02  # of the published step times
Named = list[tuple[int | None, CauseClass | None]]


def trace_rows(data: Path = DATA) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Return (what, ranks, figures) for each recording, or for each folder that is missing."""
    for folder in FOLDERS:
        if not (data / folder).is_dir():
            yield folder, 0, {"skipped": "data absent"}
    for name in SLOWED:
        if (data / "bytedance").is_dir():
            yield _step_trace(data / "bytedance", name)
    for log in sorted(data.glob("flight-recorder/*/fault_injection.log")):
        yield _stopped_job(log)
    for truth in sorted(data.glob("nccl-h200/*/truth.json")):
        yield from _records_and_dumps(truth)


def _step_trace(folder: Path, name: str) -> tuple[str, int, dict[str, Any]]:
    published = json.loads((folder / f"mw-{name}.json").read_text())
    answer, figures = _ask(
        [folder / f"trace-{name}.parquet", folder / f"meta-{name}.yaml"],
        [(SLOWED[name], CauseClass.COMPUTE)],
    )
    if answer is not None:
        errors = [
            abs((answer.step_time_s or 0) / published["tori"] - 1),
            abs((answer.ideal_step_time_s or 0) / published["tideal"] - 1),
            abs(answer.shares.get("m_w", 0) - published["Mw"]),
        ]
        figures["said"] += f"; published step times and M_W within {max(errors):.2%}"
        figures["right"] = int(figures["right"] and max(errors) <= CLOSE)
    return f"step trace {name}", answer.gpus if answer else 0, figures


def _stopped_job(log: Path) -> tuple[str, int, dict[str, Any]]:
    ranks = json.loads(log.read_text().splitlines()[0].split(":", 1)[1])
    answer, figures = _ask([log.parent], [(rank, CauseClass.HANG) for rank in ranks])
    return f"Flight Recorder dumps, {log.parent.name}", answer.gpus if answer else 0, figures


def _records_and_dumps(path: Path) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Require rank and class from the records, and the rank from the dumps alone."""
    truth, folder = json.loads(path.read_text()), path.parent
    cause = CauseClass.COMPUTE if truth.get("gpu") else CauseClass.HOST
    named: Named = [(truth["rank"], cause)] if truth.get("gpu") or truth.get("host") else []
    for kind, paths, expected in (
        ("records", [folder / "collectives.csv"], named),
        ("dumps", sorted(folder.glob("_dump_*")), [(rank, None) for rank, _ in named]),
    ):
        answer, figures = _ask(paths, expected)
        yield f"H200, {folder.name}, {kind}", answer.gpus if answer else 0, figures


def _ask(paths: list[Path], truth: Named) -> tuple[Answer | None, dict[str, Any]]:
    try:
        answer = blame_inputs(load(paths))
    except IngeroError as error:
        return None, {"jobs": 1, "right": 0, "wrong": 0, "not_sure": 0, "said": f"refused: {error}"}
    named = [(c.rank, c.cause) for c in answer.culprits]
    true = dict(truth)
    right = {rank for rank, _ in named} == set(true) and all(
        true[rank] in (None, cause) for rank, cause in named
    )
    wrong = sum(rank not in true for rank, _ in named)
    answer_text = ", ".join(f"rank {rank} ({cause})" for rank, cause in named) or "nobody"
    return answer, {
        "jobs": 1,
        "right": int(right),
        "wrong": wrong,
        "not_sure": int(bool(answer.not_sure)),
        "said": answer_text,
    }
