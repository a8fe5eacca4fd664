"""Blame of step traces: slow workers, unequal stages and uneven data are distinguished."""

from pathlib import Path

import numpy as np
import pytest
from tests.support.step_jobs import StepJob, trace_rows, write_parquet

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import Answer
from ingero.core.blame.step_trace import StepTrace, build_graph, replay, transfer_times
from ingero.core.blame.steps import blame_steps
from ingero.importers.steps import read_steps

pytest.importorskip("pyarrow", reason="step traces are Parquet, which needs the echo extra")


def _trace(job: StepJob, folder: Path) -> StepTrace:
    return read_steps(write_parquet(folder / "trace.parquet", trace_rows(job)))


def _named(answer: Answer) -> set[str]:
    return {culprit.worker for culprit in answer.culprits}


@pytest.mark.parametrize(
    ("job", "truth"),
    [
        pytest.param(StepJob(slow={(2, 1): 1.03}), {"dp2/pp1"}, id="3-percent"),
        pytest.param(StepJob(slow={(2, 1): 1.03}, seed=2), {"dp2/pp1"}, id="3-percent-other-seed"),
        pytest.param(StepJob(slow={(3, 2): 1.3, (0, 0): 1.2}), {"dp3/pp2", "dp0/pp0"}, id="two"),
        pytest.param(
            StepJob(slow={(3, 2): 1.3, (0, 2): 1.3}, dp=6),
            {"dp3/pp2", "dp0/pp2"},
            id="two-of-one-stage",
        ),
        pytest.param(
            StepJob(stage_factor={3: 1.2}, slow={(1, 1): 1.5}), {"dp1/pp1"}, id="beside-a-big-stage"
        ),
        pytest.param(StepJob(chunks=2, slow={(1, 3): 1.2}), {"dp1/pp3"}, id="interleaved"),
        pytest.param(StepJob(pp=1, dp=8, slow={(5, 0): 1.05}), {"dp5/pp0"}, id="no-pipeline"),
        pytest.param(StepJob(pp=8, dp=2, slow={(1, 5): 1.1}), {"dp1/pp5"}, id="two-replicas"),
    ],
)
def test_the_slow_worker_is_named_and_nobody_else(
    job: StepJob, truth: set[str], tmp_path: Path
) -> None:
    answer = blame_steps(_trace(job, tmp_path))
    assert (_named(answer), answer.cause) == (truth, CauseClass.COMPUTE)


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        pytest.param(StepJob(), None, id="healthy"),
        pytest.param(StepJob(chunks=2), None, id="healthy-interleaved"),
        pytest.param(
            StepJob(noise=0.05, chronic=0.006, pp=2, steps=8, seed=3), None, id="healthy-noisy"
        ),
        pytest.param(StepJob(stage_factor={3: 1.3}), CauseClass.STRUCTURAL, id="big-last-stage"),
        pytest.param(
            StepJob(stage_factor={3: 1.3}, chunks=2),
            CauseClass.STRUCTURAL,
            id="big-last-stage-interleaved",
        ),
        pytest.param(StepJob(imbalance=0.3), CauseClass.DATA_IMBALANCE, id="uneven-data"),
        pytest.param(
            StepJob(imbalance=0.3, chunks=2),
            CauseClass.DATA_IMBALANCE,
            id="uneven-data-interleaved",
        ),
        pytest.param(
            StepJob(imbalance=0.4, stage_factor={3: 1.15}),
            CauseClass.DATA_IMBALANCE,
            id="data-over-stage",
        ),
        pytest.param(
            StepJob(imbalance=0.5, dp=2, pp=2, steps=8),
            CauseClass.DATA_IMBALANCE,
            id="data-two-replicas",
        ),
    ],
)
def test_structure_and_data_blame_no_worker(
    job: StepJob, cause: CauseClass | None, tmp_path: Path
) -> None:
    answer = blame_steps(_trace(job, tmp_path))
    assert (answer.culprits, answer.cause) == ((), cause)


@pytest.mark.parametrize("chunks", [1, 2])
def test_replaying_the_recorded_times_gives_the_recorded_steps(chunks: int, tmp_path: Path) -> None:
    trace = _trace(StepJob(chunks=chunks, slow={(0, 2): 1.4}, imbalance=0.1), tmp_path)
    graph = build_graph(trace)
    recorded = (trace.start_s + trace.duration_s).max(axis=(0, 1))
    np.testing.assert_allclose(replay(graph, transfer_times(trace, graph)), recorded, rtol=0.005)


def test_the_price_is_what_the_job_gains_without_the_slow_worker(tmp_path: Path) -> None:
    slow = blame_steps(_trace(StepJob(slow={(3, 2): 1.3}), tmp_path))
    sound = blame_steps(_trace(StepJob(), tmp_path))
    assert (
        slow.loss_s is not None and slow.step_time_s is not None and sound.step_time_s is not None
    )
    assert slow.loss_s == pytest.approx(slow.step_time_s - sound.step_time_s, rel=0.05)
    assert slow.loss_gpu_hours == pytest.approx(32 * slow.loss_s * 12 / 3600)
    assert slow.usd_per_hour(2.0) == pytest.approx(32 * 2.0 * slow.loss_s / slow.step_time_s)


def test_one_replica_cannot_distinguish_the_stage_from_its_worker(tmp_path: Path) -> None:
    answer = blame_steps(_trace(StepJob(dp=1, stage_factor={2: 1.2}), tmp_path))
    assert (answer.culprits, answer.cause) == ((), CauseClass.STRUCTURAL)
    assert answer.not_sure is not None and answer.not_sure.startswith("there is only one replica")


def test_steps_with_holes_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = trace_rows(StepJob(slow={(2, 1): 1.2}))
    del rows[len(rows) // 2 : len(rows) // 2 + 5]
    answer = blame_steps(read_steps(write_parquet(tmp_path / "holes.parquet", rows)))
    assert _named(answer) == {"dp2/pp1"}
    assert answer.steps == 11
    assert answer.notes == ("1 steps lack operations of some worker and are left out",)


@pytest.mark.parametrize("field", ["duration", "start_ts", "rank", "optype"])
def test_one_bad_row_refuses_no_trace(field: str, tmp_path: Path) -> None:
    rows, problems = trace_rows(StepJob(slow={(2, 1): 1.2})), list[str]()
    rows[len(rows) // 2][field] = None
    trace = read_steps(write_parquet(tmp_path / "bad.parquet", rows), problems=problems)
    assert _named(blame_steps(trace)) == {"dp2/pp1"}
    (said,) = problems
    assert f"1 of {len(rows)} operations are left out" in said
