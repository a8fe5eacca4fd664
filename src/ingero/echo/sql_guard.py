"""The SQL guard: user SQL must be one SELECT, or EXPLAIN of one, over readable tables.

DuckDB itself parses the text and returns its syntax tree, so the guard and the engine always agree
on what a statement means. The guard is the first of three barriers; the others are a read-only
transaction and a process with a memory limit.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import msgspec

from ingero.echo.sql_functions import ALLOWED
from ingero.errors import IngeroError

MAX_SQL_BYTES = 64 * 1024
MAX_DEPTH = 200
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


def check_sql(
    connection: duckdb.DuckDBPyConnection, sql: str, tables: Collection[str]
) -> CheckedSql:
    """Allow `sql` over `tables`, or raise SqlRefused with the reason."""
    if len(sql.encode(errors="replace")) > MAX_SQL_BYTES:
        raise SqlRefused(f"the statement is longer than {MAX_SQL_BYTES} bytes")
    if "\x00" in sql:
        raise SqlRefused("the statement contains a NUL byte")
    text, prefix = _only_statement(connection, sql)
    tree = _syntax_tree(connection, text)
    allowed = {name.lower() for name in tables}
    try:
        for reference in _references(tree["statements"][0]["node"], frozenset(), 0):
            _check_reference(reference, allowed)
    except RecursionError:
        raise SqlRefused("the statement is nested too deeply") from None
    return CheckedSql(prefix + text)


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    qualifier: str


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    qualifier: str


@dataclass(frozen=True, slots=True)
class _Listing:
    """SHOW TABLES and similar statements, which name none of our tables."""

    what: str


def _only_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[str, str]:
    """Return the one SELECT without its EXPLAIN prefix, and that prefix."""
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise SqlRefused(_first_line(error)) from None
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


def _syntax_tree(connection: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any]:
    try:
        row = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [text]).fetchone()
        tree: dict[str, Any] = msgspec.json.decode(row[0] if row else "{}")
    except duckdb.Error as error:
        raise SqlRefused(_first_line(error)) from None
    except RecursionError:
        raise SqlRefused("the statement is nested too deeply") from None
    if tree.get("error") or len(tree.get("statements", ())) != 1:
        raise SqlRefused(f"{tree.get('error_message') or 'not one statement'}: {_SELECT_ONLY}")
    return tree


def _check_reference(reference: _Table | _Function | _Listing, allowed: Collection[str]) -> None:
    if isinstance(reference, _Listing):
        raise SqlRefused(
            f"{reference.what} is refused; DESCRIBE works on: {', '.join(sorted(allowed))}"
        )
    if isinstance(reference, _Table):
        if reference.qualifier:
            raise SqlRefused(f"write {reference.name} without the prefix {reference.qualifier!r}")
        if reference.name.lower() not in allowed:
            raise SqlRefused(
                f"no table {reference.name!r}; the tables are: {', '.join(sorted(allowed))}"
            )
    elif reference.qualifier not in ("", "main") or reference.name.lower() not in ALLOWED:
        raise SqlRefused(f"function {reference.name!r} is not allowed here")


def _references(
    node: Any, names: frozenset[str], depth: int
) -> Iterator[_Table | _Function | _Listing]:
    """Yield every table, function and listing in the tree; `names` are the CTEs in scope."""
    if depth > MAX_DEPTH:
        raise SqlRefused("the statement is nested too deeply")
    if isinstance(node, list):
        for child in node:
            yield from _references(child, names, depth + 1)
        return
    if not isinstance(node, dict):
        return
    kind = node.get("type")
    if kind == "BASE_TABLE" and "table_name" in node:
        qualifier = ".".join(part for part in (node["catalog_name"], node["schema_name"]) if part)
        if qualifier or node["table_name"].lower() not in names:
            yield _Table(node["table_name"], qualifier)
    elif "function_name" in node:
        yield _Function(
            node["function_name"],
            ".".join(p for p in (node.get("catalog"), node.get("schema")) if p),
        )
    elif kind == "SHOW_REF" and node.get("query") is None:
        yield _Listing(f"SHOW {node.get('table_name', '')}".replace('"', "").strip())
    if isinstance(cte_map := node.get("cte_map"), dict):
        for entry in cte_map["map"]:
            yield from _references(entry["value"], names, depth + 1)
            names = names | {entry["key"].lower()}
    for key, child in node.items():
        if key == "cte_map":
            continue
        own = (
            {node["cte_name"].lower()} if kind == "RECURSIVE_CTE_NODE" and key == "right" else set()
        )
        yield from _references(child, names | own, depth + 1)


def _first_line(error: duckdb.Error) -> str:
    return str(error).split("\n", 1)[0]
