"""`ingero` itself: help at the price of an empty Python."""

import importlib
import re
import resource
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from ingero.__main__ import main
from ingero.cli.command_list import COMMANDS

ROUNDS = 9


def cpu_s(*arguments: str) -> float:
    """What a Python process needs of a CPU, whatever else runs on it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_takes_at_most_twice_as_long_as_an_empty_python() -> None:
    """Turn by turn in one run, the best of each."""
    pairs = [(cpu_s("-c", "pass"), cpu_s("-m", "ingero", "--help")) for _ in range(ROUNDS)]
    empty, help = (min(times) for times in zip(*pairs, strict=True))
    assert help <= 2 * empty


def test_f158_help_needs_the_standard_library_alone() -> None:
    script = (
        "import sys; from ingero.__main__ import main; main(['--help']); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert loaded - sys.stdlib_module_names <= {
        "ingero",
        "__main__",
        "_distutils_hack",
        "sitecustomize",
    } | {name for name in loaded if name.startswith("__editable__")}


def options_of(command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from options_of(each)
    for parameter in command.params:
        if not (
            isinstance(parameter, click.Option) and parameter.hidden
        ):  # hidden ones only say why they are refused
            yield from parameter.opts


def test_no_option_takes_a_secret_must_48() -> None:
    """Every user of a machine can read command lines: secrets come by file or environment."""
    secret, by_file = (
        re.compile(r"token|secret|password|api.?key|routing.?key"),
        re.compile(r"file|path"),
    )
    modules = ("fleet", "echo", "echo_ask", "straggler_sink", "echo_stress")
    services = {f"ingero.cli.commands.services.{name}:*" for name in modules}
    targets = {target for *_, target in COMMANDS} | services
    commands = [
        each
        for module, _, name in (target.partition(":") for target in sorted(targets))
        for attribute, each in vars(importlib.import_module(module)).items()
        if isinstance(each, click.Command) and name in ("*", attribute)
    ]
    assert len(commands) > len(COMMANDS)
    found = [
        f"{command.name} {option}"
        for command in commands
        for option in options_of(command)
        if secret.search(option) and not by_file.search(option)
    ]
    assert found == []


def test_no_command_is_listed_twice() -> None:
    names = [name for name, *_ in COMMANDS]
    assert len(set(names)) == len(names)


def test_ctrl_c_while_a_command_is_loaded_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert main(["export"]) == 130
