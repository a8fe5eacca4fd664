"""Arrivals are measured back from the common end, so that clocks of two machines never meet."""

import numpy as np
import pytest

from ingero.core.collectives.arrivals import charge_steps, measure_arrivals
from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.matching import match_collectives
from ingero.core.collectives.pairs.numbers import number_point_to_point

MS = 1_000_000
OPS = ("AllReduce", "Send", "Recv")


def all_reduces(arrivals_ms: list[list[float]], clock_ms: list[float]) -> Collectives:
    """One all-reduce per row of `arrivals_ms`; each rank's clock is off by its `clock_ms`."""
    arrivals = np.array(arrivals_ms)
    operations, ranks = arrivals.shape
    end = arrivals.max(axis=1, keepdims=True) + 2.0
    shape = (operations, ranks)
    who = np.broadcast_to(np.arange(ranks), shape).ravel()
    clock = np.array(clock_ms)
    return from_columns(
        {
            "who": who,
            "comm": np.full(arrivals.size, 7),
            "seq": np.repeat(np.arange(operations), ranks),
            "op": np.zeros(arrivals.size),
            "rank": who,
            "nranks": np.full(arrivals.size, ranks),
            "size_bytes": np.full(arrivals.size, 1 << 20),
            "start_ns": ((arrivals - 0.5 + clock) * MS).astype(np.int64).ravel(),
            "end_ns": ((end + clock) * MS).astype(np.int64).ravel(),
            "gpu_duration_ns": ((end - arrivals) * MS).astype(np.int64).ravel(),
        },
        OPS,
        tuple(Recorder(None, f"node-{rank}", rank) for rank in range(ranks)),
    )


def test_the_last_arriver_is_charged_what_it_adds_to_the_second_last() -> None:
    columns = all_reduces([[1.0, 3.0, 8.0, 2.0], [5.0, 1.0, 1.0, 1.0]], [0.0, 3e6, -50.0, 7.0])
    found = measure_arrivals(columns, match_collectives(columns))
    assert found.advance_s * 1e3 == pytest.approx([0, 0, 5, 0, 4, 0, 0, 0])
    assert found.start_late_s * 1e3 == pytest.approx([-1, 1, 6, 0, 4, 0, 0, 0])
    assert found.enqueue_late_s == pytest.approx(found.start_late_s)
    assert found.transfer_s == pytest.approx(np.full(8, 2e-3))


def test_two_late_ranks_of_four_make_nobody_early() -> None:
    columns = all_reduces([[1.0, 1.0, 6.0, 9.0]], [0.0] * 4)
    found = measure_arrivals(columns, match_collectives(columns))
    assert found.start_late_s * 1e3 == pytest.approx([0, 0, 5, 8])
    columns = all_reduces([[1.0, 2.0, 6.0], [0.0, 4.0, 4.0]], [0.0] * 3)
    found = measure_arrivals(columns, match_collectives(columns))
    assert found.start_late_s * 1e3 == pytest.approx([-3, -1.5, 4.5, -4, 2, 2]), "of the others"


def test_a_collective_without_all_members_has_no_arrivals() -> None:
    columns = all_reduces([[1.0, 3.0, 8.0]], [0.0, 0.0, 0.0])
    part = columns.take(np.array([0, 1]))
    assert np.isnan(measure_arrivals(part, match_collectives(part)).advance_s).all()


def test_members_that_name_different_numbers_of_ranks_are_not_compared() -> None:
    columns = all_reduces([[1.0, 3.0], [1.0, 4.0]], [0.0, 0.0])
    columns.nranks[1] = 1_048_575
    found = measure_arrivals(columns, match_collectives(columns))
    assert found.advance_s[2:] * 1e3 == pytest.approx([0, 3])
    assert np.isnan(found.advance_s[:2]).all()


def test_one_delay_is_charged_once_or_summed() -> None:
    advance = np.array([0.003, 0.002, 0.001, np.nan, 0.004])
    low, high = charge_steps(advance, np.array([1, 1, 0, 1, 1]), np.array([0, 0, 0, 0, -1]), (2, 1))
    assert low.tolist() == [[0.001], [0.003]]
    assert high.tolist() == [[0.001], [0.005]]


def test_sends_in_both_directions_are_matched_by_sender_and_receiver() -> None:
    # Rank 0 sends and then receives; rank 1 receives and then sends, as in a pipeline.
    columns = number_point_to_point(
        from_columns(
            {
                "who": [0, 0, 1, 1],
                "comm": [7, 7, 7, 7],
                "seq": [-1, -1, -1, -1],
                "op": [1, 2, 2, 1],
                "rank": [0, 0, 1, 1],
                "nranks": [8, 8, 8, 8],
                "peer": [1, 1, 0, 0],
                "size_bytes": [1 << 20] * 4,
                "start_ns": [0, 10 * MS, 0, 10 * MS],
                "end_ns": [5 * MS, 15 * MS, 5 * MS, 15 * MS],
                "gpu_duration_ns": [1 * MS, 4 * MS, 3 * MS, 1 * MS],
            },
            OPS,
            (Recorder(None, None, 0), Recorder(None, None, 1)),
        )
    )
    groups = match_collectives(columns)
    assert groups[0] == groups[2] != groups[1] == groups[3]
    found = measure_arrivals(columns, groups)
    assert found.advance_s * 1e3 == pytest.approx([2, 0, 0, 3])
