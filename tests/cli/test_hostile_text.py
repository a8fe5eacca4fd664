"""Commands on recordings full of escape sequences: nothing of them reaches the output."""

import json
import sqlite3
import sys
from pathlib import Path

import pytest
from tests.support.recorded_jobs import Job, record
from tests.support.trace_databases import database

from ingero.cli.dispatch import run
from ingero.storage.trace.chains import CHAIN_COLUMNS

NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202edrow\u2028\x7f\rb\nforged [/red] [link=x]y\u200b"
FORMULA = "=cmd|' /C calc'!A0"


def _is_safe(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.fixture
def nasty_database(tmp_path: Path) -> Path:
    path = database(tmp_path / "nasty.db")
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE process_names SET name = ?", (NASTY,))
        connection.execute("UPDATE events SET node = ?", (NASTY,))
        connection.execute("UPDATE annotations SET labels = ?", (json.dumps({NASTY: NASTY}),))
        connection.execute("UPDATE collectives SET node = ?, op = ?", (NASTY, NASTY))
        values = ("n1:1", 10**18, *[NASTY] * 4, "[]", NASTY, 20, 10, 2.0, "[]", NASTY)
        marks = ", ".join("?" * len(CHAIN_COLUMNS))
        columns = ", ".join(CHAIN_COLUMNS)
        connection.execute(f"INSERT INTO causal_chains ({columns}) VALUES ({marks})", values)
    connection.close()
    return path


SQL = "SELECT name, labels, summary FROM process_names, annotations, causal_chains"
COMMANDS = [
    ["query", "-d", "{db}", SQL, "--format", "table"],
    ["query", "-d", "{db}", SQL, "--format", "json"],
    ["query", "-d", "{db}", SQL, "--format", "csv"],
    ["query", "-d", "{db}", "--annotations"],
    ["query", "-d", "{db}", f'SELECT 1 AS "{NASTY}"'],
    ["query", "-d", "{db}", f'SELECT "{NASTY}" FROM nowhere'],
    ["explain", "-d", "{db}"],
    ["explain", "-d", "{db}", "--json"],
    ["explain", "-d", "{db}", "--per-process"],
    ["merge", "{db}", "-o", "{out}"],
    ["blame", "{db}"],
    ["blame", "{db}", "--json"],
    ["whatif", "{db}"],
    ["blame", f"nowhere{NASTY}"],
    ["replay", f"nowhere{NASTY}"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command)[:30])
def test_escape_sequences_of_a_database_never_reach_the_output(
    command: list[str], nasty_database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"{db}": str(nasty_database), "{out}": str(tmp_path / "out.db")}
    run([places.get(word, word) for word in command])
    out, err = capsys.readouterr()
    assert out + err
    assert "Traceback" not in err
    assert _is_safe(out)
    assert _is_safe(err)


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("command", ["blame", "whatif"])
def test_names_of_a_recorded_job_are_printed_as_they_are_not_as_commands(
    command: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tp=1, dp=4, slow_host={2: 0.003}, steps=30, node_of=lambda rank: f"{NASTY}{rank}")
    head = "node,global_rank,comm_hash,seq,op,rank,nranks,enqueue_ns,gpu_start_ns,gpu_stop_ns"
    lines = [
        f'"{r.node}",{r.global_rank},{r.comm:x},{r.seq},{r.op},{r.rank},{r.nranks},{r.start_ns},'
        f"{r.end_ns - (r.gpu_duration_ns or 0)},{r.end_ns}"
        for r in record(job)
    ]
    path = tmp_path / "records.csv"
    path.write_text("\n".join([head, *lines]), newline="")
    assert run([command, str(path), *options]) == (command == "blame"), "somebody is slow"
    out, err = capsys.readouterr()
    assert ("drow" in out) == (command == "blame")
    assert _is_safe(out)
    assert _is_safe(err)


def test_a_formula_in_a_database_is_a_text_in_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = database(tmp_path / "a.db")
    assert (
        run(["query", "-d", str(path), f'SELECT "{FORMULA}" AS f, -1 AS n', "--format", "csv"]) == 0
    )
    assert capsys.readouterr().out == f"f,n\n'{FORMULA},-1\n"


@pytest.mark.parametrize("command", [["status"], ["rates", "show"], ["run", "--"]], ids=str)
def test_names_of_files_in_a_command_line_do_not_control_the_terminal(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell puts the names of files there, which somebody else may have made."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    own = "\x1b[H\x1b[2J\x1b[31mred\r\x1b[Kforged"  # what commands of ours send themselves
    assert run([*command, own])
    out, err = capsys.readouterr()
    assert "red" in err
    assert _is_safe(out + err)
