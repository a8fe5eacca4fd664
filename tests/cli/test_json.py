"""`--json` prints one document and nothing else, on every command that asks no service."""

import json
from pathlib import Path

import click
import pytest

from ingero.cli.commands.services.echo import echo
from ingero.cli.commands.services.fleet import fleet
from ingero.cli.dispatch import run, run_click
from ingero.sim.samples import write_samples

ANSWERS = [
    ["explain", "-d", "CLUSTER"],
    ["explain", "-d", "CLUSTER", "--per-process"],
    ["query", "-d", "CLUSTER"],
    ["query", "-d", "CLUSTER", "SELECT node, count(*) AS n FROM events GROUP BY node"],
    ["blame", "CLUSTER"],
    ["whatif", "CLUSTER"],
    ["merge", "FIRST", "SECOND", "-o", "OUT"],
    ["import", "CLUSTER", "--to", "OUT"],
    ["ask"],
    ["ask", "get_trace_stats", "-d", "CLUSTER"],
    ["check"],
    ["rates", "show"],
    ["run", "--print-env"],
    ["nodes", "list"],
    ["demo", "--no-gpu", "list"],
    ["demo", "--write-samples", "OUT"],
]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_samples(tmp_path_factory.mktemp("samples"), seed=1)


@pytest.mark.parametrize("arguments", ANSWERS, ids=" ".join)
def test_every_answer_is_one_document(
    arguments: list[str], samples: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "CLUSTER": samples[-1],
        "FIRST": samples[0],
        "SECOND": samples[1],
        "OUT": tmp_path / "out.db",
    }
    status = run([str(files.get(argument, argument)) for argument in arguments] + ["--json"])
    # `check` speaks of the machine it runs on; `explain` finds something slow
    assert status == 0 or arguments[0] in ("check", "explain", "blame")
    assert json.loads(capsys.readouterr().out) is not None


@pytest.mark.parametrize(
    "command, name, arguments",
    [
        (fleet, "ingero-fleet", ["--check"]),
        (fleet, "ingero-fleet", ["--print-config"]),
        (echo, "ingero-echo", ["ask"]),
    ],
)
def test_services_too(
    command: click.Command, name: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_click(command, [*arguments, "--json"], name) == 0
    assert json.loads(capsys.readouterr().out)
