"""Echo's tables in a lake: a catalogue in PostgreSQL, files in object storage, several writers.

Tables only grow by inserts, because updates of one table by several writers meet each other. Old
rows go by whole days, and only the owner of upkeep deletes them. Questions have a connection of
their own: attached for reading, with a role of PostgreSQL that may only SELECT.
"""

import contextlib
import logging
import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from ingero.errors import StoreError
from ingero.storage.events.lake.address import LakeAddress, LakeSecrets
from ingero.storage.events.lake.catalogue import Catalogue
from ingero.storage.events.lake.connection import NAME, attach, close, describe_failure
from ingero.storage.events.lake.identity import writer_identity
from ingero.storage.events.lake.schema import migrate_lake
from ingero.storage.events.lake.unheard import commit_as, undo_unheard
from ingero.storage.events.migrate import supported_version
from ingero.storage.events.numbering import NUMBER_SHIFT, own_key, stored_from
from ingero.storage.events.store import (
    DIGEST_AGE_US,
    EventStore,
    Loaded,
    Prepared,
    time_column,
)
from ingero.storage.journal.frames import Frame

log = logging.getLogger(__name__)

DAY_US: Final = 86_400 * 1_000_000
_TIDY_EVERY_S: Final = 300.0
# a query lasts at most minutes, so nobody reads a snapshot or a file that is older
_KEPT_MINUTES: Final = 15
_ORPHAN_HOURS: Final = 1
_MERGED_AT_ONCE: Final = 64  # files, so that a merge does not delay loading for long
_MEMORY_OF_READERS: Final = 0.5
_OTHERS_OVERLAP_US: Final = 60 * 1_000_000  # clocks of writers may differ by this much


