"""Sample databases: same seed, same rows; a planted cause that the ordinary code finds."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from tests.support.shared_data import shared

from ingero.core.chains.neighbours import Host
from ingero.core.chains.replay import replay
from ingero.core.recording.operations import is_timed
from ingero.errors import StoreError
from ingero.sim.sample_script import BACKUP_STEPS, NODES, make_traces
from ingero.sim.samples import write_samples
from ingero.storage.merge.merge import merge
from ingero.storage.operations import OpFilter, read_operations
from ingero.storage.trace.chains import read_chains
from ingero.storage.trace.reading import connect_readonly
from ingero.storage.trace.rows import read_events, read_samples
from ingero.storage.trace.schema import OWN_TABLES, TABLES, table_columns


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_samples(tmp_path_factory.mktemp("samples"))


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = connect_readonly(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_three_nodes_and_the_merged_file(samples: list[Path]) -> None:
    assert [path.name for path in samples] == [f"sample-{node}.db" for node in NODES] + [
        "sample-cluster.db"
    ]
    counts = [
        tuple(rows(path, f"SELECT count(*) FROM {table}")[0][0] for path in samples)
        for table in ("events", "causal_chains", "stack_traces")
    ]
    assert counts == [(200, 200, 200, 600), (4, 1, 1, 6), (8, 1, 1, 9)], "as published"
    assert rows(samples[3], "SELECT DISTINCT node FROM events ORDER BY 1") == [
        (node,) for node in NODES
    ]
    assert sorted(file.name for file in samples[0].parent.iterdir()) == sorted(
        path.name for path in samples
    )


def test_the_merged_file_is_what_merge_makes(samples: list[Path], tmp_path: Path) -> None:
    """F143."""
    summary = merge(samples[:3], tmp_path / "again.db")
    assert summary.possible_skew == []
    for table in TABLES | OWN_TABLES:
        everything = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert rows(samples[3], everything) == rows(tmp_path / "again.db", everything), table
    assert {row[0] for row in rows(samples[3], "SELECT DISTINCT node FROM node_snapshots")} == set(
        NODES
    )


def test_shape_equals_the_published_samples(samples: list[Path]) -> None:
    """F156: every table and column of theirs, and every table that has rows there has rows here."""
    theirs = connect_readonly(shared("data/ingero/sample-gpu-node-01.db"))
    ours = connect_readonly(samples[0])
    compared = set()
    for (table,) in theirs.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table'"
    ).fetchall():
        if table in TABLES:
            compared.add(table)
            assert set(table_columns(theirs, table)) <= set(table_columns(ours, table))
            if theirs.execute(f"SELECT count(*) FROM {table}").fetchone()[0]:
                assert ours.execute(f"SELECT count(*) FROM {table}").fetchone()[0], table
    assert {"events", "causal_chains", "sessions"} <= compared
    theirs.close()
    ours.close()


def test_same_seed_same_rows(samples: list[Path], tmp_path: Path) -> None:
    again = write_samples(tmp_path)
    other = write_samples(tmp_path / "other", seed=2)
    for table in ("events", "causal_chains", "collectives", "event_aggregates_5s", "stack_traces"):
        for path, same in zip(samples, again, strict=True):
            assert rows(path, f"SELECT * FROM {table}") == rows(same, f"SELECT * FROM {table}")
    assert rows(samples[0], "SELECT * FROM events") != rows(other[0], "SELECT * FROM events")


def test_the_planted_cause_comes_first(samples: list[Path]) -> None:
    connection = connect_readonly(samples[3])
    chains = read_chains(connection)
    connection.close()
    assert {chain.node for chain in chains if chain.chain.severity == "HIGH"} == {"gpu-node-01"}
    assert {chain.node for chain in chains} == set(NODES)
    worst = next(chain for chain in chains if chain.chain.cuda_op == "cuLaunchKernel").chain
    assert "sched_switch events" in worst.root_cause
    assert "heavy block I/O by rsync" in worst.root_cause
    assert any("renice" in line for line in worst.recommendations)


def test_chains_can_be_derived_again_where_all_rows_are_kept(tmp_path: Path) -> None:
    for path in write_samples(tmp_path, rows=None)[:3]:
        connection = connect_readonly(path)
        names = dict(connection.execute("SELECT pid, name FROM process_names").fetchall())
        derived = replay(read_events(connection), read_samples(connection), Host(8, names))
        stored = read_chains(connection)
        connection.close()
        assert stored, path
        assert {chain.summary for _, chain in derived} == {one.chain.summary for one in stored}


def test_lateness_names_the_rank(samples: list[Path]) -> None:
    lateness = "SELECT seq, rank, start_ns - min(start_ns) OVER (PARTITION BY seq) FROM collectives"
    late = {
        (seq, rank) for seq, rank, ns in rows(samples[3], lateness) if int(str(ns)) > 30_000_000
    }
    assert late == {(step + 1, 0) for step in BACKUP_STEPS}


def test_every_call_is_counted_although_few_are_rows(samples: list[Path], tmp_path: Path) -> None:
    """Figures agree with those of a recording that keeps all rows."""
    [(count, stored)] = rows(samples[0], "SELECT sum(count), sum(stored) FROM event_aggregates")
    assert (stored, int(str(count)) > 10 * int(str(stored))) == (200, True)
    whole = write_samples(tmp_path, rows=None)[0]
    found = []
    for path in (samples[0], whole):
        connection = connect_readonly(path)
        found.append({one.key: one for one in read_operations(connection, OpFilter())})
        connection.close()
    few, every = found
    timed = [key for key in every if is_timed(key)]
    assert [few[key].count for key in timed] == [every[key].count for key in timed]
    for key in timed:
        assert few[key].p99_ns == pytest.approx(every[key].p99_ns, rel=0.13), key


def test_nothing_is_overwritten_and_nothing_half_written(
    samples: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="already exists"):
        write_samples(samples[0].parent)
    samples[3].rename(tmp_path / "kept.db")
    with pytest.raises(StoreError, match="already exists"):
        write_samples(samples[0].parent)
    assert sorted(file.name for file in samples[0].parent.iterdir()) == [
        path.name for path in samples[:3]
    ]
    (tmp_path / "kept.db").rename(samples[3])
    with pytest.raises(StoreError, match="cannot be written"):
        write_samples(samples[0] / "folder")


def test_traces_start_together() -> None:
    starts = [int(np.min(trace.events.timestamp)) for trace in make_traces()]
    assert max(starts) - min(starts) < 1_000_000


def test_files_are_whole_without_their_log(samples: list[Path]) -> None:
    with sqlite3.connect(f"file:{samples[3]}?immutable=1", uri=True) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
