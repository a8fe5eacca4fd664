"""The shape of the tree: imports point down, core and contract stay pure, files and functions stay small."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ingero"
LAYERS = [  # from the top; names on one line never import each other
    {"__main__"},
    {"cli"},
    {"sim"},
    {"agent", "fleet", "echo", "sink"},
    {"config"},
    {"storage", "transport", "importers", "children", "web"},
    {"files"},  # atomic and private writes
    {"core"},
    {"contract"},
    {"errors", "compiled"},
]
AGENT_GROUPS = [  # inside agent, the same rule
    {"api", "push", "recording"},
    {"checks"},
    {"stacks"},
    {"ebpf", "nccl"},
    {"processes"},
    {"host"},
]
IMPURE = {
    "time",
    "random",
    "secrets",
    "os",
    "socket",
    "pathlib",
    "subprocess",
    "asyncio",
    "threading",
    "logging",
    "tempfile",
}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
STILL_LONG = {  # became long when lines became 100 columns wide; each is split by the owner of its room
    "core/blame/records.py",
    "core/blame/hang.py",
    "core/blame/heatmap.py",
    "importers/steps.py",
    "bench/fleet_push.py",
}
MODULES = sorted(SOURCE.rglob("*.py"))
BENCHES = sorted((ROOT / "bench").rglob("*.py"))


def depth_of(package: str, layers: list[set[str]]) -> int:
    return next(depth for depth, names in enumerate(layers) if package in names)


def package_of(module: Path, folder: Path = SOURCE) -> str:
    return module.relative_to(folder).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_module_keeps_its_layer_and_size(module: Path) -> None:
    text = module.read_text()
    tree = ast.parse(text)
    own = package_of(module)
    if own == "__init__":
        assert text == ""
        return
    names = imported(tree)
    for name in names:
        parts = name.split(".")
        if parts[0] == "ingero" and len(parts) > 1 and parts[1] != own:
            assert depth_of(parts[1], LAYERS) > depth_of(own, LAYERS), (
                f"{own} must not import {name}"
            )
    if own in ("core", "contract"):
        assert not {name.split(".")[0] for name in names} & IMPURE, (
            "core and contract do no I/O and ask no clock"
        )
    if module.name == "__init__.py":
        assert text == "", "packages are namespaces; import from the module that owns the name"
    else:
        assert ast.get_docstring(tree), "the docstring says which noun this file is about"
    if str(module.relative_to(SOURCE)) not in STILL_LONG:
        check_size(text, tree)


def test_groups_of_the_agent_import_downwards_only() -> None:
    """What runs above, what it is made of below; `docs/ARCHITECTURE.md` says what each group holds."""
    agent = SOURCE / "agent"
    for module in agent.glob("*/**/*.py"):
        own = package_of(module, agent)
        for name in imported(ast.parse(module.read_text())):
            group = name.removeprefix("ingero.agent.").partition(".")[0]
            if name.startswith("ingero.agent.") and group != own:
                assert depth_of(group, AGENT_GROUPS) > depth_of(own, AGENT_GROUPS), (
                    f"{module} must not import {name}"
                )


@pytest.mark.parametrize("module", BENCHES, ids=lambda path: str(path.relative_to(ROOT)))
def test_benchmarks_keep_the_same_sizes(module: Path) -> None:
    if str(module.relative_to(ROOT)) not in STILL_LONG:
        check_size(module.read_text(), ast.parse(module.read_text()))


def check_size(text: str, tree: ast.AST) -> None:
    assert text.count("\n") <= MAX_FILE_LINES
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


def test_exempted_lines_say_why() -> None:
    bare = re.compile(r"#\s*(type: ignore(\[[\w,-]+\])?|noqa(: [A-Z0-9, ]+)?)\s*$")
    offenders = [
        f"{module.relative_to(ROOT)}:{number}"
        for module in MODULES
        for number, line in enumerate(module.read_text().splitlines(), 1)
        if bare.search(line)
    ]
    assert offenders == []


def test_f158_decisions_need_the_standard_library_and_a_short_list() -> None:
    """`core` and `contract` run wherever Python and these four run."""
    allowed = {*sys.stdlib_module_names, "ingero", "numpy", "msgspec", "google", "opentelemetry"}
    foreign = {
        f"{module.relative_to(SOURCE)}: {name}"
        for layer in ("core", "contract")
        for module in (SOURCE / layer).rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        for name in _imported(node)
        if name.partition(".")[0] not in allowed
    }
    assert foreign == set()


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
