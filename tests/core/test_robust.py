"""Medians of groups of rows, compared with numpy group by group."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from, tuples

from ingero.core.robust import group_medians, nan_median, peer_medians, sorted_order

ROWS = lists(tuples(integers(0, 5), integers(0, 2**62)), max_size=40)


@given(rows=ROWS)
def test_group_medians_agree_with_numpy(rows: list[tuple[int, int]]) -> None:
    groups = np.array([group for group, _ in rows], np.intp)
    values = np.array([value for _, value in rows], np.int64)
    medians = group_medians(groups, values, 7)
    lower = group_medians(groups, values.astype(float), 7, is_lower=True)
    for group in range(7):
        mine = np.sort(values[groups == group])
        if len(mine):
            assert medians[group] == pytest.approx(np.median(mine.astype(float)))
            assert lower[group] == float(mine[(len(mine) - 1) // 2])
        else:
            assert np.isnan(medians[group]) and np.isnan(lower[group])


def test_small_and_large_integers_are_sorted_alike() -> None:
    """Integers that fit beside their group number are sorted in one key, larger ones in two."""
    groups, values = np.array([1, 0, 1, 0, 1]), np.array([5, 9, 1, 2, 7])
    large = values + 2**62
    assert group_medians(groups, values, 2).tolist() == [5.5, 5.0]
    assert group_medians(groups, large, 2).tolist() == [2**62 + 5.5, 2**62 + 5.0]


@given(size=integers(2, 9), seed=integers(0, 99))
def test_peer_medians_leave_each_row_itself_out(size: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 5, 2 * size).astype(float)
    groups = np.repeat([0, 4], size)
    expected = [np.median(np.delete(values[:size], i)) for i in range(size)]
    expected += [np.median(np.delete(values[size:], i)) for i in range(size)]
    assert np.allclose(peer_medians(groups, values), expected)


def test_a_single_row_has_no_peers() -> None:
    assert np.isnan(peer_medians(np.array([0, 1, 1]), np.array([1.0, 2.0, 3.0]))).tolist() == [
        True,
        False,
        False,
    ]


@given(integers(0, 2**32), tuples(integers(1, 7), integers(1, 7)), sampled_from([0, 1]))
def test_nan_median_is_that_of_numpy(seed: int, shape: tuple[int, int], axis: int) -> None:
    rng = np.random.default_rng(seed)
    table = np.where(rng.random(shape) < 0.4, np.nan, rng.normal(size=shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where nothing is known
        wanted = np.nanmedian(table, axis=axis)
    assert np.array_equal(nan_median(table, axis), wanted, equal_nan=True)


def test_nan_median_is_nan_where_nothing_is_finite() -> None:
    table = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan]])
    assert np.array_equal(nan_median(table, 0), [2.0, np.nan], equal_nan=True)


@given(
    lists(
        tuples(*[integers(-3, 3) | sampled_from([-(2**63), 2**63 - 1, 70_000])] * 3),
        max_size=20,
    )
)
def test_the_order_of_several_keys_is_that_of_lexsort(rows: list[tuple[int, int, int]]) -> None:
    keys = np.array(rows, np.int64).reshape(-1, 3).T
    assert sorted_order(*keys).tolist() == np.lexsort(keys[::-1]).tolist()
