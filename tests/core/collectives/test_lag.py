"""Peer lag and lateness."""

import numpy as np
from hypothesis import given
from hypothesis.strategies import floats, integers
from tests.support.collective_rows import MS, collective

from ingero.core.clocks.offsets import align_clocks
from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.lag import measure_lag
from ingero.core.collectives.matching import match_collectives


def lag_of(columns: Collectives, **how: object):  # type: ignore[no-untyped-def]  # one call
    return measure_lag(columns, match_collectives(columns), **how)  # type: ignore[arg-type]


def test_f069_published_peer_lag_is_own_duration_minus_the_median() -> None:
    """F069, vector V6."""
    lag = lag_of(collective([10, 10, 11, 10, 9, 290, 10, 10]))
    assert lag.peer_lag_ms.tolist() == [0, 0, 1, 0, -1, 280, 0, 0]


def test_lateness_is_read_from_entries_though_the_late_rank_is_shortest() -> None:
    """Vector V6b: rank 5 enters 290 ms late and therefore waits least."""
    entries = [0.0] * 8
    entries[5] = 290
    lag = lag_of(collective([300 - entry for entry in entries], entries_ms=entries))
    assert lag.lateness_ms.tolist() == [0, 0, 0, 0, 0, 290, 0, 0]
    assert lag.peer_lag_ms[5] == -290


def test_gpu_timed_lateness_needs_no_clock() -> None:
    """The same lateness whatever the hosts' clocks say."""
    durations = [300.0] * 8
    durations[5] = 10.0
    skewed = [rank * 1_000.0 for rank in range(8)]
    lag = lag_of(collective(durations, entries_ms=skewed, seq=4, gpu=True))
    assert lag.lateness_ms.tolist() == [0, 0, 0, 0, 0, 290, 0, 0]
    assert set(lag.transfer_ms.tolist()) == {10.0}


@given(skew_s=floats(-5, 5), seed=integers(0, 10))
def test_f072_only_the_late_one_of_64_ranks_stands_out(skew_s: float, seed: int) -> None:
    """F072: rank 41 is 80 ms late; host clocks differ by seconds and are aligned from the exits."""
    rng = np.random.default_rng(seed)
    parts_seq, rows = 20, 64 * 20
    rank = np.tile(np.arange(64), parts_seq)
    seq = np.repeat(np.arange(parts_seq), 64)
    offset = np.round(rng.uniform(-1, 1, 64) * skew_s * 1e9).astype(np.int64)
    arrival = seq * 1_000 * MS + (rng.uniform(0, 5, rows) + 80.0 * (rank == 41)) * MS
    exit_ns = (seq * 1_000 + 100) * MS
    columns = {
        "who": rank, "comm": np.ones(rows), "seq": seq, "op": np.zeros(rows), "rank": rank,
        "nranks": np.full(rows, 64), "start_ns": arrival.astype(np.int64) + offset[rank],
        "end_ns": exit_ns + offset[rank],
    }  # fmt: skip
    columns_ = from_columns(columns, ["AllReduce"], [Recorder(None, f"n{n}", n) for n in range(64)])
    groups = match_collectives(columns_)
    lag = measure_lag(columns_, groups, align_clocks(columns_.who, groups, columns_.end_ns))
    mean = np.array([np.nanmean(lag.shown_lateness_ms[rank == each]) for each in range(64)])
    assert np.flatnonzero(mean > 50).tolist() == [41]


def test_an_unknown_clock_shows_no_lateness() -> None:
    late = collective([5.0] * 4, entries_ms=[0, 0, 0, 90])
    lag = lag_of(late, clocks={})
    assert np.isinf(lag.error_ms).all()
    assert np.isnan(lag.shown_lateness_ms).all()  # without a fit no rank is known to be on time


def test_send_and_receive_are_one_pair() -> None:
    columns = {
        "comm": [1] * 4, "seq": [0] * 4, "op": [0, 1, 0, 1], "rank": [0, 1, 2, 3],
        "peer": [1, 0, 3, 2], "nranks": [2] * 4, "start_ns": [0] * 4,
        "end_ns": [10 * MS, 4 * MS, 5 * MS, 5 * MS],
        "gpu_duration_ns": [10 * MS, 4 * MS, 5 * MS, 5 * MS],
    }  # fmt: skip
    both = from_columns(columns, ["Send", "Recv"], [])
    lag = measure_lag(both, match_collectives(both))
    assert lag.lateness_ms.tolist() == [0, 6, 0, 0]


def test_too_few_ranks_give_no_lag() -> None:
    lag = lag_of(collective([10.0] * 8).take(np.arange(3)))
    assert np.isnan(lag.peer_lag_ms).all()
    assert np.isnan(lag.lateness_ms).all()


@given(order=integers(0, 1000))
def test_the_order_of_rows_changes_nothing(order: int) -> None:
    columns = collective([3.0, 1.0, 2.0, 9.0], seq=1, gpu=True)
    shuffled = np.random.default_rng(order).permutation(4)
    assert np.array_equal(
        lag_of(columns).lateness_ms[shuffled], lag_of(columns.take(shuffled)).lateness_ms
    )
