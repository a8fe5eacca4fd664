"""Every metric with the names of its labels, read from the source.

A metric is often empty until something happens, so a scrape shows only part of them. Here the
expression that makes the samples is followed to the pairs `("label", value)` that it contains:
through variables, parameters, loops and functions of the same module.
"""

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

_METRIC = re.compile(r"(?:ingero|gpu_nccl|nccl)_[a-z0-9_]+")
_LABELS = frozenset({"ingero_job", "ingero_pod", "ingero_provider"})  # names that look like metrics
_EXPOSITION = "ingero.contract.exposition"
_MAKERS = frozenset({"gauge", "counter", "by_label", "Family"})
_LABEL_PARAMETER = "label"
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp


def metric_lines(source: Path) -> Iterator[str]:
    """Yield `metric NAME: label, label` for every metric of every service."""
    for path in sorted(source.rglob("*.py")):
        text = path.read_text()
        if _EXPOSITION in text and path.parts[-2:] != ("contract", "exposition.py"):
            for name, labels in Metrics(ast.parse(text)).found().items():
                yield f"metric {name}: {', '.join(sorted(labels)) or 'no labels'}"


class Metrics:
    """The metrics that one module makes."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }

    def found(self) -> dict[str, set[str]]:
        """Return the labels of every metric; none where a metric is made without."""
        metrics: dict[str, set[str]] = {
            node.value: set()
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _METRIC.fullmatch(node.value)
            and node.value not in _LABELS
        }
        for call in self._calls:
            if isinstance(call.func, ast.Name) and call.func.id in _MAKERS:
                for name, label in self._names(call):
                    labels = _Labels(self, call).of(call.args[2:])
                    metrics[name] |= labels | ({label} if label else set())
        return metrics

    def _names(self, call: ast.Call) -> Iterator[tuple[str, str]]:
        """Yield the metrics of a call, each with the label that `by_label` names."""
        is_labelled = ast.unparse(call.func) == "by_label"
        name, label = call.args[0], call.args[2] if is_labelled else ast.Constant("")
        if isinstance(name, ast.Constant):
            yield _text(name), _text(label)
            return
        for row in self._rows(name):
            if found := row.get(ast.unparse(name), ""):
                yield found, row.get(ast.unparse(label), _text(label))

    def _rows(self, variable: ast.expr) -> Iterator[dict[str, str]]:
        """Yield the rows of the table that a loop takes `variable` from, by column."""
        loops = [
            loop for node in self.ancestors(variable) for loop in getattr(node, "generators", ())
        ]
        for loop in loops:
            columns = [ast.unparse(part) for part in getattr(loop.target, "elts", ())]
            for table in self.values_of(loop.iter):
                for row in getattr(table, "elts", ()):
                    parts = [_text(part) for part in getattr(row, "elts", ())]
                    yield dict(zip(columns, parts, strict=False))

    def values_of(self, expression: ast.expr) -> Iterator[ast.expr]:
        """Yield what is assigned or appended to a variable; anything else as it is."""
        if not isinstance(expression, ast.Name):
            yield expression
            return
        scopes = [node for node in self.ancestors(expression) if isinstance(node, _Function)]
        for scope in scopes:
            yield from self.arguments(scope, expression.id)
        inside = [node for scope in scopes[-1:] for node in ast.walk(scope)]
        for node in [*inside, *self._tree.body]:
            if (value := _assigned(node, expression.id)) is not None:
                yield value
                if ast.unparse(value) == "[]":
                    yield from _appended(inside)

    def arguments(self, function: _Function, parameter: str) -> Iterator[ast.expr]:
        """Yield what callers in this module pass for a parameter."""
        names = [a.arg for a in function.args.args if a.arg != "self"]
        for call in self._calls if parameter in names else ():
            if ast.unparse(call.func).removeprefix("self.") == function.name:
                yield from call.args[names.index(parameter) :][:1]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what contains a node, the nearest first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    @cached_property
    def functions(self) -> dict[str, _Function]:
        """Every function and method of the module."""
        return {node.name: node for node in ast.walk(self._tree) if isinstance(node, _Function)}

    @cached_property
    def _calls(self) -> list[ast.Call]:
        return [node for node in ast.walk(self._tree) if isinstance(node, ast.Call)]


class _Labels:
    """Follows the samples of one call to the labels in them."""

    def __init__(self, module: Metrics, call: ast.Call) -> None:
        self._module = module
        self._seen: set[tuple[int, bool]] = {(id(call), False)}
        self._found: set[str] = set()

    def of(self, expressions: list[ast.expr]) -> set[str]:
        for expression in expressions:
            self._follow(expression, is_table=False)
        return self._found

    def _follow(self, node: ast.AST, *, is_table: bool) -> None:
        """Collect labels below `node`; the rows of a table are not labels themselves."""
        if (id(node), is_table) in self._seen:
            return
        self._seen.add((id(node), is_table))
        if isinstance(node, ast.Name):
            for value in self._module.values_of(node):
                self._follow(value, is_table=is_table)
        elif isinstance(node, _Comprehension):
            self._follow_row(node.elt) if is_table else self._follow(node.elt, is_table=False)
            for loop in node.generators:
                self._follow(loop.iter, is_table=True)
        elif is_table and isinstance(node, ast.Tuple | ast.List):
            for row in node.elts:
                self._follow_row(row)
        else:
            self._take(node)
            for child in ast.iter_child_nodes(node):
                self._follow(child, is_table=is_table and isinstance(node, ast.Call))

    def _follow_row(self, row: ast.expr) -> None:
        for part in row.elts if isinstance(row, ast.Tuple) else [row]:
            self._follow(part, is_table=False)

    def _take(self, node: ast.AST) -> None:
        if isinstance(node, ast.Tuple) and len(node.elts) == 2:  # a label and its value
            self._take_text(node.elts[0])
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).removeprefix("self.")
            function = self._module.functions.get(name)
            for inner in ast.walk(function) if function else ():
                if isinstance(inner, ast.Return | ast.Yield) and inner.value:
                    self._follow(inner.value, is_table=False)
            parameters = [argument.arg for argument in function.args.args] if function else []
            if _LABEL_PARAMETER in parameters:
                self._take_text(node.args[parameters.index(_LABEL_PARAMETER)])

    def _take_text(self, node: ast.expr) -> None:
        if text := _text(node):
            self._found.add(text)


def _assigned(node: ast.AST, name: str) -> ast.expr | None:
    """Return what a statement gives to a variable."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    is_assignment = isinstance(node, ast.Assign | ast.AnnAssign)
    is_ours = is_assignment and any(target and ast.unparse(target) == name for target in targets)
    return getattr(node, "value", None) if is_ours else None


def _appended(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """Yield what is appended to any list, because a list may have a second name."""
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".append"):
            yield from node.args


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
