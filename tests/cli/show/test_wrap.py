"""No line is broken inside a command: in advice, and in the help of every command."""

import importlib
import re
from collections.abc import Iterator

import click
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from

from ingero.agent.checks import Check
from ingero.cli.command_list import COMMANDS, SCRIPTS
from ingero.cli.dispatch import run
from ingero.cli.show.chains import print_chain
from ingero.cli.show.wrap import HelpFormatter, wrap
from ingero.contract.chain import Chain, Severity
from ingero.core.chains import recommendations
from ingero.core.chains.neighbours import Host
from ingero.storage.trace.chains import RecordedChain

HOST = Host(8, {812: "rsync"})
ADVICE = [
    recommendations.pin(1880, HOST),
    recommendations.lower_priority([812], HOST, 1880),
    recommendations.lower_disk_priority(812, HOST, 1880),
    recommendations.BUSY_CPU,
]
COMMAND = "taskset -acp 1-7 1880"


@given(integers(20, 200), lists(sampled_from(["why", "slow", "`ingero trace --pid 7`", "x"])))
def test_commands_in_backticks_stay_whole(columns: int, words: list[str]) -> None:
    text = " ".join(words)
    lines = wrap(text, columns)
    assert " ".join(lines) == text
    assert all(line.count("`") % 2 == 0 for line in lines)


@pytest.mark.parametrize("columns", [30, 60, 80, 120])
def test_commands_in_advice_stay_whole(columns: int) -> None:
    for advice in ADVICE:
        lines = wrap(advice, columns, "  ")
        assert " ".join(line.strip() for line in lines) == advice
    lines = wrap(ADVICE[0], columns)
    assert any(COMMAND in line for line in lines)
    assert any("taskset -acp 0-7 1880" in line for line in lines)


def test_fixes_on_a_terminal_have_lines_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = Chain(
        name="tail-high-op", severity=Severity.HIGH, summary="slow", root_cause="why",
        explanation="", recommendations=tuple(ADVICE), timeline=(),
    )  # fmt: skip
    recorded = RecordedChain(id="n:1", detected_at_ns=0, node="n", chain=chain)
    print_chain(recorded)
    assert f"  Fix: {'; '.join(ADVICE)}\n" in capsys.readouterr().out, "one line for programs"
    monkeypatch.setattr("ingero.cli.show.chains.screen_columns", lambda: 60)
    print_chain(recorded)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if COMMAND in line]
    begins = [line for line in lines if line.startswith(("  Fix: ", "       ")) and line[7] != " "]
    assert len(begins) == len(ADVICE)


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, f"{path} {name}")


@pytest.mark.parametrize("where", [entry[-1] for entry in (*COMMANDS, *SCRIPTS)])
def test_help_texts_break_no_command(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Context, "formatter_class", HelpFormatter)
    module, _, name = where.partition(":")
    for path, command in commands(getattr(importlib.import_module(module), name), "ingero"):
        text = command.get_help(click.Context(command, info_name=path, terminal_width=80))
        assert "\u00a0" not in text
        assert [line for line in text.splitlines() if line.count("`") % 2] == [], path


@pytest.mark.parametrize("arguments", [["check"], ["ask"], ["rates", "show"]], ids=str)
def test_a_narrow_terminal_gets_no_line_that_it_would_break(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fix = "raise the limit with `ulimit -n`, or ask whoever set it on this machine"
    odd = Check("odd", False, value="not there", detail="what is lost " * 8, recommendation=fix)
    monkeypatch.setattr("ingero.agent.checks.run_checks", lambda: [odd])
    run(arguments)
    whole = capsys.readouterr().out
    assert max(map(len, whole.splitlines())) > 60
    monkeypatch.setattr("ingero.cli.show.wrap.screen_columns", lambda: 60)
    monkeypatch.setattr("ingero.cli.show.table.screen_columns", lambda: 60)
    run(arguments)
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 60
    assert re.findall(r"\w+", narrow) == re.findall(r"\w+", whole)
