"""The table of exit statuses in docs/commands.md, command by command."""

import pytest

from ingero.cli.command_list import COMMANDS
from ingero.cli.dispatch import run
from ingero.cli.exit_status import CANNOT_TELL, FAILED, USAGE

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize("command", [name for name, *_ in COMMANDS])
def test_an_unknown_option_is_wrong_usage_everywhere(command: str) -> None:
    assert run([command, "--no-such-option"]) == USAGE


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["status", "--fleet", NOBODY], CANNOT_TELL),
        (["top", "--fleet", NOBODY], CANNOT_TELL),
        (["explain", "-d", "nothing.db"], CANNOT_TELL),
        (["blame", "nothing"], CANNOT_TELL),
        (["status", "--fleet", "ftp://host"], USAGE),
        (["explain", "--nodes", "a:b:c"], USAGE),
        (["fleet-push"], USAGE),
        (["fleet-push", "--fleet-endpoint", "ftp://host"], USAGE),
        (["fleet-push", "--stub", "--replay", "nothing"], USAGE),
        (["query", "--nodes", "a:b:c", "SELECT 1"], USAGE),
        (["silence", "list", "--fleet", NOBODY], FAILED),
        (["whatif", "nothing"], FAILED),
        (["merge", "nothing.db", "-o", "new.db"], FAILED),
        (["query", "-d", "nothing.db"], FAILED),
        (["replay", "nothing", "--fleet", NOBODY], FAILED),
        (["ready", "engine", "--port", "1"], FAILED),
    ],
)
def test_who_cannot_answer_says_so_by_its_status(
    words: list[str],
    status: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    monkeypatch.chdir(empty)
    monkeypatch.setenv("HOME", str(empty))
    assert run(words) == status
