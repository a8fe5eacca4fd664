"""The SQL guard: user SQL must be one SELECT, or EXPLAIN of one, over readable tables.

DuckDB itself parses the text and returns its syntax tree, so the guard and the engine always agree
on what a statement means. Tables, functions and constructs of the language are allowed by name, and
everything else is refused. The guard is the first of three barriers; the others are a read-only
transaction and a process with a memory limit.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb
import msgspec

from ingero.echo.sql_functions import IN_EXPRESSIONS, IN_FROM
from ingero.echo.sql_order import is_plain
from ingero.echo.sql_tree import Kind, Reference, references
from ingero.errors import IngeroError
from ingero.storage.events.store import first_line

MAX_SQL_BYTES = 64 * 1024
_EXPLAIN = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*EXPLAIN(?:\s+ANALYZE)?\b", re.IGNORECASE | re.DOTALL
)
_SELECT_ONLY = "only one SELECT or EXPLAIN SELECT is allowed"


class SqlRefused(IngeroError):
    """User SQL that must not run; the message says what to change."""


@dataclass(frozen=True, slots=True)
class CheckedSql:
    """A statement that passed; exactly this text may be executed."""

    text: str
    is_explain: bool
    is_plain: bool  # see `sql_order`
    tables: frozenset[str]
    is_sampled: bool


def check_sql(
    connection: duckdb.DuckDBPyConnection, sql: str, tables: Collection[str]
) -> CheckedSql:
    """Allow `sql` over `tables`, or raise SqlRefused with the reason."""
    try:
        size = len(sql.encode())
    except UnicodeEncodeError:
        raise SqlRefused(
            "the statement contains half of a surrogate pair, which is no character"
        ) from None
    if size > MAX_SQL_BYTES:
        raise SqlRefused(f"the statement is longer than {MAX_SQL_BYTES} bytes")
    if "\x00" in sql:
        raise SqlRefused("the statement contains a NUL byte")
    text, prefix = _only_statement(connection, sql)
    statement = _syntax_tree(text)["statements"][0]["node"]
    try:
        found = list(references(statement))
    except RecursionError:
        raise SqlRefused("the statement is nested too deeply") from None
    for reference in found:
        _check_reference(reference, tables)
    return CheckedSql(
        prefix + text,
        is_explain=bool(prefix),
        is_plain=is_plain(statement),
        tables=frozenset(known.folded for known in found if known.kind is Kind.TABLE),
        is_sampled=any(known.kind is Kind.SAMPLE for known in found),
    )


def _only_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[str, str]:
    """Return the one SELECT without its EXPLAIN prefix, and that prefix."""
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise SqlRefused(first_line(error)) from None
    if len(statements) != 1:
        reason = (
            "the statement is empty"
            if not statements
            else f"{len(statements)} statements; send one at a time"
        )
        raise SqlRefused(
            f"{reason}: {_SELECT_ONLY} (PIVOT needs an explicit IN list)" if statements else reason
        )
    kind, text = statements[0].type, statements[0].query
    if kind == duckdb.StatementType.EXPLAIN:
        match = _EXPLAIN.match(text)
        if not match:
            raise SqlRefused(
                "write EXPLAIN or EXPLAIN ANALYZE in front of one SELECT, without options"
            )
        analyze = "ANALYZE " if "ANALYZE" in match.group().upper().split() else ""
        return text[match.end() :], f"EXPLAIN {analyze}"
    if kind != duckdb.StatementType.SELECT:
        raise SqlRefused(f"{kind.name} is refused: {_SELECT_ONLY}")
    return text, ""


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    """Return an empty database that parses statements.

    How a syntax tree is written follows the storage format of a database; here it is the default.
    """
    parser = duckdb.connect(":memory:", config={"threads": "1"})
    parser.execute("SET enable_external_access = false; SET lock_configuration = true")
    return parser


def _syntax_tree(text: str) -> dict[str, Any]:
    try:
        row = (
            _parser().cursor().execute("SELECT json_serialize_sql($1::VARCHAR)", [text]).fetchone()
        )
        tree: dict[str, Any] = msgspec.json.decode(row[0] if row else "{}")
    except duckdb.ProgrammingError as error:
        raise SqlRefused(first_line(error)) from None
    except RecursionError:
        raise SqlRefused("the statement is nested too deeply") from None
    if tree.get("error") or len(tree.get("statements", ())) != 1:
        raise SqlRefused(f"{tree.get('error_message') or 'not one statement'}: {_SELECT_ONLY}")
    return tree


def _check_reference(reference: Reference, tables: Collection[str]) -> None:
    name, listed = reference.name, ", ".join(sorted(tables))
    match reference.kind:
        case Kind.TABLE if reference.qualifier:
            raise SqlRefused(f"write {name} without the prefix {reference.qualifier!r}")
        case Kind.TABLE if reference.folded not in tables:
            raise SqlRefused(f"no table {name!r}; the tables are: {listed}")
        case Kind.LISTING:
            raise SqlRefused(f"{name} is refused; DESCRIBE works on: {listed}")
        case Kind.UNKNOWN:
            raise SqlRefused(f"{name} is not supported here")
        case Kind.TABLE_FUNCTION if reference.qualifier or reference.folded not in IN_FROM:
            raise SqlRefused(
                f"function {name!r} is not allowed in FROM; allowed: {', '.join(sorted(IN_FROM))}"
            )
        # DuckDB itself writes main. in front of the function of an operator
        case Kind.FUNCTION if (
            reference.qualifier not in ("", "main") or reference.folded not in IN_EXPRESSIONS
        ):
            raise SqlRefused(f"function {name!r} is not allowed here")
