"""Trace files made to hurt the reader: views that never end under our names, text that is no text."""

import sqlite3
from pathlib import Path

import pytest
from tests.storage.test_merge import database

from ingero.cli.dispatch import run
from ingero.errors import ForeignFile
from ingero.storage.merge import merge
from ingero.storage.trace_db import connect_readonly

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id, x AS hash FROM c"


@pytest.mark.parametrize("table", ["stack_traces", "causal_chains", "collectives", "SESSIONS"])
def test_a_view_under_the_name_of_a_table_is_refused(tmp_path: Path, table: str) -> None:
    path = database(tmp_path / "a.db")
    with sqlite3.connect(path) as connection:
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"CREATE VIEW {table} AS {ENDLESS}")
    connection.close()
    with pytest.raises(ForeignFile, match="computed, not recorded"):
        connect_readonly(path)
    with pytest.raises(ForeignFile, match="computed, not recorded"):
        merge([path], tmp_path / "out.db")
    good = database(tmp_path / "b.db", node="n2")
    summary = merge([path, good], tmp_path / "out.db", skip_bad=True)
    assert [bool(file.skipped) for file in summary.files] == [True, False]


def test_triggers_of_a_source_never_run_and_are_not_carried_over(tmp_path: Path) -> None:
    path = database(tmp_path / "a.db")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END")
    connection.close()
    before = path.read_bytes()
    assert merge([path], tmp_path / "out.db").events == 3
    merged = sqlite3.connect(tmp_path / "out.db")
    assert merged.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'").fetchone() == (0,)
    merged.close()
    assert path.read_bytes() == before


def test_names_that_are_not_utf_8_are_shown_with_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = database(tmp_path / "a.db")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET comm = CAST(x'70fffe' AS TEXT), node = CAST(x'6eff' AS TEXT)")
    connection.close()
    assert run(["query", "-d", str(path), "--json", "SELECT DISTINCT node, comm FROM events"]) == 0
    assert '"comm": "p\ufffd\ufffd"' in capsys.readouterr().out
    for kind in ("perfetto", "perfetto-proto"):
        assert run(["export", "--format", kind, "-d", str(path), "-o", str(tmp_path / "out")]) == 0


def test_text_where_a_number_belongs_ends_an_export_with_a_sentence(tmp_path: Path) -> None:
    path = database(tmp_path / "a.db")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET duration = 'abc' WHERE rowid = 1")
    connection.close()
    assert run(["export", "--format", "perfetto", "-d", str(path), "-o", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()
