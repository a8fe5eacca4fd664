"""The rank that others wait for: named with its period only when it stands out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.questions_data import collectives

from ingero.core.collectives.columns import from_records
from ingero.core.collectives.waiting import find_late, measure_waiting


def unknown(rows: int) -> np.ndarray:
    return np.full(rows, np.nan)


def test_f108_v6b_a_late_rank_is_named_though_its_own_time_is_shortest() -> None:
    columns = from_records(collectives(10, 8, {step: {5: 290.0} for step in range(10)}))
    waiting = measure_waiting(columns, unknown(80))
    late = find_late(columns, waiting)
    assert late is not None
    assert (columns.recorders[late.who].global_rank, late.times, late.share) == (5, 10, 1.0)
    assert late.lateness_ms == pytest.approx(290, abs=0.1)
    assert waiting.wait_ms[:8].tolist() == pytest.approx([290.0] * 5 + [0.0] + [290.0] * 2, abs=0.1)


def test_f109_the_period_counts_operations() -> None:
    columns = from_records(collectives(60, 4, {step: {1: 50.0} for step in range(0, 60, 14)}))
    late = find_late(columns, measure_waiting(columns, unknown(240)))
    assert late is not None
    assert late.period == 14


def test_no_rank_is_named_when_ranks_take_turns() -> None:
    columns = from_records(collectives(40, 4, {step: {step % 4: 20.0} for step in range(40)}))
    assert find_late(columns, measure_waiting(columns, unknown(160))) is None
    even = from_records(collectives(40, 4, {}))
    assert find_late(even, measure_waiting(even, unknown(160))) is None


def test_lateness_from_the_sender_is_preferred() -> None:
    columns = from_records(collectives(5, 4, {}))
    given_ms = unknown(20)
    given_ms[columns.rank == 2] = 7.0
    waiting = measure_waiting(columns, given_ms)
    assert waiting.lateness_ms[columns.rank == 2].tolist() == [7.0] * 5
    late = find_late(columns, waiting)
    assert late is not None
    assert columns.recorders[late.who].global_rank == 2


def test_ranks_of_unknown_lateness_are_not_on_time() -> None:
    """Five of sixteen ranks report, two of them the same lateness: no rank stands out."""
    columns = from_records(collectives(5, 16, {}))
    columns = columns.take(columns.rank < 5)
    waiting = measure_waiting(columns, np.where(columns.rank < 2, 10.0, np.nan))
    assert np.isnan(waiting.lateness_ms[columns.rank >= 2]).all()
    assert not waiting.is_last.any()
    assert find_late(columns, waiting) is None


@given(st.dictionaries(st.integers(0, 7), st.floats(2, 500), max_size=3), st.booleans())
def test_waiting_is_never_negative_and_the_last_rank_does_not_wait(
    late: dict[int, float], is_gpu_timed: bool
) -> None:
    columns = from_records(
        collectives(4, 8, dict.fromkeys(range(4), late), is_gpu_timed=is_gpu_timed)
    )
    waiting = measure_waiting(columns, unknown(32))
    assert np.nanmin(waiting.wait_ms) >= 0
    assert (waiting.wait_ms[waiting.is_last] == 0).all()
    assert waiting.is_last.sum() <= 4
