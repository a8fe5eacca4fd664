"""Completion scripts: real shells read them and complete commands, options and values."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S

from ingero.cli.command_list import COMMANDS
from ingero.cli.completion import completion_script

CASES = {
    ("ingero", ""): "demo",
    ("ingero", "fleet-p"): "fleet-push",
    ("ingero", "blame", "--ver"): "--version",
    ("ingero", "fleet-push", "--fleet-protocol", "g"): "grpc",
    ("ingero-echo", "ser"): "serve",
    ("ingero-echo", "serve", "--db"): "--db-path",
}


def run(program: str, script: str) -> list[str]:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    done = subprocess.run(
        [found, "-c", script], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    file = tmp_path / "script"
    file.write_text(completion_script("bash"))
    for words, expected in CASES.items():
        typed = " ".join(f"'{word}'" for word in words)
        found = run(
            "bash",
            f"source {file}; COMP_WORDS=({typed}) COMP_CWORD={len(words) - 1}; _ingero; "
            'echo "${COMPREPLY[@]}"',
        )
        assert expected in found, words


def test_fish_completes_commands_and_options(tmp_path: Path) -> None:
    file = tmp_path / "script"
    file.write_text(completion_script("fish"))
    for typed, expected in (("ingero fleet-p", "fleet-push"), ("ingero-echo ser", "serve")):
        assert expected in run("fish", f"source {file}; complete -C '{typed}'")


def test_zsh_knows_the_words_of_every_command(tmp_path: Path) -> None:
    file = tmp_path / "script"
    file.write_text(completion_script("zsh").replace("#compdef", "compdef() { }\n#compdef"))
    assert "grpc" in run(
        "zsh", f"source {file}; _ingero_words 'ingero fleet-push' --fleet-protocol"
    )
    found = run("zsh", f"source {file}; _ingero_words ingero x")
    assert {name for name, *_ in COMMANDS} <= set(found)
