"""Kinds of collectives as codes."""

import time

import numpy as np

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.step_kinds import Detail, Kind, code_kinds


def calls(sizes: np.ndarray) -> Collectives:
    nothing = np.zeros(len(sizes), np.int64)
    columns = {
        "who": nothing, "comm": nothing, "seq": np.arange(len(sizes)), "op": nothing,
        "rank": nothing, "nranks": nothing + 8, "size_bytes": sizes, "start_ns": nothing,
        "end_ns": nothing, "source": nothing,
    }  # fmt: skip
    return from_columns(columns, ("AllReduce",), (Recorder("j", "n", 0),))


def test_kinds_are_numbered_in_their_own_order() -> None:
    found = code_kinds(calls(np.array([9, 5, 9, 7])), Detail.SIZES)
    assert found.code.tolist() == [2, 0, 2, 1]
    assert found.kinds == tuple(Kind("AllReduce", size, 8, 0) for size in (5, 7, 9))


def test_many_kinds_cost_no_more_each_than_few() -> None:
    """Messages of a job may all have sizes of their own."""
    rows = calls(np.random.default_rng(3).permutation(20_000))
    began_s = time.thread_time()
    assert len(code_kinds(rows, Detail.SIZES).kinds) == 20_000
    assert time.thread_time() - began_s < 2.0, (
        "it takes a tenth of that, and 4.5 s if each is searched"
    )
