"""Chores of the store process beside a question that takes its memory."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from tests.support.stores import only_files

from ingero.echo.store import loader as loading
from ingero.echo.store.loader import MOST_SHORTAGES, Loader
from ingero.echo.store.wire import StoreSettings
from ingero.storage.events.schema import AUDIT_LOG

pytestmark = only_files
HUGE = "SELECT count(*) FROM (SELECT DISTINCT range FROM range(10_000_000))"
ROW = [None] * len(AUDIT_LOG.columns)


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader]:
    """A loader without its thread, whose chores are due each time."""
    monkeypatch.setattr(loading, "ROLL_UP_EVERY_S", -1.0)
    monkeypatch.setattr(loading, "RETAIN_EVERY_S", -1.0)
    settings = StoreSettings(
        database=str(tmp_path / "echo.db"), journal=str(tmp_path), quarantine=str(tmp_path / "q"),
        address_space_bytes=1 << 30, threads=1, retention_s=60.0, rollup_retention_s=60.0,
        max_database_bytes=0, max_quarantine_bytes=1 << 20,
    )  # fmt: skip
    made = Loader(settings, lambda message: None)
    made.open(5.0)
    yield made
    made._store.close()


def run_out(loader: Loader, chore: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a chore meet the end of the memory within its transaction."""
    store = loader._store

    def fail(*_: object) -> int:
        store._execute("SET memory_limit = '10MB'")
        try:
            with store._transaction():
                return int(store.scalar(HUGE))
        finally:
            store._execute("SET memory_limit = '512MB'")

    monkeypatch.setattr(store, chore, fail)


@pytest.mark.parametrize("chore", ["roll_up", "forget_digests", "upkeep", "delete_step"])
def test_a_chore_without_memory_is_done_in_the_next_round(
    loader: Loader, chore: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It used to end the process before the question that had taken the memory was answered."""
    chores = loader._chores()
    with monkeypatch.context() as patch:
        run_out(loader, chore, patch)
        next(chores)
    assert "chore_failed" in caplog.text and "Out of Memory" in caplog.text
    loader._store.append_audit([ROW])
    for _ in range(2 * MOST_SHORTAGES):
        next(chores)
    assert not loader._shortages
    assert loader._store.row_counts()["audit_log"] == 1


def test_a_transaction_that_could_not_be_undone_is_undone_before_others_write(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = loader._store

    def fail(now_us: int) -> int:
        store._execute("BEGIN")
        store._execute("DELETE FROM meta")
        raise MemoryError("failed to allocate")

    monkeypatch.setattr(store, "roll_up", fail)
    next(loader._chores())
    store.append_audit([ROW])
    assert store._meta("applied_seq") == 0


def test_a_process_that_stays_short_of_memory_ends(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_out(loader, "roll_up", monkeypatch)
    chores = loader._chores()
    for _ in range(MOST_SHORTAGES):
        next(chores)
    with pytest.raises(duckdb.OutOfMemoryException):
        next(chores)


def test_another_failure_of_a_chore_ends_the_process(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(now_us: int) -> int:
        raise duckdb.FatalException("the database has been invalidated")

    monkeypatch.setattr(loader._store, "roll_up", fail)
    with pytest.raises(duckdb.FatalException):
        next(loader._chores())
