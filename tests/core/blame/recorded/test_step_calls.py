"""Calls of a step as tables, by hand: when they were needed, in which step, and on which stream."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.blame_tables import step_calls

from ingero.core.blame.recorded.step_calls import (
    FLAG,
    _from_flag_to_flag,
    _needed_ns,
    _slots,
    find_queued,
    tabulate_calls,
)
from ingero.core.collectives.columns import Collectives, Recorder, from_columns

RANKS = (0, 1)


def rows(**columns: list[int]) -> Collectives:
    """Return calls with times of the GPU: from `entry` to `end`, enqueued at `start`."""
    entry, end = columns.pop("entry"), columns.pop("end")
    length = [after - before for before, after in zip(entry, end, strict=True)]
    given = {"end_ns": end, "gpu_duration_ns": length, "start_ns": columns.pop("start"), **columns}
    size = len(end)
    usual = {"comm": [7] * size, "op": [0] * size, "rank": columns["who"], "nranks": [2] * size}
    recorders = [Recorder(None, None, rank) for rank in RANKS]
    return from_columns({**usual, **given}, ("AllReduce",), recorders)


def test_a_call_is_needed_once_the_work_before_an_earlier_one_is_done() -> None:
    """Times in ms: rank 0 enqueues five calls, two on streams of their own, and rank 1 two later.

    The second ran ahead of its work: its stream was free for the fifth, which was needed sooner.
    """
    ms = 1_000_000
    calls = rows(
        who=[0, 0, 0, 0, 0, 1, 1],
        stream=[1, 1, 2, 3, 1, 1, 1],
        start=[0, 20 * ms, 30 * ms, 35 * ms, 40 * ms, 50 * ms, 60 * ms],
        entry=[100 * ms, 300 * ms, 150 * ms, 170 * ms, 250 * ms, 70 * ms, 90 * ms],
        end=[110 * ms, 310 * ms, 180 * ms, 400 * ms, 260 * ms, 75 * ms, 95 * ms],
    )
    assert (_needed_ns(calls) // ms).tolist() == [100, 300, 180, 250, 250, 70, 90]


@pytest.mark.parametrize(
    ("enqueued", "began", "stream", "who", "is_queued"),
    [
        pytest.param(50_000, 130_000, 1, 0, True, id="30 us behind the one before it"),
        pytest.param(50_000, 130_001, 1, 0, False, id="later: it was not ready before"),
        pytest.param(100_000, 100_000, 1, 0, False, id="enqueued when its stream was free"),
        pytest.param(50_000, 100_000, 2, 0, False, id="on another stream"),
        pytest.param(50_000, 100_000, 1, 1, False, id="of another rank"),
    ],
)
def test_a_call_was_queued_if_it_began_when_its_stream_was_free(
    enqueued: int, began: int, stream: int, who: int, is_queued: bool
) -> None:
    calls = rows(
        who=[0, 0, who],
        stream=[1, 1, stream],
        start=[0, 10_000, enqueued],
        entry=[1_000, 20_000, began],
        end=[9_000, 100_000, 200_000],
    )
    assert find_queued(calls).tolist() == [False, False, is_queued]


def test_the_call_before_on_a_stream_is_the_last_one_of_its_step() -> None:
    """The flag, three calls of one stream, one of another, and two without a stream."""
    calls = step_calls(
        np.zeros((1, 1, 7)), np.zeros((1, 1, 7)), stream=np.array([[5, 5, 5, 6, 5, -1, -1]])
    )
    before = [calls.before_on_stream(0, place) for place in range(7)]
    assert before == [None, None, 1, None, 2, None, None]


def test_collectives_are_numbered_by_a_step_that_has_most_of_them() -> None:
    """Of the steps with most calls the middle one; whoever has flags shares one, at any step."""
    group = np.full((3, 4, 3), -1)
    group[:, 0, 1:] = [[-1, 1], [-1, 1], [-1, 1]]
    group[:, 1, 1:] = [[2, 3], [2, 3], [3, -1]]
    group[:, 2, 1:] = [[4, 5], [4, -1], [5, 4]]
    group[:2, 3, FLAG] = [0, 6]
    assert _slots(group).tolist() == [[2, 0, 1], [2, 0, -1], [-1, 1, 0]]


def grid(step: list[int], place: list[int], flag: list[int]) -> Any:
    """Return what the grid says: two ranks of one role, and the step that follows each flag."""
    return SimpleNamespace(
        ranks=RANKS,
        row_step=np.array(step),
        row_place=np.array(place),
        flag_step=np.array(flag),
        workers=SimpleNamespace(cohort=np.zeros(len(RANKS), int)),
    )


def flagged(flag_ns: int) -> tuple[Collectives, Any]:
    """Return three steps of three calls on two ranks, 1 s each, with a flag in each step."""
    at, step, place, flag = [], [], [], []
    for number in range(3):
        at += [number * 1000 + offset for offset in (100, 300, 500, flag_ns)]
        step += [number, number, number, -1]
        place += [0, 1, 2, -1]
        flag += [-1, -1, -1, number]
    start = [1_000_000 * each for each in at]
    calls = rows(
        who=[0] * 12 + [1] * 12,
        seq=[*range(12)] * 2,
        stream=[3] * 24,
        start=start * 2,
        entry=start * 2,
        end=[each + 10_000_000 for each in start] * 2,
    )
    return calls, grid(step * 2, place * 2, flag * 2)


def test_steps_begin_at_the_flag_of_all_ranks() -> None:
    """Flags come before the second call: the first one of the grid belongs to the step before."""
    calls, measured = flagged(200)
    step, place = _from_flag_to_flag(calls, measured)
    assert step[:12].tolist() == [-1, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert place[:12].tolist() == [3, 1, 2, FLAG] * 3
    assert step[12:].tolist() == step[:12].tolist()
    assert place[12:].tolist() == place[:12].tolist()


def test_a_table_has_the_steps_that_were_asked_for() -> None:
    calls, measured = flagged(200)
    found = tabulate_calls(calls, measured, slice(1, 3))
    assert found is not None
    assert found.start.shape == (2, 2, 4)
    np.testing.assert_allclose(found.start[0, 0], [0.0, 0.1, 0.3, 0.9])
    np.testing.assert_allclose(found.end - found.start, [[[0.01] * 4, [0.01] * 3 + [np.nan]]] * 2)
    assert found.slot.tolist() == [[3, 0, 1, 2]] * 2
    assert tabulate_calls(calls, measured, slice(7, 9)) is None


def test_a_flag_between_the_calls_of_a_step_ends_none() -> None:
    """All flags come before the second call, but one of rank 1 only after it."""
    calls, measured = flagged(200)
    late = np.flatnonzero((calls.who == 1) & (measured.flag_step == 1))
    for column in (calls.start_ns, calls.end_ns):
        column[late] += 200_000_000
    found = tabulate_calls(calls, measured, slice(0, 3))
    assert found is not None
    assert np.isnan(found.start[:, :, FLAG]).tolist() == [[False] * 3, [False, True, False]]
