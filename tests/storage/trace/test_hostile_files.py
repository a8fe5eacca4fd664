"""Trace files made to harm the reader: endless views under our names, invalid text."""

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.trace_databases import database

from ingero.cli.dispatch import run
from ingero.errors import ForeignFile
from ingero.storage.merge.merge import merge
from ingero.storage.trace.chains import CHAIN_COLUMNS
from ingero.storage.trace.reading import connect_readonly

ENDLESS = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id, x AS hash "
    "FROM c"
)
NESTED = "[" * 100_000
CHAIN = (
    f"INSERT INTO causal_chains ({', '.join(CHAIN_COLUMNS)}) VALUES ('n1:slow', "
    "1000000000000000001, 'HIGH', 'slow', 'busy host', 'why', '[]', 'cudaMalloc', 20, 10, 2.0, "
    "'[]', 'n1')"
)


@pytest.mark.parametrize("table", ["stack_traces", "causal_chains", "collectives", "SESSIONS"])
def test_a_view_under_the_name_of_a_table_is_refused(tmp_path: Path, table: str) -> None:
    path = database(tmp_path / "a.db")
    with sqlite3.connect(path) as connection:
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"CREATE VIEW {table} AS {ENDLESS}")
    connection.close()
    with pytest.raises(ForeignFile, match="is a view or a virtual table"):
        connect_readonly(path)
    with pytest.raises(ForeignFile, match="is a view or a virtual table"):
        merge([path], tmp_path / "out.db")
    good = database(tmp_path / "b.db", node="n2")
    summary = merge([path, good], tmp_path / "out.db", skip_bad=True)
    assert [bool(file.skipped) for file in summary.files] == [True, False]


def test_a_copy_that_was_cut_short_says_how_to_copy(tmp_path: Path) -> None:
    path, half = database(tmp_path / "a.db"), tmp_path / "half.db"
    half.write_bytes(path.read_bytes()[:20_000])
    (tmp_path / "none.db").touch()
    for cut in (half, tmp_path / "none.db"):
        with pytest.raises(ForeignFile, match="copy it again, with `ingero merge FILE -o COPY`"):
            connect_readonly(cut)
    (tmp_path / "text.db").write_text("no database\n" * 1000)
    with pytest.raises(ForeignFile, match="is not a SQLite database; name a file that"):
        connect_readonly(tmp_path / "text.db")


def test_triggers_of_a_source_never_run_and_are_not_carried_over(tmp_path: Path) -> None:
    path = database(tmp_path / "a.db")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END")
    connection.close()
    before = path.read_bytes()
    assert merge([path], tmp_path / "out.db").events == 3
    merged = sqlite3.connect(tmp_path / "out.db")
    assert merged.execute(
        "SELECT count(*) FROM sqlite_master WHERE type = 'trigger'"
    ).fetchone() == (0,)
    merged.close()
    assert path.read_bytes() == before


def test_names_that_are_not_utf_8_are_shown_with_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = database(tmp_path / "a.db")
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE events SET comm = CAST(x'70fffe' AS TEXT), node = CAST(x'6eff' AS TEXT)"
        )
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
    assert (
        run(["export", "--format", "perfetto", "-d", str(path), "-o", str(tmp_path / "out")]) == 1
    )
    assert not (tmp_path / "out").exists()


