"""Errors that used to point at the wrong thing say what helps."""

import json
import sqlite3
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest

from ingero.agent.checks import check_database, check_privileges, check_probes
from ingero.agent.host import privileges
from ingero.cli.dispatch import run
from ingero.compiled import install_command
from ingero.errors import StoreError
from ingero.storage.merge.merge import merge
from ingero.storage.trace.database import TraceDb
from ingero.transport.otlp.client import _outcome


def test_an_older_database_is_not_called_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.db"
    TraceDb(path, "n").close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE system_snapshots DROP COLUMN load_avg")
        connection.execute("INSERT INTO events (id, timestamp, pid, tid, source, op, duration) "
                           "VALUES ('n:1', 1, 2, 3, 1, 5, 7)")  # fmt: skip
    connection.close()
    run(["explain", "-d", str(path), "--replay"])
    said = capsys.readouterr().err
    assert "was recorded by another version: no such column: load_avg" in said
    assert f"`ingero merge {path} -o NEW.db`" in said
    assert "damaged" not in said
    merge([path], tmp_path / "new.db")
    assert run(["explain", "-d", str(tmp_path / "new.db"), "--replay"]) == 0


def test_a_merge_onto_a_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full before the first table exists."""
    path = tmp_path / "a.db"
    TraceDb(path, "n").close()

    def full(*_: object, **__: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("ingero.storage.merge.merge._new_database", full)
    with pytest.raises(StoreError, match=r"cannot write .*disk is full; is there room"):
        merge([path], tmp_path / "out.db")


def test_a_push_to_another_port_names_the_right_one() -> None:
    assert "Fleet takes pushes on port 4318" in _outcome(404, None)[1]
    assert _outcome(400, None)[1] == "HTTP 400"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'ingero[echo]'"),
        (
            {"url": "file:///home/me/my%20code", "dir_info": {"editable": True}},
            "pip install -e '/home/me/my code[echo]'",
        ),
        ({"url": "file:///srv/ingero", "dir_info": {}}, "pip install '/srv/ingero[echo]'"),
    ],
)
def test_an_extra_is_installed_from_where_ingero_came(
    monkeypatch: pytest.MonkeyPatch, origin: object, command: str
) -> None:
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata, "distribution", lambda _: Mock(read_text=lambda _: text))
    assert install_command("echo") == command


def test_check_fails_where_trace_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "notes.db"
    foreign.write_text("not a database at all, but long enough to be read as one" * 20)
    check = check_database(foreign)
    assert (check.passed, check.optional) == (False, False)
    status = tmp_path / "status"
    status.write_text("CapEff:\t0000000000000000\n")
    monkeypatch.setattr(
        "ingero.agent.checks.missing_capabilities", lambda: privileges.missing_capabilities(status)
    )
    assert [(one.passed, one.optional) for one in (check_privileges(),)] == [(False, False)]
    assert not check_probes().passed
    status.write_text(f"CapEff:\t{1 << 39 | 1 << 38:016x}\n")
    assert (check_privileges().passed, check_privileges().optional) == (False, True)


def test_blame_of_a_folder_of_databases_says_to_name_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TraceDb(tmp_path / "node.db", "n").close()
    assert run(["blame", str(tmp_path)]) == 3
    assert f"name a trace database itself: {tmp_path / 'node.db'}" in capsys.readouterr().err
