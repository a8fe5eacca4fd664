"""Own time between collectives, per step, on the clock of each rank."""

import csv
from pathlib import Path

import numpy as np
import pytest
from tests.support.shared_data import shared

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.live_steps import LiveSteps, StepTimes
from ingero.core.collectives.own_time import own_segments
from ingero.core.collectives.step_search import LEARN_AFTER

MS = 1_000_000


def one_rank(rows: list[tuple[int, int, int]]) -> Collectives:
    """Rows of (enqueue, GPU start, GPU end) in milliseconds."""
    enqueue, start, end = (np.array(column) * MS for column in zip(*rows, strict=True))
    columns = {
        "who": np.zeros(len(rows)), "comm": np.ones(len(rows)), "op": np.zeros(len(rows)),
        "start_ns": enqueue, "end_ns": end, "gpu_duration_ns": end - start,
    }  # fmt: skip
    return from_columns(columns, ["AllReduce"], [Recorder(None, "n", 0)])


def test_own_time_splits_into_busy_and_idle_by_the_enqueue() -> None:
    """Free since 10, enqueued at 16, started at 30: the GPU waited 6 ms for its host."""
    segments = own_segments(one_rank([(0, 0, 10), (16, 30, 35), (20, 50, 60)]))
    assert np.allclose(segments.own_s[1:], [0.020, 0.015])
    assert np.allclose(segments.idle_s[1:], [0.006, 0.0])
    assert np.isnan(segments.own_s[0])


def test_overlapping_collectives_are_not_counted_twice() -> None:
    segments = own_segments(one_rank([(0, 0, 100), (0, 20, 40), (0, 130, 140)]))
    assert np.allclose(segments.own_s[1:], [0.0, 0.030])


def load_csv(path: Path) -> Collectives:
    rows = list(csv.DictReader(path.read_text().splitlines()))
    number = {
        key: np.array([int(row[key]) for row in rows])
        for key in ("enqueue_ns", "gpu_start_ns", "gpu_stop_ns")
    }
    columns = {
        "who": [int(row["global_rank"]) for row in rows],
        "comm": [int(row["comm_hash"], 16) for row in rows],
        "seq": [int(row["seq"]) for row in rows], "op": [0] * len(rows),
        "rank": [int(row["rank"]) for row in rows], "nranks": [int(row["nranks"]) for row in rows],
        "size_bytes": [int(row["count"]) for row in rows],
        "start_ns": number["enqueue_ns"], "end_ns": number["gpu_stop_ns"],
        "gpu_duration_ns": number["gpu_stop_ns"] - number["gpu_start_ns"],
    }  # fmt: skip
    return from_columns(columns, ["AllReduce"], [Recorder(None, None, rank) for rank in range(8)])


def _live_steps(rows: Collectives) -> StepTimes:
    """Feed two batches: the pattern is learned from the first, the second is measured."""
    stream, order = LiveSteps(), np.argsort(rows.end_ns, kind="stable")
    stream.take(rows.take(order[:LEARN_AFTER]))
    return stream.take(rows.take(order[LEARN_AFTER:])).times


@pytest.mark.parametrize(
    ("run", "culprit", "is_host"), [("gpu10_rank3", 3, False), ("host_rank5", 5, True)]
)
def test_real_ranks_differ_in_own_time_only(run: str, culprit: int, is_host: bool) -> None:
    """Eight real NCCL ranks have equal step times; only own time shows the slow one."""
    rows = load_csv(shared(f"data/nccl-h200/{run}") / "collectives.csv")
    steps = [_live_steps(rows.take(rows.who == rank)) for rank in range(8)]
    own, idle, span = (
        np.array([np.nanmedian(getattr(each, name)) for each in steps])
        for name in ("own_s", "idle_s", "span_s")
    )
    assert np.ptp(span) / span.mean() < 0.005
    assert own.argmax() == culprit
    others = np.delete(own, culprit)
    assert own[culprit] > 1.08 * np.median(others)
    assert others.max() < 1.06 * np.median(others)
    idle_excess = idle[culprit] - np.median(np.delete(idle, culprit))
    assert (idle_excess > 0.5 * (own[culprit] - np.median(others))) == is_host
