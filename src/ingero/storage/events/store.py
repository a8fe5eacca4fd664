"""The event database: opened by one process, written by one thread.

A load is one transaction: the rows, what is projected from them, the digests of their requests, and
the applied sequence. So after a crash the database states exactly which requests it holds, and the
journal has the rest.
"""

import contextlib
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb

from ingero.contract.otlp.columns import Columns, new_columns
from ingero.errors import StoreError
from ingero.files import copy_file
from ingero.storage.events.arrow import batch_table, digest_table
from ingero.storage.events.arrow_stream import ArrowTable
from ingero.storage.events.migrate import migrate
from ingero.storage.events.projections import ROLL_UP, missing_values, projections
from ingero.storage.events.schema import AUDIT_LOG, TABLES
from ingero.storage.events.sound import sound_requests
from ingero.storage.journal.frames import Frame, request_digest

MAX_DIGESTS: Final = (
    # retries come within minutes; this limit applies when there are very many small requests
    500_000
)
DIGEST_AGE_US: Final = 15 * 60 * 1_000_000
ROLL_UP_STEP: Final = (
    1_000_000  # requests per roll-up, so that catching up after a long stop takes small steps
)
_AUDIT_ROW_BYTES: Final = 64  # the columns of a row that are not text
AUDIT_SIZE: Final = f"""SELECT count(*), coalesce(sum({_AUDIT_ROW_BYTES} + strlen(request_id)
  + strlen(tool) + strlen(token_sha256_12) + coalesce(strlen(key_name), 0)
  + coalesce(strlen(address), 0) + strlen(array_to_string(cluster_ids, ' '))), 0)
FROM audit_log"""
_MAGIC: Final = (8, b"DUCK")  # the offset in the file, and the bytes there
_SAFE_SETTINGS: Final = (
    "SET enable_external_access = false",
    "SET allow_community_extensions = false",
    "SET TimeZone = 'UTC'",
    "SET lock_configuration = true",
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of one load."""

    events: int
    requests: int
    duplicates: int = 0
    missing: int = 0  # values that were sent but that no column can hold, so they are NULL
    quarantined: Mapping[str, int] = field(default_factory=dict)  # requests set aside, by reason
    dropped: int = 0  # requests that the quarantine had no room for

    def __add__(self, other: "Loaded") -> "Loaded":
        return Loaded(
            self.events + other.events,
            self.requests + other.requests,
            self.duplicates + other.duplicates,
            self.missing + other.missing,
            Counter(self.quarantined) + Counter(other.quarantined),
            self.dropped + other.dropped,
        )


class EventStore:
    """Echo's DuckDB file."""

    def __init__(self, path: Path, memory_bytes: int, threads: int) -> None:
        self.path = path
        _refuse_foreign(path)
        try:
            self._connection = duckdb.connect(
                str(path),
                config={
                    "memory_limit": f"{memory_bytes // 1024}KiB",
                    "threads": threads,
                    "autoinstall_known_extensions": False,
                    "autoload_known_extensions": False,
                },
            )
        except duckdb.Error as error:
            raise StoreError(f"cannot open {path}: {_first_line(error)}") from None
        try:
            migrate(self._connection)
        except StoreError:
            self._connection.close()
            raise
        for statement in _SAFE_SETTINGS:
            self._connection.execute(statement)
        self._columns: Columns = new_columns()
        self.applied_seq = self._meta("applied_seq")
        self.requests_dropped = self._meta("requests_dropped")
        self._digests = {
            bytes(digest): received
            for digest, received in self._connection.execute(
                "SELECT digest, epoch_us(received_ts) FROM applied_requests ORDER BY seq"
            ).fetchall()
        }

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a separate connection to the same database, for one reader."""
        return self._connection.cursor()

    def load(self, frames: Sequence[Frame], known: Container[bytes] = ()) -> Loaded:
        """Apply requests in one transaction; after an error none of them is in the database.

        Requests with a digest in `known` are counted as duplicates.
        """
        fresh: dict[bytes, Frame] = {}
        duplicates = 0
        self._columns.clear()
        for frame in frames:
            digest = request_digest(frame.signal, frame.body)
            if digest in self._digests or digest in fresh or digest in known:
                duplicates += 1
                continue
            fresh[digest] = frame
            self._columns.add(frame.signal, frame.body, frame.seq, frame.received_us)
        events = len(self._columns)
        with self._transaction():
            missing = self._insert(fresh)
            self._set_meta("applied_seq", frames[-1].seq)
        self.applied_seq = frames[-1].seq
        self._digests |= {digest: frame.received_us for digest, frame in fresh.items()}
        return Loaded(events, len(frames), duplicates, missing)

    def load_late(self, frame: Frame) -> Loaded:
        """Load a request that was set aside under its old number; it is loaded at most once."""
        digest = request_digest(frame.signal, frame.body)
        if digest in self._digests:
            return Loaded(0, 1, 1)
        if frame.seq > self.applied_seq or self.scalar(
            f"SELECT count(*) FROM events WHERE seq = {frame.seq}"
        ):
            raise StoreError(
                f"request {frame.seq} has no place in this database: the journal still holds it, "
                "or a backup was restored; `ingero-echo quarantine show --output` writes its body"
            )
        self._columns.clear()
        self._columns.add(frame.signal, frame.body, frame.seq, frame.received_us)
        events = len(self._columns)
        with self._transaction() as connection:
            missing = self._insert({digest: frame})
            if frame.seq <= self._meta("rolled_seq"):
                span = {"rolled": frame.seq - 1, "applied": frame.seq}
                connection.execute(ROLL_UP, {**span, "now_us": frame.received_us})
        self._digests[digest] = frame.received_us
        return Loaded(events, 1, missing=missing)

    def skip(self, seq: int, *, is_dropped: bool) -> None:
        """Move past a request that is not loaded; count it if it is not kept anywhere."""
        with self._transaction():
            self._set_meta("applied_seq", seq)
            if is_dropped:
                self._set_meta("requests_dropped", self.requests_dropped + 1)
        self.applied_seq = seq
        self.requests_dropped += is_dropped

    def check_works(self) -> None:
        """Load requests that are known to be sound and take them back; raise StoreError."""
        self._columns.clear()
        for signal, body in sound_requests():
            self._columns.add(signal, body, 0, 0)
        try:
            with self._transaction():
                self._insert({})
                raise _TakeBack
        except _TakeBack:
            return
        except duckdb.Error as error:
            raise StoreError(f"cannot load any request: {_first_line(error)}") from None

    def has(self, digest: bytes) -> bool:
        """Return whether a request was loaded, as far back as retries are recognised."""
        return digest in self._digests

    def _insert(self, fresh: dict[bytes, Frame]) -> int:
        """Insert what was collected; return how many values no column can hold."""
        batch = self._columns.take()
        missing = batch.not_finite
        metric_names = {context.metric_name for context in batch.contexts}
        if len(batch.seq):
            with self._registered("batch", batch_table(batch)):
                self._connection.execute("INSERT INTO events SELECT * FROM batch")
                for statement in projections(metric_names):
                    self._connection.execute(statement)
                missing += sum(map(self.scalar, missing_values(metric_names)))
        if fresh:
            with self._registered("digests", _digest_table(fresh)):
                self._connection.execute("INSERT INTO applied_requests SELECT * FROM digests")
        return missing

    def roll_up(self, now_us: int) -> int:
        """Add events since the last call to the minutes; return how many requests they cover."""
        rolled = self._meta("rolled_seq")
        until = min(self.applied_seq, rolled + ROLL_UP_STEP)
        if until > rolled:
            with self._transaction() as connection:
                connection.execute(ROLL_UP, {"rolled": rolled, "applied": until, "now_us": now_us})
                self._set_meta("rolled_seq", until)
        return until - rolled

    def forget_digests(self, now_us: int) -> int:
        """Delete digests that are too old for a retry; return how many."""
        excess = len(self._digests) - MAX_DIGESTS
        old = [
            digest
            for position, (digest, received) in enumerate(self._digests.items())
            if position < excess or received < now_us - DIGEST_AGE_US
        ]
        if old:
            with self._transaction() as connection, self._registered("old", digest_table(old)):
                connection.execute(
                    "DELETE FROM applied_requests WHERE digest IN (SELECT digest FROM old)"
                )
            for digest in old:
                del self._digests[digest]
        return len(old)

    def delete_step(self, table: str, keep_from_us: int | None, max_rows: int) -> int:
        """Delete up to about `max_rows` of the oldest rows of `table`; return how many.

        With `keep_from_us`, only rows received before that time are deleted.
        """
        order = {"events": "seq", "nccl_ops": "seq", "verdicts": "seq"}.get(
            table, _time_column(table)
        )
        limit = (
            ""
            if keep_from_us is None
            else f"WHERE {_time_column(table)} < make_timestamp({keep_from_us})"
        )
        row = self._connection.execute(
            f"SELECT max({order}) FROM (SELECT {order} FROM {table} {limit} ORDER BY {order} "
            f"LIMIT {max_rows})"
        ).fetchone()
        if row is None or row[0] is None:
            return 0
        with self._transaction() as connection:
            found = connection.execute(
                f"DELETE FROM {table} WHERE {order} <= ?", [row[0]]
            ).fetchone()
            deleted = int(found[0]) if found else 0
            connection.execute(
                "UPDATE meta SET value = value + ? WHERE key = 'rows_deleted'", [deleted]
            )
        return deleted

    def append_audit(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows to the audit log, in the order of its columns."""
        marks = ", ".join("?" * len(AUDIT_LOG.columns))
        with self._transaction() as connection:
            connection.executemany(
                f"INSERT INTO audit_log VALUES ({marks})", [list(row) for row in rows]
            )

    def audit_size(self) -> tuple[int, int]:
        """Return the rows of the audit log and about how many bytes they take."""
        row = self._connection.execute(AUDIT_SIZE).fetchone()
        return (int(row[0]), int(row[1])) if row else (0, 0)

    def trim_audit(self, keep_rows: int) -> int:
        """Keep the newest rows of the audit log; return how many were deleted.

        The table is written anew, because deleting a part of its rows would free little space.
        """
        before, _ = self.audit_size()
        deleted = max(0, before - keep_rows)
        with self._transaction() as connection:
            connection.execute(
                f"CREATE TEMP TABLE kept AS FROM audit_log ORDER BY ts DESC LIMIT {keep_rows}"
            )
            connection.execute("DELETE FROM audit_log")
            connection.execute("INSERT INTO audit_log FROM kept ORDER BY ts")
            connection.execute("DROP TABLE kept")
            self._set_meta("rows_deleted", self._meta("rows_deleted") + deleted)
        return deleted

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file. This makes the space of deleted rows reusable."""
        self._connection.execute("CHECKPOINT")

    def copy_to(self, target: Path) -> int:
        """Write a consistent copy and return its applied sequence.

        The copy is complete or absent; the caller must keep writers away.
        """
        self.checkpoint()
        try:
            copy_file(self.path, target)
        except OSError as error:
            raise StoreError(f"cannot write the backup {target}: {error.strerror}") from None
        return self.applied_seq

    def used_bytes(self) -> int:
        """Return the size of live blocks and of the write-ahead log."""
        row = self._connection.execute(
            "SELECT used_blocks * block_size FROM pragma_database_size()"
        ).fetchone()
        wal = self.path.with_name(self.path.name + ".wal")
        return (int(row[0]) if row else 0) + (wal.stat().st_size if wal.exists() else 0)

    def row_counts(self) -> dict[str, int]:
        """Return the number of rows by table."""
        counts = {}
        for table in TABLES:
            row = self._connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()
            counts[table.name] = int(row[0]) if row else 0
        return counts

    def scalar(self, sql: str) -> Any:
        """Return the single value of one of our own queries."""
        row = self._connection.execute(sql).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        self._connection.close()

    def _meta(self, key: str) -> int:
        return int(self.scalar(f"SELECT value FROM meta WHERE key = '{key}'"))

    def _set_meta(self, key: str, value: int) -> None:
        self._connection.execute("UPDATE meta SET value = ? WHERE key = ?", [value, key])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        self._connection.execute("BEGIN")
        try:
            yield self._connection
        except BaseException:
            with contextlib.suppress(
                duckdb.Error
            ):  # after a fatal error the transaction is already over
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextlib.contextmanager
    def _registered(self, name: str, table: ArrowTable) -> Iterator[None]:
        self._connection.register(name, table)
        try:
            yield
        finally:
            self._connection.unregister(name)


class _TakeBack(Exception):
    """Ends a transaction whose rows are not wanted."""


def _digest_table(fresh: dict[bytes, Frame]) -> ArrowTable:
    frames = fresh.values()
    seqs, received = [frame.seq for frame in frames], [frame.received_us for frame in frames]
    return digest_table(list(fresh), seqs, received)


def _time_column(table: str) -> str:
    return {"audit_log": "ts", "causal_chains": "detected_at"}.get(table, "received_ts")


def _refuse_foreign(path: Path) -> None:
    """Refuse a file that is not a DuckDB database.

    DuckDB would search for an extension that can read it, but the path is simply wrong.
    """
    offset, magic = _MAGIC
    try:
        with path.open("rb") as file:
            is_ours = file.read(offset + len(magic))[offset:] == magic
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror}") from None
    if not is_ours:
        raise StoreError(
            f"cannot open {path}: it is not a database of Echo; name another with --db-path"
        )


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]
