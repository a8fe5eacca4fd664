"""Echo's tables in one DuckDB file: the default."""

import contextlib
from pathlib import Path
from typing import Final

import duckdb

from ingero.errors import StoreError
from ingero.files import copy_file
from ingero.storage.events.arrow import digest_table
from ingero.storage.events.migrate import migrate
from ingero.storage.events.store import (
    DIGEST_AGE_US,
    MAX_DIGESTS,
    EventStore,
    first_line,
    time_column,
)
from ingero.storage.place import require_own_folder

_MAGIC: Final = (8, b"DUCK")  # the offset in the file, and the bytes there
# Of a new file: strings take less time to compress than in the oldest format, which is the default.
STORAGE_VERSION: Final = "v1.5.0"
# A large load makes row groups of its own, and a checkpoint would write all of them again to save
# the small one at the end of each. Rows are deleted in their order, so row groups empty as a whole.
NO_MERGES: Final = "SET max_vacuum_tasks = 0"
# DuckDB keeps each block that it wrote, as if it had been read, up to its memory limit. It forgets
# some when the limit is lowered, and in no other way. All other settings stay locked.
_MAY_FORGET: Final = "SET allowed_configs = ['memory_limit']"
MOST_BLOCKS_BYTES, KEPT_BLOCKS_BYTES = 128 << 20, 64 << 20
_BLOCKS_BYTES: Final = """SELECT memory_usage_bytes::BIGINT FROM duckdb_memory()
WHERE tag = 'BASE_TABLE'"""
SAFE_SETTINGS: Final = (
    NO_MERGES,
    "SET allocator_background_threads = true",  # memory that is no longer used goes back
    "SET enable_external_access = false",
    "SET allow_community_extensions = false",
    "SET TimeZone = 'UTC'",
    "SET lock_configuration = true",
)


class DuckDbStore(EventStore):
    """The store in a file, which only this process opens."""

    def __init__(self, path: Path, memory_bytes: int, threads: int) -> None:
        self.path = path
        self._memory_limit = f"{memory_bytes // 1024}KiB"
        require_own_folder(path)
        _refuse_foreign(path)
        try:
            connection = duckdb.connect(
                str(path),
                config={
                    "memory_limit": self._memory_limit,
                    "threads": threads,
                    "storage_compatibility_version": STORAGE_VERSION,
                    "autoinstall_known_extensions": False,
                    "autoload_known_extensions": False,
                },
            )
        except duckdb.Error as error:
            raise StoreError(f"cannot open {path}: {first_line(error)}") from None
        try:
            migrate(connection)
        except StoreError:
            connection.close()
            raise
        for statement in (_MAY_FORGET, *SAFE_SETTINGS):
            connection.execute(statement)
        super().__init__(connection)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a separate connection to the same database, for one reader."""
        return self._connection.cursor()

    def forget_digests(self, now_us: int) -> int:
        """Delete digests that are too old for a retry; return how many."""
        excess = len(self._digests) - MAX_DIGESTS
        old = [
            digest
            for position, (digest, received) in enumerate(self._digests.items())
            if position < excess or received < now_us - DIGEST_AGE_US
        ]
        if old:
            with self._transaction(), self._registered("old", digest_table(old)):
                self._execute(
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
            table, time_column(table)
        )
        limit = (
            ""
            if keep_from_us is None
            else f"WHERE {time_column(table)} < make_timestamp({keep_from_us})"
        )
        row = self._execute(
            f"SELECT max({order}) FROM (SELECT {order} FROM {table} {limit} ORDER BY {order} "
            f"LIMIT {max_rows})"
        ).fetchone()
        if row is None or row[0] is None:
            return 0
        with self._transaction():
            found = self._execute(f"DELETE FROM {table} WHERE {order} <= ?", [row[0]]).fetchone()
            deleted = int(found[0]) if found else 0
            self._execute("UPDATE meta SET value = value + ? WHERE key = 'rows_deleted'", [deleted])
        return deleted

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file. This makes the space of deleted rows reusable."""
        self._execute("CHECKPOINT")

    def forget_blocks(
        self, most_bytes: int = MOST_BLOCKS_BYTES, kept_bytes: int = KEPT_BLOCKS_BYTES
    ) -> None:
        """Free memory of blocks that were written or read, if it is more than `most_bytes`."""
        if self.scalar(_BLOCKS_BYTES) <= most_bytes:
            return
        try:
            # a limit that cannot be reached, because more is in use, is not set
            with contextlib.suppress(duckdb.OutOfMemoryException):
                self._execute(f"SET memory_limit = '{kept_bytes}B'")
        finally:
            self._execute(f"SET memory_limit = '{self._memory_limit}'")

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
        row = self._execute(
            "SELECT used_blocks * block_size FROM pragma_database_size()"
        ).fetchone()
        wal = self.path.with_name(self.path.name + ".wal")
        return (int(row[0]) if row else 0) + (wal.stat().st_size if wal.exists() else 0)


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
