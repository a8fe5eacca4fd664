"""Figures of a large file come from its aggregates and are those of its rows."""

import sqlite3
from pathlib import Path

import pytest

from ingero.sim.samples import write_samples
from ingero.storage import operations
from ingero.storage.operations import OpFilter, read_operations
from ingero.storage.trace.reading import reading


@pytest.mark.parametrize("rare_rows", [0, 200, 10**9])
def test_the_short_way_gives_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rare_rows: int
) -> None:
    path = write_samples(tmp_path, rows=None)[0]
    with reading(path) as connection:
        by_rows = read_operations(connection, OpFilter())
        monkeypatch.setattr(operations, "MANY_ROWS", 0)
        monkeypatch.setattr(operations, "RARE_ROWS", rare_rows)
        monkeypatch.setattr(operations, "_by_node", None)  # no row by row
        assert read_operations(connection, OpFilter()) == by_rows


def test_aggregates_that_do_not_match_the_rows_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_samples(tmp_path, rows=None)[0]
    monkeypatch.setattr(operations, "MANY_ROWS", 0)
    with reading(path) as connection:
        before = read_operations(connection, OpFilter())
    with sqlite3.connect(path) as writer:
        writer.execute("UPDATE event_aggregates SET sum_dur = 0, stored = stored + 1")
    writer.close()
    with reading(path) as connection:
        assert read_operations(connection, OpFilter()) == before
