"""Functions of a caller with a scope see no value of others in the dictionary of a column. F094

DuckDB stores texts with a dictionary for many rows. Functions that it believes never to fail run on
the whole dictionary, so that one that does fail would tell about the rows of others.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from tests.support.stores import open_test_store, writing
from tests.support.two_tenants import OURS, THEIRS, TwoTenants

from ingero.echo.sql_functions import OPERATORS, SCALARS
from ingero.echo.store import sql

# each makes some function fail; ours never do
POISON = "canary|%ff|(|2026-99-99|1e300|{|[1,|\\|{}{|%d%d|-5|Mars/Olympus||🦆🦆".split("|")
OWN = "1"
CONSTANTS = ("'1'", "'a'", "1", "TIMESTAMP '2026-01-01'", "'[1]'", "[1]")
TYPES = "INT DATE TIME UUID BLOB BIT JSON INTERVAL DOUBLE BOOLEAN INT[] HUGEINT TIMESTAMPTZ".split()


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoTenants]:
    """Our rows and those of another, in one block of the file and with one dictionary."""
    path: Path = tmp_path_factory.mktemp("dictionaries") / "echo.db"
    with closing(open_test_store(path, 1 << 30, 1)) as store:
        with writing(store) as connection:
            connection.execute(
                "INSERT INTO events (seq, idx, ts, received_ts, cluster_id, node_id, metric_name, "
                "kind) SELECT range, 0, now(), now(), if(range % 2 = 0, ?, ?), 'n', "
                "if(range % 2 = 0, ?, (?)[1 + range % 14]), 'gauge' FROM range(3000)",
                [OURS, THEIRS, OWN, POISON],
            )
        store.checkpoint()
        yield TwoTenants(store, path.parent)


@pytest.fixture(scope="module")
def sound() -> list[str]:
    """Every call and cast of a text that does not fail for ours."""
    with closing(duckdb.connect(config={"threads": "1"})) as own:
        own.execute(f"CREATE TABLE events AS SELECT '{OWN}' AS metric_name")
        return [call for call in calls() if is_sound(own, call)]


def test_no_function_sees_values_of_others(tenants: TwoTenants, sound: list[str]) -> None:
    assert len(sound) > 600
    for first in range(0, len(sound), 100):
        counted = ", ".join(f"count({call})" for call in sound[first : first + 100])
        statement = f"SELECT {counted} FROM events"
        code, text = tenants.ask(statement, [OURS])
        assert code == "ok", (text, statement)


def test_without_copies_they_do(
    tenants: TwoTenants, sound: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data shows the problem."""
    monkeypatch.setattr(sql, "_COPIED", dict.fromkeys(sql.TABLES, "node_id AS node_id"))
    asked = [call for call in sound if call.startswith(("url_decode", "regexp_full_match"))]
    codes = [tenants.ask(f"SELECT count({call}) FROM events", [OURS])[0] for call in asked]
    assert "bad_sql" in codes


def test_samples_need_a_token_without_a_scope(tenants: TwoTenants) -> None:
    """Blocks of stored rows are sampled, so that a sample tells how many rows others have."""
    for statement in (
        "SELECT count(*) FROM events USING SAMPLE 30% (system, 7)",
        "SELECT count(*) FROM events TABLESAMPLE reservoir(40 ROWS) REPEATABLE (3)",
        "WITH e AS (SELECT seq FROM events) SELECT sum(seq) FROM e TABLESAMPLE 10%",
        "SELECT (SELECT count(*) FROM (SELECT seq FROM events) x TABLESAMPLE 10%)",
    ):
        code, text = tenants.ask(statement, [OURS])
        assert (code, "a sample depends on" in text) == ("sql_refused", True)
        assert tenants.ask(statement, None)[0] == "ok"


def calls() -> Iterator[str]:
    """Yield calls with the text in each place, and casts of it."""
    column = "metric_name"
    for name in sorted(SCALARS):
        yield f"{name}({column})"
        for value in CONSTANTS:
            yield from (f"{name}({column}, {value})", f"{name}({value}, {column})")
        for value in ("'a'", "1"):
            yield f"{name}({column}, {value}, {value})"
            yield f"{name}({value}, {column}, {value})"
            yield f"{name}({value}, {value}, {column})"
    for name in sorted(OPERATORS):
        for value in CONSTANTS:
            yield from (f"{column} {name} {value}", f"{value} {name} {column}")
    yield from (f"{column}::{kind}" for kind in TYPES)


def is_sound(own: duckdb.DuckDBPyConnection, call: str) -> bool:
    """Return whether a call binds, and does not fail for ours."""
    try:
        own.execute(f"SELECT count({call}) FROM events").fetchall()
    except duckdb.Error:
        return False
    return True
