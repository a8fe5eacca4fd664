"""Clock offsets and drifts from the exits of collectives."""

import numpy as np
from hypothesis import given
from hypothesis.strategies import floats, integers

from ingero.core.clocks.offsets import align_clocks, fit_clock, theil_sen

EXITS = 1_700_000_000_000_000_000 + np.cumsum(
    np.random.default_rng(3).integers(20_000_000, 60_000_000, 200)
)


@given(offset_ns=integers(-5_000_000_000, 5_000_000_000), ppm=floats(-100, 100))
def test_offset_and_drift_are_recovered_within_the_error(offset_ns: int, ppm: float) -> None:
    noise = np.random.default_rng(5).normal(0, 3_000, len(EXITS))
    ahead = offset_ns + ppm * 1e-6 * (EXITS - EXITS[0]) + noise
    fit = fit_clock(EXITS, EXITS + ahead.astype(np.int64))
    assert fit is not None
    assert abs(fit.drift - ppm * 1e-6) < 2e-6
    assert np.abs(fit.to_reference(EXITS + ahead.astype(np.int64)) - EXITS).max() < 6 * fit.error_ns
    assert 1_000 < fit.error_ns < 10_000


def test_a_few_late_exits_do_not_move_the_fit() -> None:
    late = EXITS + 1_000_000
    late[::7] += 500_000_000
    fit = fit_clock(EXITS, late)
    assert fit is not None
    assert abs(fit.offset_ns - 1_000_000) < 10


def test_nothing_in_common_is_unknown_not_zero() -> None:
    assert fit_clock(EXITS[:0], EXITS[:0]) is None
    assert theil_sen(np.ones(3), np.arange(3.0)) == 0.0
    host = np.array([0, 0, 1, 2], np.int32)
    group = np.array([0, 1, 1, 2])
    assert align_clocks(host, group, np.array([10, 20, 25, 30])).keys() == {0, 1}


def test_hosts_are_aligned_through_a_third_one() -> None:
    """Host 2 shares collectives with host 1 only, and is still placed on host 0's clock."""
    skew = {0: 0, 1: 5_000_000_000, 2: -3_000_000_000}
    rows = [
        (host, index, EXITS[index] + skew[host])
        for index in range(100)
        for host in ((0, 1), (1, 2))[index % 2]
    ]
    rows += [(0, 1_000 + index, EXITS[index]) for index in range(60)]
    host, group, exits = (np.array(column) for column in zip(*rows, strict=True))
    fits = align_clocks(host.astype(np.int32), group, exits)
    assert {who: round(fit.offset_ns) for who, fit in fits.items()} == skew