class LakeStore(EventStore):
    """One writer of a lake that others may write and read at the same time."""

    load_every_s = 5.0  # each load makes files, and few files are fast to read
    load_bytes = 40_000_000

    def __init__(
        self,
        address: LakeAddress,
        secrets: LakeSecrets,
        beside: Path,
        memory_bytes: int,
        threads: int,
    ) -> None:
        """Open the lake; the writer's identity lies `beside` its journal."""
        self._catalogue = Catalogue(address, secrets)
        self._tidied_s = time.monotonic()
        self._others_us = 0
        self._is_in_doubt = False
        self._data = address.data
        writing = int(memory_bytes * (1 - _MEMORY_OF_READERS))
        with contextlib.ExitStack() as undo:
            undo.callback(self._catalogue.close)
            with self._catalogue.alone():
                self._catalogue.prepare()
                self._number = self._catalogue.hold_writer(writer_identity(beside))
                self._catalogue.end_left_over()  # of a process that was killed
                connection = attach(
                    address,
                    secrets,
                    read_only=False,
                    memory_bytes=writing,
                    threads=threads,
                    session=self._catalogue.session,
                )
                undo.callback(connection.close)
                migrate_lake(connection)
                undo_unheard(self._catalogue, connection, self._data)
                self._catalogue.prepare()  # again: the tables that came since can be read too
            self._readers = attach(
                address,
                secrets,
                read_only=True,
                memory_bytes=memory_bytes - writing,
                threads=threads,
            )
            undo.pop_all()
        super().__init__(connection, stored_from(self._number))

    def has_written(self) -> bool:
        """Return whether the lake knows this writer from before."""
        return bool(self.scalar(f"SELECT count(*) FROM meta WHERE key LIKE '%/{self._number}'"))

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection that can only read."""
        cursor = self._readers.cursor()
        cursor.execute(f"USE {NAME}")
        return cursor

    def load(
        self,
        frames: Sequence[Frame],
        known: Container[bytes] = (),
        prepared: Prepared | None = None,
    ) -> Loaded:
        """Apply requests in one transaction, except those that another writer has applied.

        Two writers that get the same request within the same seconds both apply it.
        """
        self._learn_from_others()
        return super().load(frames, known, prepared)

    def recover(self) -> None:
        """Read again what was committed: an error may have hidden a commit that succeeded."""
        self._catalogue.end_left_over()
        undo_unheard(self._catalogue, self._connection, self._data)
        self.read_state()
        self._is_in_doubt = False

    def check_works(self) -> None:
        """Load requests that are known to be sound and take them back; raise StoreError.

        A newer Echo may have upgraded the lake meanwhile.
        """
        supported_version(self._connection)
        super().check_works()

    def forget_digests(self, now_us: int) -> int:
        """Forget digests here; the owner of upkeep deletes their rows for all writers."""
        old = [
            digest
            for digest, received in self._digests.items()
            if received < now_us - DIGEST_AGE_US
        ]
        for digest in old:
            del self._digests[digest]
        return len(old)

    def delete_step(self, table: str, keep_from_us: int | None, max_rows: int) -> int:
        """Delete the oldest day of `table`, or with `keep_from_us` all days before; see the base.

        `max_rows` has no effect: a whole day goes without reading its rows.
        """
        column = time_column(table)
        if keep_from_us is None:
            oldest = self.scalar(f"SELECT epoch_us(min({column})::TIMESTAMP) FROM {table}")
            if oldest is None:
                return 0
            keep_from_us = (oldest // DAY_US + 1) * DAY_US
        day = keep_from_us // DAY_US * DAY_US
        with self._transaction():
            found = self._execute(
                f"DELETE FROM {table} WHERE {column} < make_timestamp({day})"
            ).fetchone()
            deleted = int(found[0]) if found else 0
            if deleted:
                self._set_meta("rows_deleted", self._meta("rows_deleted") + deleted)
        return deleted

    def checkpoint(self) -> None:
        """Do nothing: every load is complete in the lake, and upkeep frees space."""

    def copy_to(self, target: Path) -> int:
        """Refuse: a copy of a lake is made by its engines."""
        raise StoreError(
            f"cannot write {target}: the data lies in a lake. Back up its catalogue with pg_dump, "
            "and keep the versions of its bucket"
        )

    def used_bytes(self) -> int:
        """Return the size of all files that rows are read from."""
        return int(
            self.scalar(
                "SELECT coalesce(sum(file_size_bytes + delete_file_size_bytes), 0)::BIGINT "
                f"FROM ducklake_table_info('{NAME}')"
            )
        )

    def owns_upkeep(self) -> bool:
        """Return whether this writer maintains the lake; take that over where nobody does."""
        return self._catalogue.owns_upkeep()

    def upkeep(self, now_us: int) -> None:
        """Delete state that is no longer needed; every few minutes merge and free files.

        Another writer's commit may get in the way: then the next round does it. A clock that is
        ahead of PostgreSQL's does not count: it would delete what other writers need.
        """
        now_us = min(now_us, self._catalogue.now_us())
        before = now_us - DIGEST_AGE_US
        statements = [
            f"DELETE FROM applied_requests WHERE received_ts < make_timestamp({before})",
            "DELETE FROM meta AS old USING (SELECT key, max(value) AS newest FROM meta "
            "GROUP BY key) AS new WHERE old.key = new.key AND old.value < new.newest",
        ]
        if time.monotonic() - self._tidied_s > _TIDY_EVERY_S:
            self._tidied_s = time.monotonic()
            statements += tidy_statements(now_us)
            with self._catalogue.no_files_kept() as is_free:
                self._try_each([*statements, *([orphans_statement(now_us)] if is_free else ())])
        else:
            self._try_each(statements)

    def _try_each(self, statements: Sequence[str]) -> None:
        for statement in statements:
            try:
                self._execute(statement)
            except StoreError as error:
                log.warning("upkeep_postponed reason=%r", str(error))

    def close(self) -> None:
        """Close all connections, also while PostgreSQL is gone."""
        for connection in (self._readers, self._connection):
            close(connection)
        self._catalogue.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._is_in_doubt:
            self.recover()
        try:
            with super()._transaction():
                self._execute(commit_as(self._catalogue))
                yield
                self._catalogue.check_writer()
        except StoreError:
            self._is_in_doubt = True
            raise

    def _learn_from_others(self) -> None:
        """Remember the requests that other writers have applied since the last time."""
        first, after = self.first_seq, self.first_seq + (1 << NUMBER_SHIFT)
        rows = self._execute(
            "SELECT digest, epoch_us(received_ts) FROM applied_requests WHERE "
            f"received_ts > make_timestamp({max(0, self._others_us - _OTHERS_OVERLAP_US)}) "
            f"AND seq NOT BETWEEN {first} AND {after}"
        ).fetchall()
        self._digests |= {bytes(digest): received for digest, received in rows}
        self._others_us = max((received for _, received in rows), default=self._others_us)

    def _execute(self, sql: str, values: Any = None) -> duckdb.DuckDBPyConnection:
        """Run one statement; raise StoreError where the lake's engines are the reason."""
        try:
            return super()._execute(sql, values)
        except duckdb.Error as error:
            if is_trouble(error):
                raise StoreError(describe_failure(error)) from error
            raise

    def _meta(self, key: str) -> int:
        value = self.scalar(f"SELECT max(value) FROM meta WHERE key = '{self._own(key)}'")
        return int(value or 0)

    def _set_meta(self, key: str, value: int) -> None:
        """Add a row: all our values only grow, so the largest is the present one."""
        self._execute("INSERT INTO meta VALUES (?, ?)", [self._own(key), value])

    def _own(self, key: str) -> str:
        return own_key(key, self._number)


def tidy_statements(now_us: int) -> list[str]:
    """Return the statements that keep files few and free those that nobody reads any more."""
    unread = f"make_timestamp({now_us}) - INTERVAL {_KEPT_MINUTES} MINUTE"
    return [
        f"CALL ducklake_flush_inlined_data('{NAME}')",
        f"CALL ducklake_merge_adjacent_files('{NAME}', max_compacted_files => {_MERGED_AT_ONCE})",
        f"CALL ducklake_rewrite_data_files('{NAME}')",
        f"CALL ducklake_expire_snapshots('{NAME}', older_than => {unread})",
        f"CALL ducklake_cleanup_old_files('{NAME}', older_than => {unread})",
    ]


def orphans_statement(now_us: int) -> str:
    """Return the statement that deletes files which no commit names, as one was interrupted."""
    orphaned = f"make_timestamp({now_us}) - INTERVAL {_ORPHAN_HOURS} HOUR"
    return f"CALL ducklake_delete_orphaned_files('{NAME}', older_than => {orphaned})"


def is_trouble(error: duckdb.Error) -> bool:
    """Return whether an error is about the lake's engines, not about what was loaded."""
    if isinstance(error, duckdb.OutOfMemoryException | duckdb.InterruptException):
        return False
    # what PostgreSQL refuses has no class of its own
    return type(error) is duckdb.Error or isinstance(error, duckdb.OperationalError)
