"""`ingero` itself: help at the price of an empty Python."""

import statistics
import subprocess
import sys
import time

from ingero.cli.grammar import COMMANDS

ROUNDS = 9


def seconds(*arguments: str) -> float:
    began_s = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began_s


def test_help_takes_at_most_twice_as_long_as_an_empty_python() -> None:
    """Turn by turn in one run, so that a busy machine disturbs both alike."""
    pairs = [(seconds("-c", "pass"), seconds("-m", "ingero", "--help")) for _ in range(ROUNDS)]
    empty, help = (statistics.median(times) for times in zip(*pairs, strict=True))
    assert help <= 2 * empty


def test_f158_help_needs_the_standard_library_alone() -> None:
    script = "import sys; from ingero.__main__ import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert loaded - sys.stdlib_module_names <= {"ingero", "__main__", "_distutils_hack", "sitecustomize"} | {
        name for name in loaded if name.startswith("__editable__")
    }


def test_no_command_is_listed_twice() -> None:
    names = [name for name, *_ in COMMANDS]
    assert len(set(names)) == len(names)
