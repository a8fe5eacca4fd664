"""Recordings of eight real ranks, changed: the answer stays, or it becomes weaker, but never wrong.

`make recordings-changed` asks about every recorded job in this way.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.changed_recordings import add_flags, change, judge
from tests.support.recording_score import Fault, ask
from tests.support.shared_data import shared

from ingero.core.blame.recorded.gpu_bound import find_gpu_bound
from ingero.core.collectives.columns import Collectives, from_records
from ingero.importers.collectives_csv import read_csv

FAULTS = {
    "healthy": (),
    "gpu10_rank3": (Fault(3, "compute", 0.0, 0.0, None),),
    "host_rank5": (Fault(5, "host", 0.0, 0.0, None),),
}


def _read(name: str) -> Collectives:
    path = shared(f"data/nccl-h200/{name}/collectives.csv")
    return from_records(read_csv(path, path.read_text()))


@pytest.mark.parametrize("name", FAULTS)
def test_a_changed_recording_never_blames_a_healthy_rank(name: str) -> None:
    columns = _read(name)
    before, dice = ask(columns), np.random.default_rng(4711)
    wrong = {
        changed.how: found
        for changed in change(columns, dice)
        if (found := judge(FAULTS[name], before, changed, ask(changed.columns)))
    }
    assert wrong == {}


def test_flags_are_added_between_steps() -> None:
    columns = _read("healthy")
    more = add_flags(columns, 7)
    flags = more.take(more.comm == 0xF1A6)
    assert len(flags) == 8 * len(np.unique(flags.seq)) > 100
    assert len(more) == len(columns) + len(flags)


def test_a_queue_that_was_not_recorded_names_nobody() -> None:
    unknown = np.full((8, 200, 1), np.nan)
    empty: Any = SimpleNamespace(start_s=unknown, enqueue_s=unknown, advance_s=unknown)
    assert find_gpu_bound(empty, np.full(200, 0.05)) is None
