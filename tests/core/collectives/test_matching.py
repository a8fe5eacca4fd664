"""Matching of collectives without sequence numbers."""

import numpy as np
from tests.support.collective_rows import MS, collective

from ingero.core.collectives.columns import from_columns
from ingero.core.collectives.matching import match_collectives


def test_f071_a_rank_across_the_bucket_edge_joins_its_peers() -> None:
    """F071, vector V7."""
    entries = [9_990.0] * 8
    entries[3] = 10_020.0
    groups = match_collectives(collective([5.0] * 8, entries_ms=entries))
    assert len(set(groups.tolist())) == 1


def test_f071_far_from_an_edge_no_rank_moves() -> None:
    entries = [9_500.0] * 8
    entries[3] = 10_400.0
    assert len(set(match_collectives(collective([5.0] * 8, entries_ms=entries)).tolist())) == 2


def test_f110_all_ranks_of_a_bucket_are_joined_for_100_buckets() -> None:
    """F110: no sequence numbers, entries jittered by up to 40 ms around arbitrary instants."""
    rng = np.random.default_rng(1)
    instants = np.cumsum(rng.uniform(1_500, 2_500, 100))
    entry = (np.repeat(instants, 8) + rng.uniform(0, 40, 800)) * MS
    columns = {
        "comm": np.ones(800), "op": np.zeros(800), "rank": np.tile(np.arange(8), 100),
        "nranks": np.full(800, 8), "start_ns": entry, "end_ns": entry + MS,
    }  # fmt: skip
    groups = match_collectives(from_columns(columns, ["AllReduce"], []))
    assert np.array_equal(np.sort(groups.reshape(100, 8)[:, 0]), np.arange(100))
    assert (groups.reshape(100, 8) == groups.reshape(100, 8)[:, :1]).all()
