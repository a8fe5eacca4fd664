"""Child processes: where they are started, where their output goes, and that they end."""

import ast
import signal
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

from ingero.children.process import last_line, start_child, stop_children, wait_for_line

SOURCE = Path(__file__).parents[2] / "src" / "ingero"
STARTERS = {"Popen", "create_subprocess_exec", "posix_spawnp", "execvpe", "fork"}


def test_only_children_starts_processes() -> None:
    starting = {
        str(module.relative_to(SOURCE))
        for module in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        if starts(node)
    }
    assert any(name.startswith("children/") for name in starting)
    assert {name for name in starting if not name.startswith("children/")} == set()


def starts(node: ast.AST) -> bool:
    """Return whether this calls one of the functions that start a process, or imports one."""
    if isinstance(node, ast.ImportFrom):
        return not STARTERS.isdisjoint(alias.name for alias in node.names)
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_call and node.func.attr in STARTERS


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_errors_go_to_the_log_and_the_last_line_says_why(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    child = start_child(python("import sys; sys.exit('first\\nno such port')"), errors=log)
    assert wait_for_line(child) == ""
    stop_children(child)
    assert last_line(log, "empty") == "no such port"
    log.write_text("")
    assert last_line(log, "empty") == "empty"


def test_a_child_that_ignores_the_request_to_end_is_killed() -> None:
    script = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True);"
        f"signal.sigtimedwait([], {PATIENCE_S * 10})"
    )
    child = start_child(python(script))
    assert wait_for_line(child) == "up"
    stop_children(child, timeout_s=0.1)
    assert child.returncode == -signal.SIGKILL