def changed(path: Path, *statements: str) -> Path:
    with sqlite3.connect(database(path)) as connection:
        connection.execute(CHAIN)
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def commands(path: Path, out: Path) -> list[list[str]]:
    """Return every command that reads a trace database."""
    return [
        ["query", "-d", str(path), "SELECT count(*) FROM events"],
        ["query", "-d", str(path), "--limit", "5"],
        ["query", "-d", str(path), "--json"],
        *(
            ["explain", "-d", str(path), *how]
            for how in ([], ["--replay"], ["--per-process"], ["--annotations"])
        ),
        *(
            ["export", "--format", kind, "-d", str(path), "-o", str(out)]
            for kind in ("perfetto", "perfetto-proto")
        ),
        ["merge", str(path), "-o", str(out), "--force-node", "n"],
    ]


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE events SET duration = 'abc', timestamp = 1e300 WHERE rowid = 1"],
        [
            "UPDATE events SET node = x'ff00' WHERE rowid = 1",
            "UPDATE causal_chains SET detected_at = 'x'",
        ],
        [
            "UPDATE events SET timestamp = 9223372036854775807, duration = 9223372036854775807, "
            "source = 999, op = -3"
        ],
        [
            "UPDATE events SET pid = -1, tid = 5000000000, timestamp = -1",
            "UPDATE causal_chains SET tail_ratio = 9e999",
        ],
        [
            "DROP TABLE process_names",
            "DROP TABLE event_aggregates",
            "DROP TABLE sessions",
            "DROP TABLE stack_traces",
        ],
        ["DROP TABLE system_snapshots", "DROP TABLE causal_chains", "DROP TABLE annotations"],
        [
            "DROP TABLE events",
            "CREATE TABLE events (id, timestamp)",
            "INSERT INTO events VALUES (1, 2)",
        ],
        ["ALTER TABLE events DROP COLUMN gpu_id", "ALTER TABLE events DROP COLUMN ret_code"],
        [f"UPDATE causal_chains SET timeline = '{NESTED}', recommendations = '{NESTED}'"],
        [
            f"INSERT INTO annotations (timestamp, labels, pid) VALUES (1, '{NESTED}', 1), (2, "
            "'[]', 1)"
        ],
    ],
)
def test_odd_contents_end_in_an_answer_or_in_a_sentence(
    tmp_path: Path, statements: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(tmp_path / "a.db", *statements)
    before = path.read_bytes()
    for command in commands(path, tmp_path / "out"):
        status, said = run(command), capsys.readouterr()
        is_slow = status == 1 and command[0] == "explain" and "Root cause" in said.out
        assert status == 0 or is_slow or "ingero" in said.err, command
    assert path.read_bytes() == before


@pytest.mark.parametrize("page", range(1, 12))
def test_a_page_lost_to_the_disk_is_a_sentence(
    tmp_path: Path, page: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = database(tmp_path / "a.db")
    content = bytearray(path.read_bytes())
    content[page * 4096 : (page + 1) * 4096] = bytes(4096)
    path.write_bytes(content)
    for command in commands(path, tmp_path / "out"):
        status, said = run(command), capsys.readouterr()
        assert status == 0 or str(path) in said.err, (command, said)


SCHEMAS = {
    "a generated column of a gigabyte": [
        "ALTER TABLE events ADD COLUMN huge AS (zeroblob(900000000))",
        "ALTER TABLE causal_chains ADD COLUMN huge AS (hex(zeroblob(400000000)))",
    ],
    "generated columns in place of ours": [
        "ALTER TABLE events DROP COLUMN gpu_id",
        "ALTER TABLE events ADD COLUMN gpu_id AS (length(zeroblob(900000000)))",
    ],
    "triggers named like our tables": [
        f"CREATE TRIGGER {name}_t AFTER {verb} ON events BEGIN DELETE FROM sessions; END"
        for name, verb in (("events", "INSERT"), ("sessions", "UPDATE"), ("merge", "DELETE"))
    ],
    "an index over an expression that is slow": [
        "CREATE INDEX slow ON events (length(printf('%.9000000c', 'x')))"
    ],
    "a virtual table beside ours": ["CREATE VIRTUAL TABLE extra USING fts5(node)"],
    "a virtual table in place of ours": [
        "DROP TABLE process_names",
        "CREATE VIRTUAL TABLE process_names USING fts5(pid, name, seen_at)",
    ],
    "temporary names and odd quotes": [
        'CREATE TABLE "events; DROP TABLE events" (a)',
        'CREATE TABLE "sqlite\x1b[31m" (a)',
        "CREATE TABLE [events'--] (a)",
    ],
    "two thousand tables": [f"CREATE TABLE t{n} (a)" for n in range(2000)],
    "views upon views": [
        "CREATE VIEW v0 AS SELECT 1 AS a",
        *(f"CREATE VIEW v{n} AS SELECT a FROM v{n - 1} UNION SELECT 2" for n in range(1, 60)),
    ],
}


@pytest.mark.parametrize("statements", SCHEMAS.values(), ids=SCHEMAS)
def test_hostile_schemas_end_in_an_answer_or_in_a_sentence(
    tmp_path: Path, statements: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(tmp_path / "a.db", *statements)
    before, peak = path.read_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for command in commands(path, tmp_path / "out"):
        status, said = run(command), capsys.readouterr()
        is_slow = status == 1 and command[0] == "explain" and "Root cause" in said.out
        assert status == 0 or is_slow or "ingero" in said.err, command
        assert "\x1b" not in said.out + said.err
    assert path.read_bytes() == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 200 << 10  # KiB


HEADERS = {
    "four billion pages": (28, b"\xff\xff\xff\xfe"),
    "pages of 64 KiB": (16, b"\x00\x01"),
    "pages of one byte": (16, b"\x00\x00"),
    "reserved bytes": (20, b"\xff"),
    "a free list without end": (32, b"\x00\x00\x00\x02\xff\xff\xff\xff"),
    "a schema of the future": (44, b"\x00\x00\x00\xff"),
    "another encoding of text": (56, b"\x00\x00\x00\x02"),
    "a write version of the future": (18, b"\x09\x09"),
    "a write-ahead log": (18, b"\x02\x02"),
}


@pytest.mark.parametrize("offset, value", HEADERS.values(), ids=HEADERS)
def test_hostile_headers_end_in_an_answer_or_in_a_sentence(
    tmp_path: Path, offset: int, value: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = database(tmp_path / "a.db")
    content = bytearray(path.read_bytes())
    content[offset : offset + len(value)] = value
    path.write_bytes(content)
    for command in commands(path, tmp_path / "out"):
        status, said = run(command), capsys.readouterr()
        assert status == 0 or "ingero" in said.err, command
        assert "Traceback" not in said.err


ON_READ_ONLY_MEDIA = """
set -e
mount -t tmpfs none media
cp trace.db trace.db-wal media
mount -o remount,ro media
"$PYTHON" -m ingero query -d media/trace.db --json "SELECT count(*) AS n FROM events"
"$PYTHON" -m ingero merge media/trace.db -o merged.db
"$PYTHON" -m ingero export --format perfetto -d media/trace.db -o out.json
ls media
"""


def test_a_database_with_a_log_is_read_from_read_only_media(tmp_path: Path) -> None:
    """Rows that only the write-ahead log holds are found; nothing is written beside the file."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip(
            "needs root and unshare: the read-only file system lives in a namespace of its own"
        )
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces are not allowed on this machine")
    writer = sqlite3.connect(database(tmp_path / "live.db"))
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute(
        "INSERT INTO events (id, timestamp, pid, tid, source, op, duration) VALUES ('n1:99', 1, 1, "
        "1, 1, 1, 1)"
    )
    writer.commit()
    for name in ("trace.db", "trace.db-wal"):
        shutil.copyfile(tmp_path / name.replace("trace", "live"), tmp_path / name)
    writer.close()
    (tmp_path / "media").mkdir()
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", ON_READ_ONLY_MEDIA], cwd=tmp_path, check=False,
        capture_output=True, text=True,
        env=os.environ | {"PYTHON": sys.executable, "HOME": str(tmp_path)}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"n": 4' in done.stdout
    assert done.stdout.split()[-2:] == ["trace.db", "trace.db-wal"]
    merged = sqlite3.connect(tmp_path / "merged.db")
    assert merged.execute("SELECT count(*) FROM events").fetchone() == (4,)
    merged.close()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_pipe_beside_a_database_is_refused_at_once(tmp_path: Path, suffix: str) -> None:
    path = database(tmp_path / "a.db")
    (tmp_path / "a.db-wal").write_bytes(b"x" * 100)
    (tmp_path / f"a.db{suffix}").unlink(missing_ok=True)
    os.mkfifo(tmp_path / f"a.db{suffix}")
    with pytest.raises(ForeignFile, match=f"a.db{suffix} is not a regular file"):
        connect_readonly(path)
    with pytest.raises(ForeignFile, match=f"a.db{suffix} is not a regular file"):
        merge([path, database(tmp_path / "b.db")], tmp_path / "out.db")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (
            "SET sql = CAST(X'435245415445205441424c45fff7' AS TEXT) WHERE name = 'events'",
            "no text",
        ),
        (
            "SET sql = replace(sql, 'explanation', CAST(X'fff7' AS TEXT)) "
            "WHERE name = 'causal_chains'",
            "no text",
        ),
        ("SET sql = 'CREATE TABLE x ' || hex(zeroblob(90000)) WHERE name = 'events'", "malformed"),
    ],
    ids=["no statement", "a column", "a long word"],
)
def test_names_in_a_damaged_schema_end_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], statement: str, reason: str
) -> None:
    path = database(tmp_path / "node.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute(f"UPDATE sqlite_master {statement}")
    for command in (
        ["query", "-d", str(path), "SELECT * FROM causal_chains"],
        ["explain", "-d", str(path)],
        ["merge", str(path), "-o", str(tmp_path / "merged.db")],
    ):
        run(command)
    said = capsys.readouterr()
    assert len(said.out + said.err) < 5000
    assert reason in said.err
