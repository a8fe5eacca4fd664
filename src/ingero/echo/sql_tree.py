"""What a statement refers to, read from DuckDB's syntax tree with the scopes of its CTEs.

Everything in the tree is either known to this module or reported as unknown, so that a construct
that a later DuckDB adds is refused until somebody has looked at it.
"""

import string
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

MAX_DEPTH: Final = 200

# names are compared as DuckDB does, which folds ASCII only: str.lower() also turns the Kelvin sign
# into k, so that a CTE could take the name of a system view for us but not for DuckDB
_ASCII_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)

_EXPRESSIONS: Final = frozenset(
    "BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT DEFAULT FUNCTION LAMBDA "
    "OPERATOR POSITIONAL_REFERENCE STAR SUBQUERY WINDOW".split()
)
_SOURCES: Final = frozenset(
    "BASE_TABLE EMPTY EXPRESSION_LIST JOIN PIVOT SHOW_REF SUBQUERY TABLE_FUNCTION".split()
)
_QUERIES: Final = frozenset("SELECT_NODE SET_OPERATION_NODE RECURSIVE_CTE_NODE".split())
_MODIFIERS: Final = frozenset(
    "DISTINCT_MODIFIER LIMIT_MODIFIER LIMIT_PERCENT_MODIFIER ORDER_MODIFIER ORDER_DEFAULT "
    "ASCENDING DESCENDING".split()
)
_KNOWN: Final = _SOURCES | _QUERIES | _MODIFIERS
_TYPE: Final = "_TYPE_INFO"  # the end of the names of all types; a type reads nothing
# DuckDB takes these for functions where no column has the name
_VALUES: Final = frozenset(
    "current_catalog current_role current_schema current_user session_user".split()
)


class Kind(Enum):
    """The kind of a reference."""

    TABLE = auto()
    FUNCTION = auto()
    TABLE_FUNCTION = auto()
    LISTING = auto()  # SHOW TABLES and similar statements, which name none of our tables
    SAMPLE = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Reference:
    """A table, function, listing or unknown construct; `name` is as the user wrote it."""

    kind: Kind
    name: str
    qualifier: str = ""

    @property
    def folded(self) -> str:
        """The name as DuckDB compares it."""
        return fold(self.name)


def fold(name: str) -> str:
    """Return a name in lower case, as DuckDB compares names."""
    return name.translate(_ASCII_LOWER)


def references(
    node: Any, names: frozenset[str] = frozenset(), depth: int = 0
) -> Iterator[Reference]:
    """Yield every reference below `node`; `names` are the CTEs in scope.

    Raises RecursionError for a tree that is too deep.
    """
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(node, list):
        for child in node:
            yield from references(child, names, depth + 1)
    elif isinstance(node, dict):
        if node.get("sample") is not None:
            yield Reference(Kind.SAMPLE, "SAMPLE")
        yield from _own(node, names)
        yield from _below(node, names, depth)


def _own(node: dict[str, Any], names: frozenset[str]) -> Iterator[Reference]:
    """Yield what the node itself refers to."""
    kind = node.get("type")
    if not _is_known(node):
        yield Reference(Kind.UNKNOWN, str(node.get("class") or kind))
    elif kind == "BASE_TABLE":
        qualifier = _dotted(node["catalog_name"], node["schema_name"])
        if node.get("at_clause"):  # earlier rows of a lake, which views do not hide
            yield Reference(Kind.UNKNOWN, "AT")
        if qualifier or fold(node["table_name"]) not in names:
            yield Reference(Kind.TABLE, node["table_name"], qualifier)
    elif kind == "SHOW_REF" and node.get("query") is None:
        listed = f"SHOW {node.get('table_name', '')}".replace('"', "").strip()
        yield Reference(Kind.LISTING, listed)
    elif kind == "TABLE_FUNCTION":
        called = node["function"]
        if called.get("class") == "FUNCTION":
            yield _called(Kind.TABLE_FUNCTION, called)
        else:
            yield Reference(Kind.UNKNOWN, str(called.get("class")))
    elif "function_name" in node:
        yield _called(Kind.FUNCTION, node)
    elif kind == "COLUMN_REF" and fold(node["column_names"][-1]) in _VALUES:
        yield Reference(Kind.FUNCTION, node["column_names"][-1])


def _is_known(node: dict[str, Any]) -> bool:
    if "class" in node:
        return node["class"] in _EXPRESSIONS
    kind = node.get("type")
    return not isinstance(kind, str) or kind in _KNOWN or kind.endswith(_TYPE)


def _called(kind: Kind, function: dict[str, Any]) -> Reference:
    qualifier = _dotted(function.get("catalog"), function.get("schema"))
    return Reference(kind, function["function_name"], qualifier)


def _dotted(*parts: str | None) -> str:
    return ".".join(part for part in parts if part)


def _below(node: dict[str, Any], names: frozenset[str], depth: int) -> Iterator[Reference]:
    """Yield the references of the children, each with the CTEs that it can see."""
    if isinstance(cte_map := node.get("cte_map"), dict):
        for entry in cte_map["map"]:
            yield from references(entry["value"], names, depth + 1)
            names = names | {fold(entry["key"])}
    kind = node.get("type")
    for key, child in node.items():
        if key == "cte_map":
            continue
        own = {fold(node["cte_name"])} if kind == "RECURSIVE_CTE_NODE" and key == "right" else set()
        is_call = kind == "TABLE_FUNCTION" and key == "function"
        yield from references(_arguments(child) if is_call else child, names | own, depth + 1)


def _arguments(call: dict[str, Any]) -> list[Any]:
    """Return what is below a call in FROM; the call itself is already reported."""
    return [value for key, value in call.items() if key != "function_name"]
