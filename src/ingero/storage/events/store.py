"""The event store: opened by one process, written by one thread.

`DuckDbStore` keeps it in a file, `LakeStore` in a lake that several Echos share.

A load is one transaction: the rows, what is projected from them, the digests of their requests, and
the applied sequence. So after a crash the tables state exactly which requests they hold, and the
journal has the rest.
"""

import abc
import contextlib
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb

from ingero.contract.otlp.columns import Batch, Columns, new_columns
from ingero.contract.otlp.rows import MAX_SHARED_BYTES
from ingero.errors import StoreError, TooLarge
from ingero.storage.events.arrivals import ARRIVALS_ROLL_UP
from ingero.storage.events.arrow import batch_table, digest_table
from ingero.storage.events.arrow_stream import ArrowTable
from ingero.storage.events.projections import ROLL_UP, missing_values, projections
from ingero.storage.events.schema import AUDIT_LOG, TABLES
from ingero.storage.events.sound import sound_requests
from ingero.storage.journal.frames import Frame, request_digest

# retries come within minutes; this limit applies when there are very many small requests
MAX_DIGESTS: Final = 500_000
# of all requests of one load; what one request may share is limited when it arrives
MAX_SHARED_OF_LOAD: Final = 2 * MAX_SHARED_BYTES
DIGEST_AGE_US: Final = 15 * 60 * 1_000_000
# what is computed from time to time, each with the key of `meta` that says how far it came
_ROLL_UPS: Final = {"rolled_seq": ROLL_UP, "arrived_seq": ARRIVALS_ROLL_UP}
# requests per roll-up, so that catching up after a long stop takes small steps
ROLL_UP_STEP: Final = 1_000_000
_AUDIT_ROW_BYTES: Final = 64  # the columns of a row that are not text
AUDIT_SIZE: Final = f"""SELECT count(*), coalesce(sum({_AUDIT_ROW_BYTES} + strlen(request_id)
  + strlen(tool) + strlen(token_sha256_12) + coalesce(strlen(key_name), 0)
  + coalesce(strlen(address), 0) + strlen(array_to_string(cluster_ids, ' '))), 0)
FROM audit_log"""


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


@dataclass(frozen=True, slots=True)
class Prepared:
    """Requests that no load had applied when they were decoded, by digest, and their rows."""

    fresh: dict[bytes, Frame]
    batch: Batch
    first_seq: int


