"""Where collectives are read: the rings of the plugin, and the table that a recorder fills."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.live_collectives import record
from tests.support.ring_model import ModelRing

from ingero.agent.push.collective_feed import RingFeed, TableFeed, end_by_waits
from ingero.contract import names
from ingero.contract.collective import CollectiveSource
from ingero.storage.trace.collectives import add_collectives, read_waits
from ingero.storage.trace.database import TraceDb


@pytest.fixture
def path(tmp_path: Path) -> Path:
    TraceDb(tmp_path / "t.db", "n").close()
    return tmp_path / "t.db"


def test_the_table_gives_what_is_new_and_leaves_ring_records_to_the_rings(path: Path) -> None:
    """F067: what was recorded before the agent started is history, not news."""
    everything, probes = TableFeed(path, with_plugin=True), TableFeed(path, with_plugin=False)
    add_collectives(path, "n", [record(0)])
    assert everything.poll() == probes.poll() == []
    new = [record(seq) for seq in range(1, 5)] + [
        record(seq, 3, CollectiveSource.EBPF) for seq in range(1, 5)
    ]
    add_collectives(path, "n", new)
    assert [(batch.rank, str(batch.source)) for batch in everything.poll()] == [(2, "nccl-plugin")]
    assert probes.poll() == []  # what probes saw waits a round for the waits that tell its end
    assert [(batch.rank, str(batch.source)) for batch in everything.poll()] == [(3, "ebpf")]
    (batch,) = probes.poll()
    assert batch.pick(np.array([1, 3])) == [new[5], new[7]]
    assert everything.poll() == probes.poll() == []


def test_what_probes_saw_ends_with_the_first_wait_for_the_gpu_that_follows() -> None:
    """Own time without the plugin: from the end of the wait to the next enqueue, by host clock."""
    first, second, third = (
        replace(
            record(seq),
            source=CollectiveSource.EBPF,
            start_ns=at,
            end_ns=at + 10,
            gpu_duration_ns=None,
        )
        for seq, at in enumerate((1000, 2000, 3000))
    )
    waits = [(500, 5000, 0), (1100, 1400, 0), (1500, 1600, 0), (2100, 3100, 0), (3200, 9000, 0)]
    found = end_by_waits([third, first, second], [replace(third, start_ns=9500)], waits)
    assert found == [replace(first, end_ns=1400), second, replace(third, end_ns=9000)]
    # when the next one came
    still_waiting = end_by_waits([third], [replace(third, start_ns=8000)], waits)
    assert still_waiting == [third]
    assert end_by_waits([first], [], [(1100, 1400, 5)])[0].barrier_wait_ns is None, (
        "it waited for another stream"
    )
    on_its_stream = end_by_waits([replace(first, stream=5)], [], [(1100, 1400, 5)])
    assert [record.barrier_wait_ns for record in on_its_stream] == [100]


def test_waits_are_read_for_the_processes_asked_about(path: Path) -> None:
    with TraceDb(path, "n") as db:
        rows = [
            (1, 5, 42, 1000, 300),
            (4, 8, 42, 900, 50),
            (1, 5, 43, 1000, 1),
            (1, 3, 42, 1200, 9),
            (1, 6, 42, 10, 5),
        ]
        db.connection.executemany(
            "INSERT INTO events (source, op, pid, timestamp, duration, tid, arg0) VALUES (?, ?, "
            "?, ?, ?, 1, 7)",
            rows,
        )
        db.connection.commit()
    assert read_waits(path, [42, 44], 500, 100) == {42: [(900, 950, 7), (1000, 1300, 7)], 44: []}
    assert read_waits(path, [42], 5, 1) == {42: [(10, 15, 0)]}, (
        "a wait for the whole device is about no stream"
    )


def test_a_database_that_is_not_there_or_began_anew_is_a_state(tmp_path: Path) -> None:
    path = tmp_path / "later.db"
    feed = TableFeed(path, with_plugin=True)
    assert feed.poll() == []
    assert feed.problem == f"waiting for {path}; record it with `ingero trace`"
    add_collectives(path, "n", [record(seq) for seq in range(10)])
    feed.poll()
    assert feed.problem == ""
    path.unlink()
    add_collectives(path, "n", [record(seq) for seq in range(3)])
    feed.poll()
    assert [len(batch.collectives) for batch in feed.poll()] == [3]


def test_a_feed_far_behind_skips_to_the_present_and_counts(path: Path) -> None:
    feed = TableFeed(path, with_plugin=True, max_behind=20)
    feed.poll()
    add_collectives(path, "n", [record(seq) for seq in range(100)])
    assert [len(batch.collectives) for batch in feed.poll()] == [20]
    assert feed.lost == 80


def test_a_ring_that_is_none_is_a_problem_of_its_feed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(names.RING_FOLDER_VARIABLE, str(tmp_path))
    path = tmp_path / f"ingero-nccl-{os.getpid()}-1"
    path.write_bytes(b"x" * 5000)
    path.chmod(0o600)
    feed = RingFeed("n")
    assert (feed.poll(), feed.problem) == ([], f"{path}: not an NCCL ring")
    feed.close()


def test_rings_are_read_in_the_folder_of_the_variable_and_left_to_the_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(names.RING_FOLDER_VARIABLE, str(tmp_path))
    ring = ModelRing(tmp_path / "ingero-nccl-1-1", pid=2**22 - 1)  # its process is gone
    for _ in range(3):
        ring.write(rank=1, nranks=8)
    feed = RingFeed("n")
    (batch,) = feed.poll()
    assert (batch.rank, batch.job, batch.world_size, batch.source) == (
        7,
        "job-1",
        16,
        CollectiveSource.PLUGIN,
    )
    (one,) = batch.pick(np.array([2]))
    assert (one.seq, one.op, one.size_bytes, one.gpu_duration_ns, one.node) == (
        2,
        "AllReduce",
        8,
        5,
        "n",
    )
    assert ring.path.exists()
    assert feed.poll() == []
    feed.close()
    ring.close()
