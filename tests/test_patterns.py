r"""Patterns of checked texts end where the text ends: `$` would let a line end pass.

A name with a line end is another name in logs, in files of lines and in headers. Patterns that
readers of a schema use in JavaScript end in `(?![\s\S])`, because it has no `\Z`.
"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ingero"


def patterns(tree: ast.Module) -> list[str]:
    """Return the texts of all patterns of msgspec types, also of those with a name."""
    named = {
        ast.unparse(node.target): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and node.value is not None
    }
    named |= {
        ast.unparse(node.targets[0]): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
    }
    given = [
        keyword.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "pattern"
    ]
    found = [named.get(ast.unparse(value), value) for value in given]
    return [value.value for value in found if isinstance(value, ast.Constant)]


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCE.rglob("*.py") if "pattern=" in path.read_text()],
    ids=lambda path: path.stem,
)
def test_no_checked_text_may_end_in_a_line_end(path: Path) -> None:
    for pattern in patterns(ast.parse(path.read_text())):
        assert pattern.endswith((r"\Z", r"(?![\s\S])")), pattern


def test_patterns_are_found() -> None:
    assert patterns(ast.parse('END = "^a$"\nMeta(pattern=END)\nMeta(pattern="b$")')) == [
        "^a$",
        "b$",
    ]
