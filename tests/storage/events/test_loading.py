"""A request that cannot be loaded is set aside once, and the requests around it are loaded once."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.echo_samples import metrics_body
from tests.support.picky_database import REFUSED_METRIC, accept_all, open_picky
from tests.support.stores import examples, meta

from ingero.contract.otlp.rows import Signal
from ingero.errors import StoreDamaged, StoreError
from ingero.storage.events import loading
from ingero.storage.events.loading import handle, load_safely, settle
from ingero.storage.events.store import EventStore
from ingero.storage.journal.frames import Frame, request_digest
from ingero.storage.quarantine import Quarantine

START_US = 1_763_168_400_000_000
POINTS = 3


def sound(seq: int) -> Frame:
    return Frame(seq, 0, START_US, Signal.METRICS, metrics_body(points=POINTS, first=seq * POINTS))


def refused(seq: int) -> Frame:
    body = metrics_body(points=POINTS, first=seq * POINTS, name=REFUSED_METRIC)
    return Frame(seq, 0, START_US, Signal.METRICS, body)


def unreadable(seq: int) -> Frame:
    return Frame(seq, 0, START_US, Signal.LOGS, b"\xff" + bytes([seq]))


MAKERS = {"sound": sound, "refused": refused, "unreadable": unreadable}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    opened = open_picky(tmp_path / "echo.db")
    yield opened
    opened.close()


@pytest.fixture
def quarantine(tmp_path: Path) -> Quarantine:
    return Quarantine(tmp_path / "echo.db.quarantine", 1 << 20)


def loaded_seqs(store: EventStore) -> dict[int, int]:
    rows = (
        store.cursor()
        .execute(f"SELECT seq - {store.first_seq}, count(*) FROM events GROUP BY 1")
        .fetchall()
    )
    return dict(rows)


@settings(max_examples=examples(15), deadline=None)
@given(kinds=st.lists(st.sampled_from(["sound", "sound", *MAKERS]), min_size=1, max_size=24))
def test_each_request_is_loaded_or_set_aside_and_never_both(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("kinds")
    store = open_picky(folder / "echo.db")
    quarantine = Quarantine(folder / "q", 1 << 20)
    frames = [MAKERS[kind](seq) for seq, kind in enumerate(kinds, 1)]
    loaded = load_safely(store, quarantine, frames)
    bad = {seq: kind for seq, kind in enumerate(kinds, 1) if kind != "sound"}
    assert loaded_seqs(store) == {seq: POINTS for seq in range(1, len(kinds) + 1) if seq not in bad}
    assert {entry.seq: entry.reason for entry in quarantine.in_order()} == bad
    assert sum(loaded.quarantined.values()) == len(bad)
    assert loaded.requests == store.applied_seq == len(kinds)
    store.close()


def test_a_request_in_quarantine_can_be_read_back(
    store: EventStore, quarantine: Quarantine, tmp_path: Path
) -> None:
    load_safely(store, quarantine, [sound(1), refused(2), sound(3)])
    again = Quarantine(tmp_path / "echo.db.quarantine")
    (entry,) = again.in_order()
    assert again.entries == quarantine.entries
    assert again.read(entry) == refused(2)
    assert (entry.signal, entry.reason, entry.size_bytes) == (
        "metrics",
        "refused",
        len(refused(2).body),
    )
    assert "CHECK" in entry.message
    assert again.find(entry.id[:8]) == entry
    (file,) = (tmp_path / "echo.db.quarantine").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_sending_a_quarantined_request_again_adds_nothing(
    store: EventStore, quarantine: Quarantine
) -> None:
    load_safely(store, quarantine, [refused(1)])
    again = load_safely(store, quarantine, [refused(1)._replace(seq=2), sound(3)])
    assert (again.duplicates, again.events, len(quarantine.entries)) == (1, POINTS, 1)


def test_a_crash_between_the_file_and_the_transaction_leaves_the_request_in_one_place(
    store: EventStore, quarantine: Quarantine
) -> None:
    quarantine.put(refused(1), "refused", "before the crash")
    assert quarantine.settled(store.applied_seq) == set()
    load_safely(store, quarantine, [refused(1), sound(2)])
    assert [entry.seq for entry in quarantine.in_order()] == [1]
    quarantine.put(sound(3), "refused", "an older version could not load it")
    load_safely(store, quarantine, [sound(3)])
    assert [entry.seq for entry in quarantine.in_order()] == [1]
    assert loaded_seqs(store) == {2: POINTS, 3: POINTS}


def test_a_retry_loads_once_with_its_old_number_and_its_minutes(
    store: EventStore, quarantine: Quarantine
) -> None:
    load_safely(store, quarantine, [sound(1), refused(2), sound(3)])
    store.roll_up(START_US)
    (kept,) = handle(store, quarantine, "retry", [])
    assert kept["outcome"] == "kept"
    assert "CHECK" in kept["why"]
    accept_all(store)
    (entry,) = quarantine.in_order()
    (done,) = handle(store, quarantine, "retry", [entry.id[:6]])
    assert done == {"id": entry.id, "outcome": "loaded", "why": ""}
    assert quarantine.entries == {}
    assert loaded_seqs(store) == {1: POINTS, 2: POINTS, 3: POINTS}
    assert store.scalar('SELECT sum("count")::INT FROM node_metrics') == 3 * POINTS
    assert store.applied_seq == 3
    assert load_safely(store, quarantine, [refused(2)._replace(seq=4)]).duplicates == 1


def test_a_crash_between_a_retry_and_the_removal_of_its_file_does_not_load_it_twice(
    store: EventStore, quarantine: Quarantine, tmp_path: Path
) -> None:
    load_safely(store, quarantine, [refused(1)])
    accept_all(store)
    store.load_late(refused(1))
    left = Quarantine(tmp_path / "echo.db.quarantine")
    assert len(left.entries) == 1
    (outcome,) = handle(store, left, "retry", [])
    assert outcome["outcome"] == "loaded"
    assert loaded_seqs(store) == {1: POINTS}
    quarantine.put(refused(1), "refused", "once more")
    settle(store, quarantine)
    assert quarantine.entries == {}


def test_a_number_that_the_database_uses_otherwise_is_not_loaded_twice(
    store: EventStore, quarantine: Quarantine
) -> None:
    load_safely(store, quarantine, [sound(1)])
    for seq in (1, 9):
        with pytest.raises(StoreError, match="has no place in this database"):
            store.load_late(sound(5)._replace(seq=seq))


def test_beyond_the_limit_requests_are_dropped_and_counted_for_good(
    store: EventStore, tmp_path: Path
) -> None:
    size = len(refused(1).body)
    small = Quarantine(tmp_path / "small", 2 * size)
    loaded = load_safely(store, small, [refused(1), refused(2), refused(3), sound(4)])
    assert (loaded.quarantined, loaded.dropped, loaded.events) == ({"refused": 2}, 1, POINTS)
    assert [entry.seq for entry in small.in_order()] == [1, 2]
    assert (store.requests_dropped, store.applied_seq) == (1, 4)
    assert meta(store, "requests_dropped") == 1


def test_nothing_is_set_aside_when_the_store_itself_fails(
    store: EventStore, quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingero.storage.events.store.projections", lambda _: ["SELECT nonsense"])
    with pytest.raises(StoreError, match="cannot load any request"):
        load_safely(store, quarantine, [sound(1), sound(2)])
    assert (quarantine.entries, store.applied_seq) == ({}, 0)


@pytest.mark.parametrize(
    "error",
    [
        duckdb.IOException("No space left on device"),
        duckdb.OutOfMemoryException("x"),
        duckdb.FatalException("x"),
        duckdb.InternalException("x"),
        duckdb.TransactionException("x"),
        duckdb.InvalidInputException("failed to allocate data"),
        MemoryError(),
        OSError(28, "No space left on device"),
    ],
)
def test_errors_of_disk_and_memory_are_not_about_data(error: Exception) -> None:
    assert not loading.is_about_data(error)


def test_a_damaged_file_stays_and_is_named(
    store: EventStore, quarantine: Quarantine, tmp_path: Path
) -> None:
    load_safely(store, quarantine, [refused(1), refused(2)])
    first, second = quarantine.in_order()
    folder = tmp_path / "echo.db.quarantine"
    (folder / f"{first.id}.request").write_bytes(b"not ours")
    damaged = (folder / f"{second.id}.request").read_bytes()
    (folder / f"{second.id}.request").write_bytes(damaged[:-1] + b"\0\0")
    again = Quarantine(folder)
    assert again.damaged == [folder / f"{first.id}.request"]
    assert [entry.seq for entry in again.in_order()] == [2]
    if damaged[-1:] != b"\0":
        with pytest.raises(StoreDamaged, match="is damaged"):
            again.read(second)
    (outcome,) = handle(store, again, "drop", [second.id])
    assert outcome["outcome"] == "dropped"
    assert request_digest(Signal.METRICS, refused(2).body) not in again.entries


def test_requests_that_share_much_text_are_loaded_in_several_transactions(
    store: EventStore, quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingero.storage.events.store.MAX_SHARED_OF_LOAD", 100)
    loads: list[int] = []
    load = store.load
    monkeypatch.setattr(
        store, "load", lambda frames, *rest: (loads.append(len(frames)), load(frames, *rest))[1]
    )
    loaded = load_safely(store, quarantine, [sound(seq) for seq in range(1, 9)])
    assert loaded.events == 8 * POINTS
    assert loaded_seqs(store) == dict.fromkeys(range(1, 9), POINTS)
    assert not quarantine.entries
    assert loads[0] == 8
    assert len(loads) > 2
