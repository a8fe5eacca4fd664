"""What is installed is used, and what is used is installed: nothing more, nothing less."""

import ast
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ingero"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# uvicorn parses HTTP with httptools, and DuckDB makes times with pytz, where they find them;
# DuckDB itself loads its extensions
EXTENSIONS = {f"duckdb-extension-{name}" for name in ("ducklake", "httpfs", "postgres-scanner")}
UNIMPORTED = {"httptools", "pytz", *EXTENSIONS}
# what comes with a dependency (rich with textual) and is used as part of it, or shares a folder
PARTS = {"ingero", "yarl", "rich", "googleapis-common-protos", "opentelemetry-api"}


def requirement_names(requirements: list[str]) -> set[str]:
    names = {line.split(">")[0].split("=")[0].split("[")[0].strip() for line in requirements}
    return names - {"ingero"}


def imported_packages() -> set[str]:
    """Return the distributions that any module of ours imports, whenever it does."""
    modules = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.split(".")[0])
    known = packages_distributions()
    return {name.lower() for module in modules for name in known.get(module, [])}


def test_every_dependency_is_imported_and_every_import_is_a_dependency() -> None:
    base = requirement_names(PROJECT["dependencies"])
    extras = {
        name
        for extra, lines in PROJECT["optional-dependencies"].items()
        if extra != "dev"
        for name in requirement_names(lines)
    }
    imported = imported_packages()
    assert base - imported - UNIMPORTED == set()
    assert extras - imported - UNIMPORTED == {"textual"} - imported
    assert imported - base - extras - PARTS == set()


def test_rich_and_uvloop_are_no_part_of_the_base() -> None:
    """Together they are 29 of the 176 MB that a node had to take before."""
    base = requirement_names(PROJECT["dependencies"])
    assert (
        base & {"rich", "uvloop", "duckdb", "pyarrow", "mcp", "textual", "apprise", "redis"}
        == set()
    )
