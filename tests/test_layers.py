"""The shape of the tree: imports point down, core and contract stay pure, sizes stay small.

Compiled sources (`.pyx`, `.pxi`, `.pxd`) obey the same rules as Python.
"""

import ast
import re
import sys
from collections import Counter
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
    {"files", "stopping"},  # atomic and private writes; how services stop
    {"core"},
    {"contract"},
    {"errors", "compiled"},
]
AGENT_GROUPS = [  # inside agent, the same rule
    {"service"},
    {"api", "push", "recording"},
    {"sight"},
    {"engines", "load"},
    {"checks", "causes"},
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
MAX_FOLDER_MODULES = 20
MAX_COLUMNS = 100
MODULES = sorted(SOURCE.rglob("*.py"))
COMPILED = sorted(SOURCE.rglob("*.p[xy][xid]"))
BENCHES = sorted((ROOT / "bench").rglob("*.py"))
CIMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import|c?import\s+([\w.]+))", re.MULTILINE)
C_FUNCTION = re.compile(
    r"^( *)(?:cdef|cpdef|def)\b(?! (?:class|struct|enum|extern))[^=\n]*?(\w+)\("
)


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
    check_layer(own, names)
    if own in ("core", "contract"):
        assert not {name.split(".")[0] for name in names} & IMPURE, (
            "core and contract do no I/O and ask no clock"
        )
    if module.name == "__init__.py":
        assert text == "", "packages are namespaces; import from the module that owns the name"
    else:
        assert ast.get_docstring(tree), "the docstring says which noun this file is about"
    check_size(text, tree)


def check_layer(own: str, names: set[str]) -> None:
    for name in names:
        parts = name.split(".")
        if parts[0] == "ingero" and len(parts) > 1 and parts[1] != own:
            assert depth_of(parts[1], LAYERS) > depth_of(own, LAYERS), (
                f"{own} must not import {name}"
            )


@pytest.mark.parametrize("source", COMPILED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_compiled_source_keeps_its_layer_and_size(source: Path) -> None:
    text = source.read_text()
    check_layer(package_of(source), {first or second for first, second in CIMPORT.findall(text)})
    assert text.count("\n") <= MAX_FILE_LINES
    for name, length in compiled_functions(text):
        assert length <= MAX_FUNCTION_LINES, f"{name} has {length} lines"
    assert [line for line in text.splitlines() if len(line) > MAX_COLUMNS] == []


def compiled_functions(text: str) -> list[tuple[str, int]]:
    """Return each function of a Cython source and its lines, found by indentation."""
    lines = text.splitlines()
    found = []
    for start, line in enumerate(lines):
        match = C_FUNCTION.match(line)
        if match is None:
            continue
        inside = re.compile(rf"(?:{match[1]}(?: |\))|\s*$)")  # a signature may end in a line `):`
        end = start + 1
        while end < len(lines) and inside.match(lines[end]):
            end += 1
        found.append((match[2], len("\n".join(lines[start:end]).rstrip().splitlines())))
    return found


def test_lengths_of_compiled_functions_are_found_by_indentation() -> None:
    text = """
cdef class Both:
    cdef int one(
        self, int a,
    ):
        return 1

    def two(self):

        return 2


cdef inline int three(int a) noexcept nogil:
    return a
after = 1
"""
    assert compiled_functions(text) == [("one", 4), ("two", 3), ("three", 2)]


def test_no_folder_holds_more_modules_than_a_reader_can_take_in() -> None:
    folders = Counter(module.parent for module in MODULES if module.name != "__init__.py")
    crowded = {str(f.relative_to(SOURCE)): n for f, n in folders.items() if n > MAX_FOLDER_MODULES}
    assert crowded == {}


def test_groups_of_the_agent_import_downwards_only() -> None:
    """`docs/ARCHITECTURE.md` describes the groups."""
    agent = SOURCE / "agent"
    modules = list(agent.glob("*/**/*.py"))
    assert {package_of(module, agent) for module in modules} >= {"api", "ebpf", "host"}
    for module in modules:
        own = package_of(module, agent)
        for name in imported(ast.parse(module.read_text())):
            group = name.removeprefix("ingero.agent.").partition(".")[0]
            if name.startswith("ingero.agent.") and group != own:
                assert depth_of(group, AGENT_GROUPS) > depth_of(own, AGENT_GROUPS), (
                    f"{module} must not import {name}"
                )


def test_the_bpf_loader_imports_nothing_of_the_tracer() -> None:
    """`agent/ebpf` uses its `loader`, which could load the programs of anybody."""
    modules = list((SOURCE / "agent" / "ebpf" / "loader").glob("*.py"))
    assert len(modules) > 5
    for module in modules:
        for name in imported(ast.parse(module.read_text())):
            is_above = name.startswith("ingero.agent.") and ".ebpf.loader." not in name
            assert not is_above, f"{module.name} must not import {name}"


@pytest.mark.parametrize("module", BENCHES, ids=lambda path: str(path.relative_to(ROOT)))
def test_benchmarks_keep_the_same_sizes(module: Path) -> None:
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


def test_tests_share_in_support_not_with_each_other() -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"^from tests[\w.]*\.test_\w+ import", path.read_text(), re.MULTILINE)
    ]
    assert offenders == []


def test_f158_decisions_need_the_standard_library_and_a_short_list() -> None:
    """`core` and `contract` need nothing but Python and these four packages."""
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
