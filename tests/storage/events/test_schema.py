"""Echo's tables: described in the catalogue, migrated step by step, safe for sums of counters."""

import duckdb
import pytest

from ingero.errors import StoreError
from ingero.storage.events.migrate import MIGRATIONS, SCHEMA_VERSION, migrate, stored_version
from ingero.storage.events.schema import EVENTS, READABLE, TABLES, VIEWS


@pytest.fixture
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    migrate(connection)
    return connection


def test_catalogue_describes_every_table_and_column(database: duckdb.DuckDBPyConnection) -> None:
    """F125: the catalogue explains the schema to a reader."""
    for table in (*TABLES, *VIEWS):
        rows = database.execute(
            "SELECT column_name, data_type, comment FROM duckdb_columns() WHERE table_name = ? "
            "ORDER BY column_index",
            [table.name],
        ).fetchall()
        assert rows == [(name, kind, comment) for name, kind, comment in table.columns], table.name
    described = dict(database.execute("SELECT table_name, comment FROM duckdb_tables()").fetchall())
    described |= dict(
        database.execute(
            "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal"
        ).fetchall()
    )
    assert described == {table.name: table.comment for table in (*TABLES, *VIEWS)}


def test_events_has_no_primary_key_and_the_columns_of_the_seed(
    database: duckdb.DuckDBPyConnection,
) -> None:
    assert database.execute("SELECT count(*) FROM duckdb_constraints()").fetchone() == (0,)
    names = {name for name, _, _ in EVENTS.columns}
    assert names >= {
        "cluster_id",
        "node_id",
        "rank",
        "nranks",
        "metric_name",
        "value_double",
        "causal_chain_id",
    }


def test_readable_tables_leave_out_what_belongs_to_the_operator() -> None:
    assert {table.name for table in READABLE} & {"audit_log", "meta", "applied_requests"} == set()


def test_a_counter_cannot_be_summed_by_mistake_and_views_give_its_growth(
    database: duckdb.DuckDBPyConnection,
) -> None:
    for second, total in enumerate((100.0, 160.0, 190.0, 20.0)):
        database.execute(
            "INSERT INTO events (seq, idx, ts, cluster_id, node_id, metric_name, kind, "
            "temporality, cumulative_value, attrs) VALUES (?, 0, make_timestamp_ns(?), 'c', 'n', "
            "'bytes_total', 'sum', 'cumulative', ?, '{}')",
            [second, 1_763_168_400_000_000_000 + second * 10**9, total],
        )
    assert database.execute("SELECT sum(value_double), sum(value_int) FROM events").fetchone() == (
        None,
        None,
    )
    assert database.execute("SELECT increase, seconds, rate FROM counter_rates").fetchall() == [
        (170.0, 3.0, 170.0 / 3)
    ]
    steps = database.execute("SELECT step, seconds FROM counter_steps ORDER BY ts").fetchall()
    assert steps == [(None, None), (60.0, 1.0), (30.0, 1.0), (20.0, 1.0)]


def test_migrations_run_once_in_order_and_a_newer_database_is_refused(
    database: duckdb.DuckDBPyConnection,
) -> None:
    assert stored_version(database) == SCHEMA_VERSION == max(MIGRATIONS)
    later = {**MIGRATIONS, SCHEMA_VERSION + 1: ["ALTER TABLE events ADD COLUMN later VARCHAR"]}
    assert migrate(database, later) == SCHEMA_VERSION
    assert migrate(database, later) == SCHEMA_VERSION + 1
    with pytest.raises(StoreError, match="use a newer ingero-echo"):
        migrate(database)


@pytest.mark.parametrize(
    ("version", "newer"),
    [
        (2, ("loss", "loss_error", "at_most", "cause", "link", "shared", "collective", "engine")),
        (5, ("collective", "engine")),
        (6, ("engine",)),
    ],
)
def test_a_database_of_an_earlier_version_gets_what_it_lacks(
    database: duckdb.DuckDBPyConnection, version: int, newer: tuple[str, ...]
) -> None:
    whole = database.execute("DESCRIBE verdicts").fetchall()
    for name in newer:
        database.execute(f"ALTER TABLE verdicts DROP COLUMN {name}")
    database.execute(f"UPDATE meta SET value = {version} WHERE key = 'schema_version'")
    assert migrate(database) == version
    assert database.execute("DESCRIBE verdicts").fetchall() == whole


def test_a_failed_step_leaves_the_old_version(database: duckdb.DuckDBPyConnection) -> None:
    broken = {
        **MIGRATIONS,
        SCHEMA_VERSION + 1: ["ALTER TABLE events ADD COLUMN later VARCHAR", "SELECT nonsense"],
    }
    with pytest.raises(duckdb.Error):
        migrate(database, broken)
    database.execute("ROLLBACK")
    assert stored_version(database) == SCHEMA_VERSION
    assert database.execute(
        "SELECT count(*) FROM duckdb_columns() WHERE column_name = 'later'"
    ).fetchone() == (0,)


def test_a_foreign_database_is_refused() -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE meta (key VARCHAR, value BIGINT)")
    with pytest.raises(StoreError, match="not one of Echo's"):
        migrate(connection)
