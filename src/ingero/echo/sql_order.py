"""Which statements of a caller with a cluster scope DuckDB may optimise freely.

DuckDB runs conditions in the order that it finds fastest, also before the one that hides other
clusters. A function that fails, or takes long, for some values then tells about rows that the
caller must not see. Statements of plain comparisons cannot do that, and keep their speed. All
others run behind a barrier, which makes DuckDB hide the rows first.
"""

from typing import Any, Final

from ingero.echo.sql_functions import AGGREGATES
from ingero.echo.sql_tree import fold
from ingero.storage.events.schema import READABLE

# They cannot fail for a value of a column, or DuckDB knows that they can and runs them last; and
# they take the same time for every value of a size. `test_sql_order.py` tries every one of them.
_FUNCTIONS: Final = frozenset(
    """
    + - * / // % ~~ !~~ ~~* !~~* abs ceil ceiling concat contains current_date date_part date_trunc
    datepart datetrunc day dayofweek ends_with epoch floor get_current_timestamp greatest hour
    isfinite isinf isnan lcase least len length lower minute month now prefix round second sign
    starts_with strlen suffix to_days to_hours to_microseconds to_milliseconds to_minutes to_months
    to_seconds to_weeks to_years today trunc ucase upper week year
    """.split()
)
_ALLOWED: Final = _FUNCTIONS | AGGREGATES
_OPERATORS: Final = frozenset(
    "COMPARE_IN COMPARE_NOT_IN OPERATOR_COALESCE OPERATOR_IS_NOT_NULL OPERATOR_IS_NULL "
    "OPERATOR_NOT".split()
)
_CLASSES: Final = frozenset("BETWEEN CASE COMPARISON CONJUNCTION WINDOW".split())
_KINDS: Final = frozenset(("", "JOIN", "ORDER_DEFAULT", "ASCENDING", "DESCENDING"))
_JOINS: Final = frozenset(("CROSS", "NATURAL", "REGULAR"))
_TYPES: Final = {column[0]: column[1] for table in READABLE for column in table.columns}
_JSON_COLUMNS: Final = frozenset(name for name, kind in _TYPES.items() if "JSON" in kind)
_COLUMNS: Final = frozenset(_TYPES) - _JSON_COLUMNS
_TEXT_OF_JSON: Final = frozenset(("->>", "json_extract_string"))


def is_plain(statement: dict[str, Any]) -> bool:
    """Return whether a checked statement reads tables directly, with plain conditions only.

    Its columns must be known by name, because DuckDB converts JSON in a comparison silently.
    """
    if statement.get("type") != "SELECT_NODE" or statement["cte_map"]["map"]:
        return False
    shown = statement["select_list"]
    aliases = {fold(item["alias"]) for item in shown if item.get("alias")}
    rest = [value for key, value in statement.items() if key not in ("select_list", "cte_map")]
    items = [item for item in shown if not _is_shown_column(item)]
    return _is_plain([items, rest], _COLUMNS | aliases)


def _is_shown_column(item: dict[str, Any]) -> bool:
    """Return whether a column of any type is only shown, under its own name."""
    return item.get("class") == "COLUMN_REF" and not item.get("alias")


def _is_plain(node: Any, names: frozenset[str]) -> bool:
    if isinstance(node, list):
        return all(_is_plain(child, names) for child in node)
    if not isinstance(node, dict):
        return True
    if "class" in node:
        return _is_plain_expression(node, names)
    kind = node.get("type", "")
    if not isinstance(kind, str):  # a value with its type, outside of any expression
        return False
    if kind == "BASE_TABLE":
        return not node.get("sample") and not node.get("column_name_alias")
    if kind == "JOIN" and node.get("ref_type") not in _JOINS:
        return False
    if kind not in _KINDS and not kind.endswith("_MODIFIER"):
        return False
    return _is_plain(list(node.values()), names)


def _is_plain_expression(node: dict[str, Any], names: frozenset[str]) -> bool:
    match node["class"]:
        case "CONSTANT":
            return True
        case "COLUMN_REF":
            return fold(node["column_names"][-1]) in names
        case "STAR":
            return not any(node.get(key) for key in ("columns", "expr", "replace_list"))
        case "CAST":  # of a literal, such as TIMESTAMP '2026-01-01' or INTERVAL 1 HOUR
            return _is_plain(node["child"], frozenset())
        case "FUNCTION" if fold(node["function_name"]) in _TEXT_OF_JSON:
            return _is_text_of_column(node["children"])
        case "FUNCTION" if fold(node["function_name"]) not in _ALLOWED:
            return False
        case "OPERATOR" if node["type"] not in _OPERATORS:
            return False
        case "FUNCTION" | "OPERATOR":
            pass
        case other if other not in _CLASSES:
            return False
    return _is_plain([value for key, value in node.items() if key != "cast_type"], names)


def _is_text_of_column(arguments: list[dict[str, Any]]) -> bool:
    """Return whether a fixed path of a JSON column is read, as in `attrs->>'$.op'`."""
    column, path = arguments[0], arguments[-1]
    return (
        path["class"] == "CONSTANT"
        and column["class"] == "COLUMN_REF"
        and fold(column["column_names"][-1]) in _JSON_COLUMNS
    )
