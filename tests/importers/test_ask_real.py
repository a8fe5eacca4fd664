"""Recorded jobs with a published truth: the injected rank is named and nobody else."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.shared_data import shared

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import Answer
from ingero.core.blame.step_trace import StepTrace
from ingero.core.blame.steps import blame_steps
from ingero.importers.ask import blame_inputs
from ingero.importers.detect import load
from ingero.importers.steps import read_steps


def _ask(*paths: Path) -> Answer:
    return blame_inputs(load(paths))


def _named(answer: Answer) -> list[tuple[int | None, CauseClass]]:
    return [(culprit.rank, culprit.cause) for culprit in answer.culprits]


def test_the_slowed_worker_of_the_64_gpu_trace_is_named_alone() -> None:
    answer = _ask(shared("data/bytedance"))
    assert _named(answer) == [(0, CauseClass.COMPUTE)]
    assert (answer.gpus, answer.steps, answer.not_sure) == (64, 44, None)


def test_step_times_and_shares_match_the_published_ones() -> None:
    folder = shared("data/bytedance")
    by_worker, by_stage = (
        json.loads((folder / f"{name}-AR.json").read_text()) for name in ("mw", "ms")
    )
    answer = _ask(folder / "trace-AR.parquet")
    assert answer.step_time_s == pytest.approx(by_worker["tori"], rel=0.001)
    assert answer.ideal_step_time_s == pytest.approx(by_worker["tideal"], rel=0.001)
    assert answer.shares["m_w"] == pytest.approx(by_worker["Mw"], abs=0.005)
    assert answer.shares["m_s"] == pytest.approx(by_stage["Ms"], abs=0.005)


def _only(trace: StepTrace, step: int) -> StepTrace:
    at = slice(step, step + 1)
    return replace(
        trace,
        start_s=trace.start_s[:, :, at],
        duration_s=trace.duration_s[:, :, at],
        steps=trace.steps[at],
    )


def test_each_step_alone_names_the_same_worker() -> None:
    trace = read_steps(shared("data/bytedance/trace-AR.parquet"))
    right = [
        _named(blame_steps(_only(trace, i))) == [(0, CauseClass.COMPUTE)]
        for i in range(len(trace.steps))
    ]
    assert sum(right) >= 0.95 * len(right)


@pytest.mark.parametrize(
    ("incident", "mechanism"), [("gpu_error_1st", "gpu_error"), ("lock_gil_1st", "host_lock")]
)
def test_injected_ranks_of_a_hang_are_named_with_their_mechanism(
    incident: str, mechanism: str
) -> None:
    folder = shared(f"data/flight-recorder/{incident}")
    first_line = (folder / "fault_injection.log").read_text().splitlines()[0]
    truth = json.loads(first_line.split(":", 1)[1])
    answer = _ask(folder)
    assert [culprit.rank for culprit in answer.culprits] == truth
    assert answer.cause is CauseClass.HANG
    assert all(culprit.detail.startswith(mechanism) for culprit in answer.culprits)


@pytest.mark.parametrize(
    ("run", "truth"),
    [
        ("healthy", []),
        ("gpu10_rank3", [(3, CauseClass.COMPUTE)]),
        ("host_rank5", [(5, CauseClass.HOST)]),
    ],
)
def test_records_of_eight_real_ranks_name_rank_and_class(
    run: str, truth: list[tuple[int, CauseClass]]
) -> None:
    assert _named(_ask(shared(f"data/nccl-h200/{run}/collectives.csv"))) == truth


@pytest.mark.parametrize(
    ("run", "truth"), [("healthy", []), ("gpu10_rank3", [3]), ("host_rank5", [5])]
)
def test_dumps_of_eight_real_ranks_alone_name_the_rank(run: str, truth: list[int]) -> None:
    folder = shared(f"data/nccl-h200/{run}")
    answer = _ask(*sorted(folder.glob("_dump_*")))
    assert [culprit.rank for culprit in answer.culprits] == truth


def test_the_better_source_answers_when_a_folder_holds_two() -> None:
    answer = _ask(shared("data/nccl-h200/host_rank5"))
    assert answer.source == "nccl-plugin"
    assert "present, but less exact: flight-recorder" in answer.notes


@pytest.mark.parametrize(
    ("incident", "missing", "named", "unsure"),
    [
        ("gpu_error_1st", [12], [14], True),
        ("lock_gil_1st", [14], [9], True),
        (
            "lock_gil_1st",
            [3, 9, 14],
            [9, 14],
            True,
        ),  # rank 3 is only absent: nobody waits for it first
        ("lock_gil_1st", [0, 5], [9, 14], False),
    ],
)
def test_partial_sets_are_noted_and_answered(
    incident: str, missing: list[int], named: list[int], unsure: bool
) -> None:
    folder = shared(f"data/flight-recorder/{incident}")
    answer = _ask(
        *(
            path
            for path in sorted(folder.glob("_dump_*"))
            if int(path.name.split("_")[-1]) not in missing
        )
    )
    assert [culprit.rank for culprit in answer.culprits] == named
    assert (answer.not_sure is not None) == unsure
    assert any(
        note.startswith(f"partial set: dumps of {16 - len(missing)} of 16 ranks")
        for note in answer.notes
    )