class EventStore(abc.ABC):
    """Everything Echo does with its tables, wherever they lie.

    `applied_seq` is the last request of this writer's journal that the tables hold. Writers of one
    lake number their requests alike, so in the tables the numbers of each begin at `first_seq`.
    """

    load_every_s: float = 0.2
    # One transaction: some 125,000 events of 200 bytes. DuckDB writes a full row group (122,880
    # rows) straight into the file; rows of a smaller load are written again until theirs is full.
    load_bytes: int = 25_000_000

    def __init__(self, connection: duckdb.DuckDBPyConnection, first_seq: int = 0) -> None:
        self._connection = connection
        self.first_seq = first_seq
        self._columns: Columns = new_columns()
        self._columns_ahead: Columns = new_columns()  # used by `prepare` only
        self._digests: dict[bytes, int] = {}
        self.applied_seq = 0
        self.requests_dropped = 0
        self.read_state()

    def read_state(self) -> None:
        """Read what the tables hold of this writer, and which requests all have applied."""
        self.applied_seq = self._meta("applied_seq")
        self.requests_dropped = self._meta("requests_dropped")
        self._digests |= {
            bytes(digest): received
            for digest, received in self._execute(
                "SELECT digest, epoch_us(received_ts) FROM applied_requests ORDER BY seq"
            ).fetchall()
        }

    def recover(self) -> None:  # noqa: B027 - a file's commit never ends in doubt
        """Find out what was committed after a load failed; raise StoreError if that fails too."""

    @abc.abstractmethod
    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a separate connection to the same tables, for one reader."""

    @abc.abstractmethod
    def forget_digests(self, now_us: int) -> int:
        """Delete digests that are too old for a retry; return how many."""

    @abc.abstractmethod
    def delete_step(self, table: str, keep_from_us: int | None, max_rows: int) -> int:
        """Delete a part of the oldest rows of `table`; return how many.

        With `keep_from_us`, only rows received before that time are deleted.
        """

    @abc.abstractmethod
    def checkpoint(self) -> None:
        """Make the space of deleted rows reusable."""

    def forget_blocks(self) -> None:  # noqa: B027 - only files have blocks that stay in memory
        """Free memory of rows that were loaded; no question may be under way."""

    @abc.abstractmethod
    def copy_to(self, target: Path) -> int:
        """Write a consistent copy and return its applied sequence.

        The copy is complete or absent; the caller must keep writers away.
        """

    @abc.abstractmethod
    def used_bytes(self) -> int:
        """Return the size of the rows that are kept."""

    def owns_upkeep(self) -> bool:
        """Return whether this process deletes old rows and keeps the files few."""
        return True

    def upkeep(self, now_us: int) -> None:  # noqa: B027 - only lakes have anything to do
        """Keep files and state small; called about once a minute by the owner of upkeep."""

    def prepare(self, frames: Sequence[Frame]) -> Prepared:
        """Decode requests for `load`; one thread may do so while another one loads."""
        return self._decode(frames, self._columns_ahead)

    def load(
        self,
        frames: Sequence[Frame],
        known: Container[bytes] = (),
        prepared: Prepared | None = None,
    ) -> Loaded:
        """Apply requests in one transaction; after an error none of them is in the database.

        Requests with a digest in `known` are counted as duplicates. What was `prepared` is used
        unless loads since then have changed what these requests are.
        """
        if prepared is None or not self._is_current(prepared, known):
            prepared = self._decode(frames, self._columns, known)
        fresh = prepared.fresh
        with self._transaction():
            missing = self._insert(prepared.batch, fresh)
            self._set_meta("applied_seq", frames[-1].seq)
        self.applied_seq = frames[-1].seq
        self._digests |= {digest: frame.received_us for digest, frame in fresh.items()}
        return Loaded(len(prepared.batch.seq), len(frames), len(frames) - len(fresh), missing)

    def _decode(
        self, frames: Sequence[Frame], columns: Columns, known: Container[bytes] = ()
    ) -> Prepared:
        fresh: dict[bytes, Frame] = {}
        columns.clear()
        for frame in frames:
            digest = request_digest(frame.signal, frame.body)
            if not (digest in self._digests or digest in fresh or digest in known):
                fresh[digest] = frame
                columns.add(frame.signal, frame.body, self.first_seq + frame.seq, frame.received_us)
            if len(fresh) > 1 and columns.shared_bytes > MAX_SHARED_OF_LOAD:
                raise TooLarge("together these requests take too much memory; load them by halves")
        return Prepared(fresh, columns.take(), self.first_seq)

    def _is_current(self, prepared: Prepared, known: Container[bytes]) -> bool:
        """Return whether nothing was loaded since these requests were prepared."""
        return prepared.first_seq == self.first_seq and not any(
            digest in self._digests or digest in known for digest in prepared.fresh
        )

    def load_late(self, frame: Frame) -> Loaded:
        """Load a request that was set aside under its old number; it is loaded at most once."""
        digest = request_digest(frame.signal, frame.body)
        if digest in self._digests:
            return Loaded(0, 1, 1)
        stored = self.first_seq + frame.seq
        if frame.seq > self.applied_seq or self.scalar(
            f"SELECT count(*) FROM events WHERE seq = {stored}"
        ):
            raise StoreError(
                f"request {frame.seq} has no place in this database: the journal still holds it, "
                "or a backup was restored; `ingero-echo quarantine show ID --output FILE` writes "
                "its body"
            )
        batch = self._decode([frame], self._columns).batch
        with self._transaction():
            missing = self._insert(batch, {digest: frame})
            for key, statement in _ROLL_UPS.items():
                if frame.seq <= self._meta(key):
                    self._roll_up(statement, stored - 1, stored, frame.received_us)
        self._digests[digest] = frame.received_us
        return Loaded(len(batch.seq), 1, missing=missing)

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
                self._insert(self._columns.take(), {})
                raise _TakeBack
        except _TakeBack:
            return
        except duckdb.Error as error:
            raise StoreError(f"cannot load any request: {first_line(error)}") from None

    def has(self, digest: bytes) -> bool:
        """Return whether a request was loaded, as far back as retries are recognised."""
        return digest in self._digests

    def _insert(self, batch: Batch, fresh: dict[bytes, Frame]) -> int:
        """Insert rows and digests; return how many values no column can hold."""
        missing = batch.not_finite
        metric_names = {context.metric_name for context in batch.contexts}
        if len(batch.seq):
            with self._registered("batch", batch_table(batch)):
                self._execute("INSERT INTO events SELECT * FROM batch")
                for statement in projections(metric_names):
                    self._execute(statement)
                missing += sum(map(self.scalar, missing_values(metric_names)))
        if fresh:
            with self._registered("digests", self._digest_table(fresh)):
                self._execute("INSERT INTO applied_requests SELECT * FROM digests")
        return missing

    def roll_up(self, now_us: int) -> int:
        """Add events since the last call to the minutes; return how many requests they cover."""
        covered = 0
        with self._transaction():
            for key, statement in _ROLL_UPS.items():
                rolled = self._meta(key)
                until = min(self.applied_seq, rolled + ROLL_UP_STEP)
                if until > rolled:
                    first = self.first_seq
                    self._roll_up(statement, first + rolled, first + until, now_us)
                    self._set_meta(key, until)
                    covered = max(covered, until - rolled)
        return covered

    def _roll_up(self, statement: str, rolled: int, applied: int, now_us: int) -> None:
        values = {"rolled": rolled, "applied": applied, "now_us": now_us}
        self._execute(statement, {key: values[key] for key in values if f"${key}" in statement})

    def append_audit(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows to the audit log, in the order of its columns."""
        marks = ", ".join("?" * len(AUDIT_LOG.columns))
        with self._transaction():
            self._connection.executemany(
                f"INSERT INTO audit_log VALUES ({marks})", [list(row) for row in rows]
            )

    def audit_size(self) -> tuple[int, int]:
        """Return the rows of the audit log and about how many bytes they take."""
        row = self._execute(AUDIT_SIZE).fetchone()
        return (int(row[0]), int(row[1])) if row else (0, 0)

    def trim_audit(self, keep_rows: int) -> int:
        """Keep the newest rows of the audit log; return how many were deleted.

        The table is written anew, because deleting a part of its rows would free little space.
        """
        before, _ = self.audit_size()
        deleted = max(0, before - keep_rows)
        with self._transaction():
            self._execute(
                f"CREATE TEMP TABLE kept AS FROM audit_log ORDER BY ts DESC LIMIT {keep_rows}"
            )
            self._execute("DELETE FROM audit_log")
            self._execute("INSERT INTO audit_log FROM kept ORDER BY ts")
            self._execute("DROP TABLE kept")
            self._set_meta("rows_deleted", self._meta("rows_deleted") + deleted)
        return deleted

    def row_counts(self) -> dict[str, int]:
        """Return the number of rows by table."""
        counts = {}
        for table in TABLES:
            row = self._execute(f"SELECT count(*) FROM {table.name}").fetchone()
            counts[table.name] = int(row[0]) if row else 0
        return counts

    def scalar(self, sql: str) -> Any:
        """Return the single value of one of our own queries."""
        row = self._execute(sql).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        self._connection.close()

    def _meta(self, key: str) -> int:
        return int(self.scalar(f"SELECT value FROM meta WHERE key = '{key}'"))

    def _set_meta(self, key: str, value: int) -> None:
        self._execute("UPDATE meta SET value = ? WHERE key = ?", [value, key])

    def _execute(self, sql: str, values: Any = None) -> duckdb.DuckDBPyConnection:
        return self._connection.execute(sql, values)

    def _digest_table(self, fresh: dict[bytes, Frame]) -> ArrowTable:
        frames = fresh.values()
        seqs = [self.first_seq + frame.seq for frame in frames]
        return digest_table(list(fresh), seqs, [frame.received_us for frame in frames])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN")
        try:
            yield
        except BaseException:
            # after a fatal error the transaction is already over
            with contextlib.suppress(duckdb.Error, StoreError):
                self._execute("ROLLBACK")
            raise
        self._execute("COMMIT")

    def end_transaction(self) -> None:
        """Undo a transaction that an error has left open; raise duckdb.Error if it stays."""
        with contextlib.suppress(duckdb.TransactionException):  # none is open, as it should be
            self._execute("ROLLBACK")

    @contextlib.contextmanager
    def _registered(self, name: str, table: ArrowTable) -> Iterator[None]:
        self._connection.register(name, table)
        try:
            yield
        finally:
            self._connection.unregister(name)
            table.release()


class _TakeBack(Exception):
    """Ends a transaction whose rows are not wanted."""


def time_column(table: str) -> str:
    """Return the column that tells how old a row of `table` is."""
    columns = {"audit_log": "ts", "causal_chains": "detected_at", "arrivals": "minute"}
    return columns.get(table, "received_ts")


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its type if it has no text."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__
