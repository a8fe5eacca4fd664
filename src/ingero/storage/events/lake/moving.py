"""Moving a database file into a lake: everything in one transaction, compared before it ends."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from ingero.errors import StoreError
from ingero.storage.events.lake.address import LakeAddress, LakeSecrets
from ingero.storage.events.lake.catalogue import Catalogue
from ingero.storage.events.lake.connection import attach, close, describe_failure
from ingero.storage.events.lake.identity import mark_moved, writer_identity
from ingero.storage.events.lake.schema import migrate_lake
from ingero.storage.events.lake.unheard import commit_as, undo_unheard
from ingero.storage.events.numbering import REQUEST_COLUMNS, own_key, stored_from
from ingero.storage.events.schema import META, TABLES
from ingero.storage.events.table import Table

_STATE: Final = (
    *("applied_seq", "rolled_seq", "arrived_seq", "arrivals_from_us"),
    *("requests_dropped", "rows_deleted"),
)


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved of one table: its rows, and a digest that does not depend on their order."""

    table: str
    rows: int
    digest: str


def move_file(
    file: Path,
    address: LakeAddress,
    secrets: LakeSecrets,
    memory_bytes: int,
    on_table: Callable[[Moved], None],
) -> list[Moved]:
    """Copy all tables of a database file into a lake; raise StoreError and change nothing else.

    The file stays as it is. Its Echo continues in the lake where its journal ends.
    """
    catalogue = Catalogue(address, secrets)
    with contextlib.closing(catalogue):
        with catalogue.alone():
            catalogue.prepare()
            number = catalogue.hold_writer(writer_identity(file))
        connection = attach(
            address,
            secrets,
            read_only=False,
            memory_bytes=memory_bytes,
            threads=1,
            session=catalogue.session,
            also_read=file,
        )
        try:
            with catalogue.alone():
                migrate_lake(connection)
                catalogue.prepare()
            catalogue.end_left_over()
            undo_unheard(catalogue, connection, address.data)
            _refuse_again(connection, number, file)
            catalogue.keep_files()
            connection.execute("BEGIN")
            connection.execute(commit_as(catalogue))
            moved = _copied(connection, number, on_table)
            catalogue.check_kept()
            _commit(connection, file)
        except duckdb.Error as error:
            raise StoreError(f"{file} was not moved: {describe_failure(error)}") from None
        finally:
            close(connection)
    mark_moved(file)
    return moved


def _refuse_again(connection: duckdb.DuckDBPyConnection, number: int, file: Path) -> None:
    """Refuse a database whose rows are in the lake, also where nobody could say so afterwards."""
    rows = connection.execute(
        "SELECT max(value), (SELECT max(value) FROM file.meta WHERE key = 'applied_seq') "
        f"FROM meta WHERE key = '{own_key('applied_seq', number)}'"
    ).fetchall()
    for in_lake, in_file in rows:
        if in_lake is not None:
            if in_lake == in_file:
                mark_moved(file)
            raise StoreError(
                f"{file} was moved into the lake before, or its Echo wrote there; start Echo with "
                "--store"
            )


def _commit(connection: duckdb.DuckDBPyConnection, file: Path) -> None:
    try:
        connection.execute("COMMIT")
    except duckdb.Error as error:
        raise StoreError(
            f"PostgreSQL did not confirm that {file} is in the lake: {describe_failure(error)}; "
            "run the same command again, it finds out"
        ) from None


def _copied(
    connection: duckdb.DuckDBPyConnection, number: int, on_table: Callable[[Moved], None]
) -> list[Moved]:
    """Copy the rows of all tables, and what their Echo knew about itself."""
    moved = []
    for table in TABLES:
        if table is not META:
            moved.append(_move_table(connection, table, stored_from(number)))
            on_table(moved[-1])
    for key in _STATE:
        connection.execute(
            "INSERT INTO meta SELECT ?, coalesce(max(value), 0) FROM file.meta WHERE key = ?",
            [own_key(key, number), key],
        )
    return moved


def _move_table(connection: duckdb.DuckDBPyConnection, table: Table, first: int) -> Moved:
    """Copy one table and compare; rows that others wrote to the lake before do not count."""
    names = [f'"{name}"' for name, _, _ in table.columns]
    columns = ", ".join(names)
    values = ", ".join(
        f'"{name}" + {first} AS "{name}"' if name in REQUEST_COLUMNS else f'"{name}"'
        for name, _, _ in table.columns
    )
    source = f"SELECT {values} FROM file.{table.name}"
    wanted = _counted(connection, source, columns)
    before = _counted(connection, f"FROM {table.name}", columns)
    connection.execute(f"INSERT INTO {table.name} ({columns}) {source}")
    after = _counted(connection, f"FROM {table.name}", columns)
    arrived = (after[0] - before[0], after[1] - before[1])
    if arrived != wanted:
        raise StoreError(
            f"{table.name}: {arrived[0]} rows arrived of {wanted[0]}, or not as they were; "
            "nothing was moved"
        )
    return Moved(table.name, wanted[0], f"{wanted[1] % 2**64:016x}")


def _counted(connection: duckdb.DuckDBPyConnection, rows: str, columns: str) -> tuple[int, int]:
    """Return how many rows there are, and the sum of their hashes."""
    found = connection.execute(
        f"SELECT count(*), coalesce(sum(hash({columns})), 0)::HUGEINT FROM ({rows})"
    ).fetchone()
    return (int(found[0]), int(found[1])) if found else (0, 0)
