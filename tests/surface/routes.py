"""Routes, query parameters, prompts and resources of every service, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ingero.contract import api_paths, names


def route_lines(source: Path) -> Iterator[str]:
    """Yield `route fleet GET /api/v1/status` and the like for every service."""
    for module in sorted(source.rglob("*.py")):
        service = module.relative_to(source).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call):
                yield from _call_lines(service, node)


def _call_lines(service: str, call: ast.Call) -> Iterator[str]:
    function = ast.unparse(call.func)
    if function == "Route":
        path = _constant(call.args[0], api_paths)
        yield from (f"route {service} {method} {path}" for method in _methods(call))
    elif function.endswith("query_params.get"):
        yield f"query-parameter {service} {_constant(call.args[0], names)}"
    elif function in ("McpPrompt", "McpResource"):
        yield f"mcp {service} {function} {ast.unparse(call.args[0])}"


def _constant(argument: ast.expr, module: ModuleType) -> str:
    """Return a text that is written out, or the constant that is named."""
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    name = ast.unparse(argument)
    return str(getattr(module, name.rpartition(".")[2], name))


def _methods(route: ast.Call) -> list[str]:
    for keyword in route.keywords:
        if keyword.arg == "methods":
            return [str(method) for method in ast.literal_eval(keyword.value)]
    return ["GET"]
