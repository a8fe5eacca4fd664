"""What the writers of a lake share in PostgreSQL: their numbers, who does maintenance, and rights.

Locks belong to a connection, so they end with the process that held them, however it ended.
"""

import contextlib
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ingero.errors import StoreError
from ingero.storage.events.lake.address import LakeAddress, LakeSecrets

if TYPE_CHECKING:
    import psycopg

MAX_WRITERS: Final = 32_767  # their number takes the upper bits of a request's number
_UPKEEP: Final = 0  # the number that no writer has stands for the right to maintain the lake
_STARTING: Final = -1
_MOVING: Final = -2
_LOCK_WAIT_MS: Final = 30_000  # for a writer that starts at the same time
_LEFT_OVER_MS: Final = 10_000  # for the end of a commit whose connection broke
_HOW_TO: Final = "docs/how-to/share-echo.md has the statements"
# what to do about what PostgreSQL refuses, by its code
_ADVICE: Final = {
    "42501": _HOW_TO,
    "42704": f"create that role, or leave reader_user out of store_secrets_file; {_HOW_TO}",
    "55P03": "another Echo starts or upgrades this lake, or a database is moved into it; try again",
}


class Catalogue:
    """A connection to the database of the catalogue, renewed when it broke."""

    def __init__(self, address: LakeAddress, secrets: LakeSecrets) -> None:
        self._address = address
        self._secrets = secrets
        # locks of one schema have one class, so that lakes in one database do not meet
        self._lock_class = zlib.crc32(address.schema.encode()) & 0x7FFFFFFF
        self._connection: psycopg.Connection[Any] | None = None
        self._writer: int | None = None
        self._locked_on: psycopg.Connection[Any] | None = None  # since the state was read
        self._owns_upkeep = False
        self._keeps_files = False

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other writers from starting meanwhile: creating the same things twice fails."""
        self._execute("SELECT pg_advisory_lock(%s, %s)", self._lock_class, _STARTING)
        try:
            yield
        finally:
            with contextlib.suppress(StoreError):  # a connection that broke took the lock along
                self._execute("SELECT pg_advisory_unlock(%s, %s)", self._lock_class, _STARTING)

    def prepare(self) -> None:
        """Create what the lake stands on, and let the reader's role read all that will be there."""
        schema, reader = self._address.schema, self._secrets.reader_user
        self._execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        self._execute(
            f"CREATE TABLE IF NOT EXISTS {schema}.echo_writers "
            "(identity text PRIMARY KEY, number integer UNIQUE NOT NULL)"
        )
        if reader:
            role = '"' + reader.replace('"', '""') + '"'
            self._execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            self._execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
            self._execute(
                f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT ON TABLES TO {role}"
            )

    def hold_writer(self, identity: str) -> int:
        """Return the number of a writer, a new one for a new identity, and keep it while running.

        Raises StoreError while another process has it.
        """
        table = f"{self._address.schema}.echo_writers"
        rows = self._execute(
            f"INSERT INTO {table} SELECT %s, coalesce(max(number), 0) + 1 FROM {table} "
            "ON CONFLICT (identity) DO UPDATE SET identity = excluded.identity RETURNING number",
            identity,
        )
        number = int(rows[0][0])
        if number > MAX_WRITERS:
            raise StoreError(f"the lake has had {MAX_WRITERS} writers; use another schema")
        if not self._try_lock(number):
            raise StoreError(
                f"could not set lock on writer {number} of the lake: another Echo runs with a copy "
                "of the same journal folder"
            )
        self._writer = number
        self._locked_on = self._connection
        return number

    def check_writer(self) -> None:
        """Raise StoreError unless nobody else can have been this writer since the state was read.

        Call it in a transaction: whoever becomes this writer ends what is under way.
        """
        if not self._is_alive() or self._connection is not self._locked_on:
            raise StoreError(f"PostgreSQL gave up the lock of writer {self._writer} meanwhile")

    def owns_upkeep(self) -> bool:
        """Return whether this process maintains the lake; take that over where nobody does."""
        if not self._owns_upkeep or not self._is_alive():
            self._owns_upkeep = self._try_lock(_UPKEEP)
        return self._owns_upkeep

    def keep_files(self) -> None:
        """Keep the files of a transaction that takes hours from being taken for orphans."""
        self._execute("SELECT pg_advisory_lock_shared(%s, %s)", self._lock_class, _MOVING)
        self._keeps_files = True

    def check_kept(self) -> None:
        """Raise StoreError if files were not kept all the time since `keep_files`."""
        if not (self._keeps_files and self._is_alive()):
            raise StoreError("PostgreSQL was away meanwhile, so files may be missing; try again")

    @contextlib.contextmanager
    def no_files_kept(self) -> Iterator[bool]:
        """Yield whether nobody keeps files of an open transaction; nobody begins to meanwhile."""
        is_free = self._try_lock(_MOVING)
        try:
            yield is_free
        finally:
            if is_free:
                self._execute("SELECT pg_advisory_unlock(%s, %s)", self._lock_class, _MOVING)

    @property
    def session(self) -> str:
        """The name of the connections over which this writer loads."""
        return f"ingero-echo {self._address.schema}/{self._writer}"

    def end_left_over(self) -> None:
        """End what PostgreSQL still does for a load whose connection broke.

        It may be committing what will be loaded again. Raises StoreError if it goes on.
        """
        rows = self._execute(
            "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity "
            "WHERE application_name = %s AND datname = current_database() AND state <> 'idle'",
            _LEFT_OVER_MS,
            self.session,
        )
        if not all(is_over for (is_over,) in rows):
            raise StoreError("PostgreSQL still works on a load whose connection broke")
        self._locked_on = self._connection

    def last_commit(self) -> tuple[int, list[str]]:
        """Return this writer's last snapshot, 0 for none, and which files it added to the data."""
        schema = self._address.schema
        rows = self._execute(
            f"SELECT coalesce(max(snapshot_id), 0) FROM {schema}.ducklake_snapshot_changes "
            "WHERE author = %s",
            self.session,
        )
        snapshot = int(rows[0][0])
        added = " UNION ALL ".join(
            f"SELECT table_id, path FROM {schema}.ducklake_{kind}_file WHERE begin_snapshot = %s"
            for kind in ("data", "delete")
        )
        return snapshot, self._paths(added, snapshot, snapshot)

    def file_before(self, snapshot: int) -> str | None:
        """Return a file of the data that was there before a snapshot and still is, if any."""
        older = (
            f"SELECT table_id, path FROM {self._address.schema}.ducklake_data_file "
            "WHERE begin_snapshot < %s AND end_snapshot IS NULL ORDER BY data_file_id DESC LIMIT 1"
        )
        return next(iter(self._paths(older, snapshot)), None)

    def _paths(self, files: str, *values: int) -> list[str]:
        """Return where the files that a query names are, below the data."""
        schema = self._address.schema
        rows = self._execute(
            f"SELECT s.path || t.path || f.path FROM ({files}) f "
            f"JOIN {schema}.ducklake_table t USING (table_id) "
            f"JOIN {schema}.ducklake_schema s USING (schema_id)",
            *values,
        )
        return [path for (path,) in rows]

    def undo(self, snapshot: int) -> None:
        """Take back what a snapshot inserted and deleted, as if it had not been committed."""
        lake = f"{self._address.schema}.ducklake"
        inlined = self._execute(f"SELECT table_name FROM {lake}_inlined_data_tables")
        tables = [f"{self._address.schema}.{name}" for (name,) in inlined]
        tables += [f"{lake}_data_file", f"{lake}_delete_file"]
        added = f"FROM {lake}_data_file WHERE begin_snapshot = {snapshot}"
        about_files = ("file_column_stats", "file_partition_value", "file_variant_stats")
        statements = [
            f"UPDATE {lake}_table_stats AS stats SET record_count = record_count - gone.records, "
            "file_size_bytes = file_size_bytes - gone.bytes FROM (SELECT table_id, "
            f"sum(record_count) AS records, sum(file_size_bytes) AS bytes {added} "
            "GROUP BY table_id) AS gone WHERE stats.table_id = gone.table_id",
            *(
                f"DELETE FROM {lake}_{table} WHERE data_file_id IN (SELECT data_file_id {added})"
                for table in about_files
            ),
            *(f"DELETE FROM {table} WHERE begin_snapshot = {snapshot}" for table in tables),
            *(
                f"UPDATE {table} SET end_snapshot = NULL WHERE end_snapshot = {snapshot}"
                for table in tables
            ),
        ]
        self._execute(f"DO $undo$BEGIN {'; '.join(statements)}; END$undo$")

    def now_us(self) -> int:
        """Return the time of PostgreSQL, which all writers share."""
        return int(self._execute("SELECT (extract(epoch FROM now()) * 1000000)::bigint")[0][0])

    def close(self) -> None:
        """Give up all locks, at once where PostgreSQL answers, and close the connection."""
        if self._connection is not None:
            with contextlib.suppress(StoreError):
                self._execute("SELECT pg_advisory_unlock_all()")
        self._disconnect()

    def _disconnect(self) -> None:
        self._keeps_files = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _try_lock(self, number: int) -> bool:
        rows = self._execute("SELECT pg_try_advisory_lock(%s, %s)", self._lock_class, number)
        return bool(rows[0][0])

    def _is_alive(self) -> bool:
        with contextlib.suppress(StoreError):
            connection = self._connection
            self._execute("SELECT 1")
            return self._connection is connection
        return False

    def _execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement; raise StoreError. After an error the next one connects anew."""
        psycopg = _client()
        try:
            if self._connection is None:
                self._connection = self._connect()
            cursor = self._connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            self._disconnect()
            raise StoreError(self._explained(error)) from None

    def _explained(self, error: "psycopg.Error") -> str:
        """Return one sentence that says who must do what."""
        where = f"{self._address.host}:{self._address.port}"
        said = str(error).splitlines()[0]
        _, is_refused, reason = said.partition("FATAL:")
        if is_refused:  # before there was a connection, errors have no code
            return (
                f"PostgreSQL on {where} refuses the connection: {reason.strip()}; user and "
                "database are in the address of the lake, the password in store_secrets_file"
            )
        if error.sqlstate is None or error.sqlstate[:2] in ("08", "57"):
            return f"cannot reach the catalogue on {where}: {said}"
        advice = _ADVICE.get(error.sqlstate, _HOW_TO)
        return f"PostgreSQL on {where} refuses what {self._address.user} asks for: {said}; {advice}"

    def _connect(self) -> "psycopg.Connection[Any]":
        where = self._address.catalogue("ingero-echo")
        where["options"] += f" -c lock_timeout={_LOCK_WAIT_MS}"
        connection: psycopg.Connection[Any] = _client().connect(
            **where,
            user=self._address.user,
            password=self._secrets.password or None,
            autocommit=True,
        )
        if self._writer is not None:  # the old connection took its locks along
            lock = "SELECT pg_try_advisory_lock(%s, %s)"
            row = connection.execute(lock, (self._lock_class, self._writer)).fetchone()
            if row is None or not row[0]:
                connection.close()
                raise StoreError(f"another Echo has become writer {self._writer} of the lake")
        return connection


def _client() -> Any:
    """Return the client of PostgreSQL; raise StoreError where it is not installed."""
    try:
        import psycopg  # noqa: PLC0415 - an extra that only lakes need
    except ImportError:
        raise StoreError("a lake needs psycopg: run `pip install 'ingero[lake]'`") from None
    return psycopg
