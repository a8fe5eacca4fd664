"""Backup, restore, verify and repair of Echo's data."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ingero.contract.otlp.rows import Signal
from ingero.echo.control import ask_running
from ingero.echo.engine import journal_directory
from ingero.echo.stress import StressPlan, batch_body
from ingero.errors import StoreDamaged, StoreError
from ingero.files import copy_file
from ingero.storage.events.file_store import DuckDbStore
from ingero.storage.events.lake.address import LakeAddress, LakeSecrets
from ingero.storage.events.lake.identity import is_in_lake
from ingero.storage.events.lake.moving import Moved, move_file
from ingero.storage.events.loading import handle, load_safely, settle
from ingero.storage.events.migrate import SCHEMA_VERSION
from ingero.storage.events.store import EventStore
from ingero.storage.journal.frames import Frame
from ingero.storage.journal.inspect import inspect_journal, recoverable_frames
from ingero.storage.journal.reader import JournalReader
from ingero.storage.lock import DatabaseLock
from ingero.storage.quarantine import Quarantine, quarantine_directory

MEMORY_BYTES: Final = 2 << 30
BACKUP_TIMEOUT_S: Final = 600.0
DEMO_START_NS: Final = 1_778_025_600_000_000_000
_LOAD_BYTES: Final = 16 << 20
_LISTED: Final = 20  # requests in quarantine that `verify` names


@dataclass(slots=True)
class Verification:
    """What `verify` found. Problems make it fail; notes do not."""

    facts: dict[str, str | int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def backup(database: Path, target: Path) -> int:
    """Copy everything acknowledged so far to `target`; return the last sequence in the copy.

    The data comes from the running Echo, or from its files if none runs.
    """
    if target.exists():
        raise StoreError(f"{target} exists; choose another name")
    running = ask_running(
        database, {"do": "backup", "path": str(target.absolute())}, BACKUP_TIMEOUT_S
    )
    if running is not None:
        return int(running["applied_seq"])
    with _opened(database) as store:
        _load_journal(store, database)
        return store.copy_to(target.absolute())


def restore(source: Path, database: Path, *, force: bool) -> tuple[int, str]:
    """Replace `database` by a backup; return its sequence and what happened to the journal."""
    if database.exists() and not force:
        raise StoreError(
            f"{database} exists; --force renames it and restores the backup in its place"
        )
    database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(database):
        arriving = database.with_name(database.name + ".restoring")
        try:
            copy_file(source, arriving)
        except OSError as error:
            raise StoreError(f"cannot copy {source}: {error.strerror}") from None
        try:
            # refuses a file that is not a database of Echo
            with closing(DuckDbStore(arriving, MEMORY_BYTES, 1)) as store:
                applied = store.applied_seq
        except StoreError:
            arriving.unlink()
            raise
        suffix = f".before-restore-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        for path in (database, database.with_name(database.name + ".wal")):
            if path.exists():
                path.rename(path.with_name(path.name + suffix))
        arriving.rename(database)
        return applied, _settle_journal(journal_directory(database), applied, suffix)


def verify(database: Path) -> Verification:
    """Check database and journal without changing them."""
    found = Verification()
    with _opened(database) as store:
        found.facts |= {
            "database": str(database),
            "schema_version": SCHEMA_VERSION,
            "applied_seq": store.applied_seq,
        }
        found.facts |= {f"rows in {table}": count for table, count in store.row_counts().items()}
        found.facts["database_bytes"] = store.used_bytes()
        newest = store.scalar("SELECT max(seq) FROM events")
        if newest is not None and newest > store.applied_seq:
            found.problems.append(
                f"events has request {newest}, but only {store.applied_seq} are marked as applied"
            )
        twice = store.scalar(
            "SELECT count(*) FROM (SELECT 1 FROM events GROUP BY seq, idx HAVING count(*) > 1)"
        )
        if twice:
            found.problems.append(f"{twice} events are stored more than once")
        _verify_quarantine(found, database, store)
        journal = journal_directory(database)
        if not journal.is_dir():
            found.notes.append(f"{journal} does not exist: no requests wait to be loaded")
            return found
        try:
            inspection = inspect_journal(journal, store.applied_seq)
        except StoreDamaged as error:
            found.problems.append(str(error))
            return found
        found.facts |= {
            "journal_segments": len(inspection.segments),
            "requests_to_load": inspection.frames,
        }
        found.problems += inspection.problems
        if inspection.dropped_bytes:
            found.notes.append(
                f"{inspection.dropped_bytes} bytes of a write that was never acknowledged are "
                "ignored"
            )
    return found


def _verify_quarantine(found: Verification, database: Path, store: EventStore) -> None:
    quarantine = Quarantine(quarantine_directory(database))
    found.facts |= {
        "quarantined_requests": len(quarantine.entries),
        "quarantined_bytes": quarantine.size_bytes,
        "dropped_requests": store.requests_dropped,
    }
    entries = quarantine.in_order()
    for entry in entries[:_LISTED]:
        found.notes.append(
            f"request {entry.seq} ({entry.signal}, {entry.size_bytes} bytes) is in quarantine as "
            f"{entry.id[:12]}: {entry.reason}: {entry.message}"
        )
    if len(entries) > _LISTED:
        found.notes.append(f"{len(entries) - _LISTED} more requests are in quarantine")
    found.notes += [f"{path} cannot be read" for path in quarantine.damaged]
    if store.requests_dropped:
        found.notes.append(
            f"{store.requests_dropped} requests that could not be loaded were dropped, because the "
            "quarantine was full"
        )


def change_quarantine(database: Path, what: str, ids: list[str]) -> list[dict[str, str]]:
    """Retry or drop requests in quarantine, all of them without `ids`; return each outcome.

    The running Echo does this, or this process if none runs.
    """
    request = {"do": "quarantine", "what": what, "ids": ids}
    running = ask_running(database, request, BACKUP_TIMEOUT_S)
    if running is not None:
        outcomes: list[dict[str, str]] = running["requests"]
        return outcomes
    with _opened(database) as store:
        quarantine = Quarantine(quarantine_directory(database))
        settle(store, quarantine)
        return handle(store, quarantine, what, ids)


def repair(database: Path) -> tuple[int, int]:
    """Load every request that can still be read, and rename the damaged journal.

    Returns how many requests were saved and lost.
    """
    journal = journal_directory(database)
    quarantine = Quarantine(quarantine_directory(database))
    with _opened(database) as store:
        before = store.applied_seq
        saved, group, size = 0, [], 0
        for frame in recoverable_frames(journal, before):
            group.append(frame)
            size += len(frame.body)
            if size > _LOAD_BYTES:
                load_safely(store, quarantine, group)
                saved, group, size = saved + len(group), [], 0
        if group:
            load_safely(store, quarantine, group)
        saved += len(group)
        lost = store.applied_seq - before - saved
        journal.rename(
            journal.with_name(
                f"{journal.name}.damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
            )
        )
        return saved, lost


def write_demo(target: Path) -> int:
    """Create a database of 2,000 events from eight nodes, two of them with one low score.

    Returns the number of events.
    """
    if target.exists():
        raise StoreError(f"{target} exists; choose another name")
    nodes = tuple(f"node-{kind}-{i}" for kind in ("h100", "a100") for i in range(4))
    plan = StressPlan(
        node_ids=nodes,
        events=2000,
        chains=80,
        batch=250,
        rate=0,
        cluster="demo",
        planted=(nodes[1], nodes[6]),
    )
    frames = [
        Frame(
            i + 1,
            i,
            DEMO_START_NS // 1000,
            Signal.METRICS,
            batch_body(plan, node, i, 0, plan.share(i), DEMO_START_NS),
        )
        for i, node in enumerate(nodes)
    ]
    with closing(DuckDbStore(target, MEMORY_BYTES, 1)) as store:
        events = store.load(frames).events
        store.roll_up(DEMO_START_NS // 1000)
        store.checkpoint()
    return events


def move_to_lake(
    database: Path,
    address: LakeAddress,
    secrets: LakeSecrets,
    on_table: Callable[[Moved], None] = lambda _: None,
) -> list[Moved]:
    """Load the journal of a database file, then copy the file into a lake; Echo must not run."""
    if not database.exists():
        raise StoreError(f"{database} does not exist; name the database of an Echo")
    if is_in_lake(database):
        raise StoreError(f"{database} was moved into the lake before; start Echo with --store")
    with _locked(database):
        with closing(DuckDbStore(database, MEMORY_BYTES, 1)) as store:
            _load_journal(store, database)
            store.roll_up(time.time_ns() // 1000)
            store.checkpoint()
        return move_file(database, address, secrets, MEMORY_BYTES, on_table)


@contextmanager
def _locked(database: Path) -> Iterator[None]:
    """Hold the right to write a database."""
    lock = DatabaseLock(database)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _opened(database: Path) -> Iterator[EventStore]:
    """Yield the database, locked while it is in use."""
    if is_in_lake(database):
        raise StoreError(
            f"the data of {database} lies in a lake: its engines back it up, restore and check it"
        )
    if not database.exists():
        raise StoreError(f"{database} does not exist; name the database of an Echo with --db-path")
    threads = max(1, (os.cpu_count() or 2) // 2)
    with _locked(database), closing(DuckDbStore(database, MEMORY_BYTES, threads)) as store:
        yield store


def _load_journal(store: EventStore, database: Path) -> None:
    """Load every acknowledged request into the database."""
    journal = journal_directory(database)
    if not journal.is_dir():
        return
    inspection = inspect_journal(journal, store.applied_seq)
    if inspection.problems:
        raise StoreDamaged(f"{journal}: {'; '.join(inspection.problems)}; see `ingero-echo verify`")
    quarantine = Quarantine(quarantine_directory(database))
    reader = JournalReader(journal, store.applied_seq)
    try:
        while frames := reader.read(inspection.last_seq, _LOAD_BYTES):
            load_safely(store, quarantine, frames)
    finally:
        reader.close()


def _settle_journal(journal: Path, applied: int, suffix: str) -> str:
    if not journal.is_dir():
        return "there was no journal"
    try:
        inspection = inspect_journal(journal, applied)
        problems = "; ".join(inspection.problems)
    except StoreDamaged as error:
        problems = str(error)
    if not problems:
        return (
            f"the journal continues where the backup ends: {inspection.frames} requests will be "
            "loaded at the next start"
        )
    aside = journal.with_name(journal.name + suffix)
    journal.rename(aside)
    return f"the journal does not match the backup ({problems}) and was renamed to {aside}"
