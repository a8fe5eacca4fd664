"""Real training jobs of several shapes: rank, class, step time and loss are those of the job."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.recording_score import read_recordings, score
from tests.support.shared_data import recorded_rings, shared

from ingero.core.blame.answer import Answer
from ingero.core.blame.records import blame_records
from ingero.core.collectives.columns import Collectives, concat
from ingero.importers.nccl_ring import read_ring

FAULTS = [
    ("ddp", "rank_6_gpu_6p", 6, "compute", None),
    ("ddp", "rank_2_loader_60ms_every_10", 2, "host", 10),
    ("accum", "rank_3_gpu_6p", 3, "compute", None),
    ("fsdp", "rank_1_gpu_6p", 1, "compute", None),
    ("fsdp", "rank_4_host_4ms", 4, "host", None),
    ("pp", "rank_5_gpu_10p", 5, "compute", None),
]


def _load(recording: str, folder: Path) -> Collectives:
    return concat([read_ring(path)[0] for path in recorded_rings(recording, folder)])


def _ask(columns: Collectives) -> Answer:
    return blame_records(columns, True, "test", 8)


@pytest.mark.parametrize("job", ["ddp", "accum", "fsdp", "pp"])
def test_nobody_is_blamed_in_a_healthy_job_nor_in_a_part_of_it(job: str, tmp_path: Path) -> None:
    columns = _load(f"{job}/healthy", tmp_path)
    truth = json.loads(shared(f"data/nccl-jobs/{job}/truth.json").read_text())
    answer = _ask(columns)
    assert (answer.culprits, answer.cause) == ((), None)
    assert answer.step_time_s is not None
    own_ms = truth["recordings"]["healthy"]["step_ms_mean"]
    assert answer.step_time_s * 1e3 == pytest.approx(own_ms, rel=0.01)
    end_s, chance = columns.end_ns / 1e9, np.random.default_rng(13)
    first = max(end_s[columns.who == who].min() for who in range(8))
    for _ in range(3):
        length = chance.uniform(15, 25)
        begin = chance.uniform(first, end_s.max() - length)
        part = _ask(columns.take((end_s > begin) & (end_s < begin + length)))
        assert (part.culprits, part.cause) == ((), None)


@pytest.mark.parametrize(("job", "recording", "rank", "cause", "period"), FAULTS)
def test_the_slow_rank_of_a_job_is_named_with_class_and_loss(
    job: str, recording: str, rank: int, cause: str, period: int | None, tmp_path: Path
) -> None:
    facts = json.loads(shared(f"data/nccl-jobs/{job}/truth.json").read_text())["recordings"]
    truth, mean = facts[recording], "step_ms_mean" if period else "step_ms_median"
    loss = 1 - facts["healthy"][mean] / truth[mean]
    answer = _ask(_load(f"{job}/{recording}", tmp_path))
    named = {c.rank: c for c in answer.culprits}
    earlier = truth.get("earlier_fault", {}).get("rank")
    assert set(named) - {earlier} == {rank}
    culprit = named[rank]
    assert (str(culprit.cause), culprit.period) == (cause, period)
    assert culprit.loss is not None and culprit.times is not None
    if culprit.at_most:
        assert max(loss, 0) <= culprit.loss <= max(2 * loss + 0.03, 0.1)
    else:
        assert culprit.loss_error is not None
        bound = max(0.01, 0.2 * loss, culprit.loss_error)
        assert culprit.loss == pytest.approx(loss, abs=bound)


@pytest.mark.parametrize("job", ["ddp", "accum", "fsdp", "pp"])
def test_windows_cut_out_of_a_slow_job_are_told_right(job: str) -> None:
    """Rank, class and "at most" hold in 15 to 30 seconds; `make recordings` cuts sixty windows."""
    recording = next(
        each for each in read_recordings(shared(f"data/nccl-jobs/{job}")) if each.faults
    )
    found = score(recording, windows=2)
    assert (found.asked, found.wrong) == (3, [])
    assert found.covered == found.bars
