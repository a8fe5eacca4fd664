"""The parts of the public surface, each as lines of text: `section name: details`."""

import enum
import functools
import importlib
import pkgutil
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import duckdb
import msgspec
from tests.support.commands import commands_by_name, without_groups
from tests.surface.metrics import metric_lines
from tests.surface.routes import route_lines
from tests.surface.schemas import field_lines, schema_lines, type_text

import ingero.contract
from ingero.agent.api.tools.catalogue import AGENT_TOOLS
from ingero.cli.reference import settings_of
from ingero.config.values import choices_of
from ingero.contract import api_paths, names
from ingero.contract.events import OP_TEXT
from ingero.echo.openapi import described
from ingero.echo.tools.catalogue import TOOLS
from ingero.storage.events.migrate import create_statements
from ingero.storage.trace.schema import USER_VERSION, create_schema

SOURCE = Path(__file__).parents[2] / "src" / "ingero"
_IN_PROCESS = frozenset({"NodeReport", "Push"})  # what a decoder returns, never sent
_VARIABLE = re.compile(r'"(INGERO_[A-Z_]+)"')


def surface() -> set[str]:
    """Return every line of the surface as the code has it."""
    return {
        *wire_lines(),
        *contract_lines(),
        *command_lines(),
        *setting_lines(),
        *tool_lines(),
        *openapi_lines(),
        *route_lines(SOURCE),
        *metric_lines(SOURCE),
        *trace_database_lines(),
        *echo_database_lines(),
    }


def wire_lines() -> Iterator[str]:
    """Yield the names on the wire, the paths, the environment variables and the operations."""
    for section, module in (("name", names), ("path", api_paths)):
        for key, value in vars(module).items():
            if key.isupper() and isinstance(value, str):
                yield f"{section} {key}: {value}"
    for module in SOURCE.rglob("*.py"):
        for variable in _VARIABLE.findall(module.read_text()):
            yield f"environment {variable}"
    for (source, operation), (name, _) in OP_TEXT.items():
        yield f"operation {source}.{operation}: {name}"


def contract_lines() -> Iterator[str]:
    """Yield what crosses a process: fields of messages, and members of enumerations."""
    for module in _contract_modules():
        own = [kind for kind in vars(module).values() if _is_of(kind, module)]
        yield from field_lines("message", (k for k in own if issubclass(k, msgspec.Struct)))
        for kind in own:
            if issubclass(kind, enum.Enum):
                yield from (f"enum {kind.__name__}.{m.name}: {m.value}" for m in kind)


def _contract_modules() -> Iterator[ModuleType]:
    contract = ingero.contract
    for found in pkgutil.walk_packages(contract.__path__, f"{contract.__name__}."):
        if "_native" not in found.name:
            yield importlib.import_module(found.name)


def _is_of(kind: Any, module: ModuleType) -> bool:
    is_own = isinstance(kind, type) and kind.__module__ == module.__name__
    return is_own and kind.__name__ not in _IN_PROCESS


def command_lines() -> Iterator[str]:
    """Yield every command, its arguments and its options with what they take."""
    for name, command in without_groups(commands_by_name()):
        yield f"command {name}"
        for parameter in command.params:
            if not getattr(parameter, "hidden", False):
                yield f"command {name} {_parameter_text(parameter)}"


def _parameter_text(parameter: click.Parameter) -> str:
    spelled = "/".join((*parameter.opts, *parameter.secondary_opts))
    is_argument = isinstance(parameter, click.Argument)
    details = [str(parameter.name).upper() if is_argument else "", _values_text(parameter)]
    details += ["required"] if parameter.required else []
    details += ["several"] if parameter.multiple or parameter.nargs == -1 else []
    return f"{spelled}: {', '.join(filter(None, details))}"


def _values_text(parameter: click.Parameter) -> str:
    if isinstance(parameter.type, click.Choice):
        return "|".join(str(choice) for choice in parameter.type.choices)
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    return "flag" if is_flag else parameter.type.name


def setting_lines() -> Iterator[str]:
    """Yield every key of a configuration file, with its type, flag and variable."""
    for configuration in ("ingero", "fleet", "echo"):
        for entry in settings_of(configuration):
            setting = entry.setting
            choices = "|".join(choices_of(entry.type, setting))
            kind = choices or getattr(entry.type, "__name__", str(entry.type))
            given = [kind, *filter(None, (setting.flag, setting.env))]
            yield f"setting {configuration} {entry.key}: {', '.join(given)}"


def tool_lines() -> Iterator[str]:
    """Yield every tool of a node and of Echo, and the fields of its question and answer."""
    for section, tools in (("node-tool", AGENT_TOOLS), ("echo-tool", TOOLS)):
        for tool in tools:
            yield f"{section} {tool.name}: {tool.input.__name__} to {tool.output.__name__}"
        yield from field_lines(section, (k for tool in tools for k in (tool.input, tool.output)))


def openapi_lines() -> Iterator[str]:
    """Yield every operation that Echo describes, with its statuses and the form of its answer."""
    for path, operations in described()["paths"].items():
        for method, operation in operations.items():
            name, statuses = f"{method.upper()} {path}", ", ".join(operation["responses"])
            yield f"echo-http {name}: {statuses}"
            for schema in _answers(operation):
                yield from schema_lines(f"echo-http {name}", schema)
                data = schema.get("properties", {}).get("data", {})
                yield f"echo-http {name} data: {type_text(data)}"


def _answers(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for content in operation["responses"]["200"]["content"].values():
        yield content["schema"]


def trace_database_lines() -> Iterator[str]:
    """Yield every table and column of a trace database, as SQLite has them."""
    connection = sqlite3.connect(":memory:")
    create_schema(connection)
    yield f"trace-database user_version: {USER_VERSION}"
    columns = connection.execute(
        "SELECT t.name, c.name, c.type FROM sqlite_schema AS t, pragma_table_info(t.name) AS c "
        "WHERE t.type IN ('table', 'view') AND t.name NOT LIKE 'sqlite_%'"
    )
    yield from (f"trace-database {table}.{name}: {kind}" for table, name, kind in columns)
    connection.close()


@functools.cache
def _echo_columns() -> list[tuple[str, str, str]]:
    with duckdb.connect() as connection:
        for statement in create_statements():
            connection.execute(statement)
        return connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
        ).fetchall()


def echo_database_lines() -> Iterator[str]:
    """Yield every table, view and column of Echo's database, as DuckDB has them."""
    yield from (f"echo-database {table}.{name}: {kind}" for table, name, kind in _echo_columns())
