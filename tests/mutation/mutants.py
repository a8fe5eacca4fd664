"""Mutants: one small change of the source each, which some test should notice.

A mutant is named by its file, its function and its change, not by its line, so that a list of
mutants stays valid while code moves. Sentences, f-strings, docstrings, annotations and decorators
are left alone: what a message says is no behaviour.
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
}  # fmt: skip
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_LOG_CALLS = ("log.", "print", "warn")
_LARGE = 1000  # one more makes no difference to a number like a billion: it is doubled


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed version of a file; `number` tells equal changes of one function apart.

    `lines` are the first and the last line of what is changed. `is_inside` tells whether that is
    in the body of a function, which can be exchanged without importing the module again.
    """

    file: str
    function: str
    change: str
    number: int
    lines: tuple[int, int]
    is_inside: bool
    tree: Callable[[], ast.Module]

    @property
    def name(self) -> str:
        return f"{self.file} {self.function} [{self.number}] {self.change}"


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """Return every mutant of a file, in the order of the source."""
    tree = ast.parse((root / file).read_text(encoding="utf-8"))
    found: list[Mutant] = []
    seen: Counter[tuple[str, str]] = Counter()
    for place in _places(tree):
        for before, after in _changes(place.node):
            change = f"{_short(before)} -> {_short(after)}"
            seen[place.function, change] += 1
            changed = partial(place.tree_with, tree, after)
            number = seen[place.function, change]
            lines, is_inside = _lines(place.node), place.is_inside
            found.append(Mutant(file, place.function, change, number, lines, is_inside, changed))
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """A node of the tree, by the fields that lead to it."""

    node: ast.AST
    path: tuple[tuple[str, int | None], ...] = ()
    function: str = "module"
    is_inside: bool = False

    def tree_with(self, tree: ast.Module, new: ast.AST) -> ast.Module:
        """Return the tree with another node in this place."""
        changed = copy.deepcopy(tree)
        parent: ast.AST = changed
        for name, index in self.path[:-1]:
            value = getattr(parent, name)
            parent = value if index is None else value[index]
        name, index = self.path[-1]
        new = ast.copy_location(copy.copy(new), self.node)
        if index is None:
            setattr(parent, name, new)
        else:
            getattr(parent, name)[index] = new
        return ast.fix_missing_locations(changed)


def _places(tree: ast.Module) -> Iterator[_Place]:
    """Yield every place that may be changed."""
    waiting = [_Place(tree)]
    while waiting:
        place = waiting.pop()
        if place.path:
            yield place
        inner = [
            _Place(
                child,
                (*place.path, (name, index)),
                _function(place, child),
                place.is_inside or (name == "body" and isinstance(place.node, _FUNCTIONS)),
            )
            for name, index, child in _children(place.node)
        ]
        waiting += reversed(inner)


def _children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    skipped = {"decorator_list", "annotation", "returns", "type_params"}
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
        return  # what an error or another message says
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(_LOG_CALLS):
        return
    for name, value in ast.iter_fields(node):
        if name in skipped:
            continue
        values = value if isinstance(value, list) else [value]
        for index, child in enumerate(values):
            is_docstring = index == 0 and name == "body" and _is_text(child)
            if isinstance(child, ast.AST) and not is_docstring:
                yield name, index if isinstance(value, list) else None, child


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _function(place: _Place, child: ast.AST) -> str:
    """Return the name of the outermost function that a node is in, with its class."""
    if isinstance(child, ast.ClassDef) and place.function == "module":
        return f"{child.name}."
    if isinstance(child, _FUNCTIONS):
        is_outermost = place.function == "module" or place.function.endswith(".")
        prefix = "" if place.function == "module" else place.function
        return f"{prefix}{child.name}" if is_outermost else place.function
    return place.function


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield what a node may become."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node, _with(node, ops=[_COMPARISONS[type(node.ops[0])]()])
    elif isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            operators = [*node.ops]
            operators[index] = _COMPARISONS[type(operator)]()
            yield node, _with(node, ops=operators)
    elif isinstance(node, ast.BoolOp):
        yield node, _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OPERATORS:
        if not any(_is_string(part) for part in ast.walk(node)):
            yield node, _with(node, op=_OPERATORS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, node.operand
    elif isinstance(node, ast.Constant):
        yield from ((node, ast.Constant(value)) for value in _other_values(node.value))
    else:
        yield from _statement_changes(node)


def _statement_changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
            yield node.test, _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Return):
        if node.value is not None and not isinstance(node.value, ast.Constant):
            yield node, ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and _acts(node.value)):
        yield node, ast.Pass()
    elif isinstance(node, ast.Break | ast.Continue):
        yield node, ast.Continue() if isinstance(node, ast.Break) else ast.Break()


def _acts(node: ast.expr) -> bool:
    value = node.value if isinstance(node, ast.Await) else node
    is_call = isinstance(value, ast.Call)
    return is_call and not ast.unparse(value.func).startswith(_LOG_CALLS)


def _other_values(value: object) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1 if abs(value) < _LARGE else 2 * value
    elif isinstance(value, str) and value and " " not in value:
        yield f"XX{value}"


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _lines(node: ast.AST) -> tuple[int, int]:
    first = getattr(node, "lineno", 0)
    return first, getattr(node, "end_lineno", first)


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:60]} … {text[-28:]}"
