"""Every function that DuckDB knows, called through the guard: none reads what it should not.

F122.
"""

import os
from collections.abc import Iterator
from typing import Final

import pytest
from tests.support.stores import some
from tests.support.two_tenants import CANARY, OURS, TwoTenants, two_tenants

from ingero.echo.sql_functions import IN_EXPRESSIONS, IN_FROM

# what a text argument may name: tables of others and of the operator, SQL, a variable
NAMES: Final = (
    "echo.main.events",
    "audit_log",
    "SELECT * FROM echo.main.audit_log",
    "INGERO_SECRET",
)
CALLS: Final = ("{0}", "{0}, key_name")


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoTenants]:
    folder = tmp_path_factory.mktemp("functions")
    (folder / "secret.csv").write_text(f"{CANARY}-file\n")
    os.environ["INGERO_SECRET"] = f"{CANARY}-environment"
    with two_tenants(folder) as opened:
        yield opened
    del os.environ["INGERO_SECRET"]


def known(tenants: TwoTenants, *types: str) -> list[str]:
    cursor = tenants.store.cursor()
    rows = cursor.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE list_contains($1, "
        "function_type) ORDER BY 1",
        [list(types)],
    ).fetchall()
    cursor.close()
    return [name for (name,) in rows]


def quoted(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def test_every_type_of_function_is_walked(tenants: TwoTenants) -> None:
    cursor = tenants.store.cursor()
    types = cursor.execute("SELECT DISTINCT function_type FROM duckdb_functions()").fetchall()
    assert {name for (name,) in types} == {
        "scalar",
        "aggregate",
        "macro",
        "table",
        "table_macro",
        "pragma",
    }
    cursor.close()


def test_in_from_only_functions_that_compute(tenants: TwoTenants) -> None:
    """No table function, table macro or pragma outside the list passes, however it is called."""
    names = known(tenants, "table", "table_macro", "pragma")
    assert len(names) > 100
    admitted = set()
    for name in names:
        for form in ("SELECT * FROM {0}('audit_log')", "FROM {0}()", "CALL {0}('x')", "PRAGMA {0}"):
            for clusters in (None, [OURS]):
                code, _ = tenants.ask(form.format(f'"{name}"'), clusters)
                if code != "sql_refused":
                    admitted.add(name)
    assert admitted == IN_FROM


def test_in_expressions_only_functions_on_the_list(tenants: TwoTenants) -> None:
    names = known(tenants, "scalar", "aggregate", "macro", "table", "table_macro", "pragma")
    refused = set()
    for name in names:
        code, text = tenants.ask(f'SELECT "{name}"(1)', None)
        if code == "sql_refused" and "not allowed here" in text:
            refused.add(name)
    assert refused == {name for name in names if name.lower() not in IN_EXPRESSIONS}
    assert len(refused) > 100


@pytest.mark.parametrize("clusters", [None, [OURS]], ids=["unscoped", "scoped"])
def test_no_function_shows_what_a_text_argument_names(
    tenants: TwoTenants, clusters: list[str] | None
) -> None:
    """Each admitted function gets the names of tables, files, settings and variables."""
    secret = str(tenants.folder / "secret.csv")
    leaks = []
    with tenants.session(clusters) as ask:
        admitted = IN_FROM | {name for name in IN_EXPRESSIONS if name[0].isalpha()}
        for function in some(sorted(admitted)):
            shape = "SELECT * FROM {}({})" if function in IN_FROM else "SELECT {}({})"
            for call in CALLS:
                for name in (*NAMES, secret):
                    sql = shape.format(function, call.format(quoted(name)))
                    _, text = ask(sql)
                    if CANARY in text:
                        leaks.append((sql, text[:100]))
    assert leaks == []


def test_macros_on_the_list_read_nothing(tenants: TwoTenants) -> None:
    """A macro is expanded after the guard has looked, so its body must read nothing."""
    cursor = tenants.store.cursor()
    bodies = cursor.execute(
        "SELECT function_name, macro_definition FROM duckdb_functions() WHERE function_type = "
        "'macro' AND database_name = 'system'"
    ).fetchall()
    found = [(name, body) for name, body in bodies if name in IN_EXPRESSIONS]
    assert len(found) > 40
    assert [name for name, body in found if "from " in body.lower() or "setting" in body] == []
    foreign = cursor.execute("SELECT function_name FROM duckdb_functions() WHERE NOT internal")
    assert foreign.fetchall() == [], "Echo's database defines no macros"
    cursor.close()


def test_every_name_on_the_lists_exists(tenants: TwoTenants) -> None:
    everything = {name.lower() for name in known(tenants, "scalar", "aggregate", "macro", "table")}
    assert everything >= IN_EXPRESSIONS | IN_FROM
