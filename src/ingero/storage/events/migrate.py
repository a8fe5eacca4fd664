"""Creating Echo's database and upgrading it from one schema version to the next."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from ingero.errors import StoreError
from ingero.storage.events.arrivals import ARRIVALS
from ingero.storage.events.schema import (
    AUDIT_LOG,
    CAUSAL_CHAINS,
    LATENESS,
    META,
    NCCL_OPS,
    TABLES,
    VERDICTS,
    VIEWS,
)
from ingero.storage.events.straggler_events import STRAGGLER_EVENTS, straggler_events_from
from ingero.storage.events.table import Table

SCHEMA_VERSION: Final = 8


class Connection(Protocol):
    """The part of a DuckDB connection that migrations use."""

    def execute(self, query: str, /) -> "Connection": ...

    def fetchone(self) -> tuple[object, ...] | None: ...

    def fetchall(self) -> list[tuple[object, ...]]: ...


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return text as SQL states it."""
    return "'" + text.replace("'", "''") + "'"


def create_statements() -> list[str]:
    """Return the statements that create version 1."""
    statements = [_creation(table) for table in TABLES]
    statements += [f"CREATE VIEW {view.name} AS {view.sql}" for view in VIEWS]
    for table in (*TABLES, *VIEWS):
        statements += comments(table)
    statements.append(
        "INSERT INTO meta VALUES ('applied_seq', 0), ('rolled_seq', 0), ('rows_deleted', 0)"
    )
    return statements


def _creation(table: Table) -> str:
    columns = ", ".join(f"{_quoted(name)} {kind}" for name, kind, _ in table.columns)
    return f"CREATE TABLE IF NOT EXISTS {table.name} ({columns})"


def comments(table: Table) -> list[str]:
    """Return the statements that describe a table and its columns in the catalogue."""
    word = "TABLE" if table.sql is None else "VIEW"
    return [
        f"COMMENT ON {word} {table.name} IS {literal(table.comment)}",
        *(
            f"COMMENT ON COLUMN {table.name}.{_quoted(name)} IS {literal(comment)}"
            for name, _, comment in table.columns
        ),
    ]


# Minutes of arrival cover what arrives after this step; older events are read one by one.
ARRIVALS_STEP: Final = (
    *(_creation(table) for table in (ARRIVALS, STRAGGLER_EVENTS)),
    straggler_events_from("events"),
    "INSERT INTO meta SELECT replace(key, 'rolled_seq', 'arrived_seq'), max(value) FROM meta "
    "WHERE key = 'rolled_seq' OR key LIKE 'rolled_seq/%' GROUP BY key",
    "INSERT INTO meta SELECT 'arrivals_from_us', CASE WHEN max(value) > 0 THEN epoch_us(now()) "
    "ELSE 0 END FROM meta WHERE key = 'applied_seq' OR key LIKE 'applied_seq/%'",
)

# The statements that lead from the previous version to this one; a released step never changes.
# The newest step that changes a table describes it: an older one would name columns to come.
MIGRATIONS: Final[Mapping[int, Sequence[str]]] = {
    1: create_statements(),
    # a database that is created now has these columns from its first step
    2: [
        "ALTER TABLE audit_log ADD COLUMN IF NOT EXISTS address VARCHAR",
        "ALTER TABLE audit_log ADD COLUMN IF NOT EXISTS requests BIGINT",
        *comments(AUDIT_LOG),
        *comments(META),
        "INSERT INTO meta VALUES ('requests_dropped', 0)",
    ],
    3: [
        *(
            f"ALTER TABLE verdicts ADD COLUMN IF NOT EXISTS {name} {kind}"
            for name, kind, _ in VERDICTS.columns
            if name in ("loss", "loss_error", "at_most", "cause", "link", "shared")
        ),
    ],
    4: [
        *(
            f"ALTER TABLE causal_chains ADD COLUMN IF NOT EXISTS {name} {kind}"
            for name, kind, _ in CAUSAL_CHAINS.columns[-5:]
        ),
        "ALTER TABLE nccl_ops ADD COLUMN IF NOT EXISTS weight DOUBLE",
        *comments(CAUSAL_CHAINS),
        *comments(NCCL_OPS),
    ],
    5: [f"CREATE OR REPLACE VIEW {LATENESS.name} AS {LATENESS.sql}", *comments(LATENESS)],
    6: ["ALTER TABLE verdicts ADD COLUMN IF NOT EXISTS collective VARCHAR"],
    7: ["ALTER TABLE verdicts ADD COLUMN IF NOT EXISTS engine VARCHAR", *comments(VERDICTS)],
    8: [
        *ARRIVALS_STEP,
        *(c for table in (ARRIVALS, STRAGGLER_EVENTS, META) for c in comments(table)),
    ],
}


def migrate(connection: Connection, migrations: Mapping[int, Sequence[str]] = MIGRATIONS) -> int:
    """Upgrade a database, one transaction per version; return the version that it had before."""
    found = supported_version(connection, max(migrations))
    for version in sorted(version for version in migrations if version > found):
        connection.execute("BEGIN")
        for statement in migrations[version]:
            connection.execute(statement)
        connection.execute("DELETE FROM meta WHERE key = 'schema_version'")
        connection.execute(f"INSERT INTO meta VALUES ('schema_version', {version})")
        connection.execute("COMMIT")
    return found


def supported_version(connection: Connection, newest: int = SCHEMA_VERSION) -> int:
    """Return the version of a database; refuse one that a newer program wrote."""
    found = stored_version(connection)
    if found > newest:
        raise StoreError(
            f"the database has schema version {found}, this program supports {newest}; use a newer "
            "ingero-echo"
        )
    return found


def stored_version(connection: Connection) -> int:
    """Return the version of a database, or 0 if it is empty; refuse those of other programs."""
    own = "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database()"
    tables = {name for (name,) in connection.execute(own).fetchall()}
    if not tables:
        return 0
    row = None
    if "meta" in tables:
        row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None or not isinstance(row[0], int):
        raise StoreError(
            "the database is not one of Echo's: it has tables, but no schema version; name another"
        )
    return row[0]
