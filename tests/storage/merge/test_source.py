"""Sources of a merge that are in use, partly unreadable, or the same file as the output."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.trace_databases import changed, database, rows

from ingero.errors import ForeignFile, StoreError
from ingero.storage.merge import source as merge_source
from ingero.storage.merge.merge import merge
from ingero.storage.merge.statements import Statement, copy_statements

NEW = (
    "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, node) VALUES (?, 1, 1, 1, "
    "1, 1, 1, 'n1')"
)


def test_a_database_that_is_recorded_to_is_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is moved into the file and restarted between the copies of file and log."""
    path = database(tmp_path / "live.db", events=3000)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.executemany(NEW, [(f"n1:a{i}",) for i in range(500)])
    copy, copied = shutil.copyfile, []

    def slow_copy(source: Path, target: Path) -> None:
        copy(source, target)
        if not copied:
            writer.executemany(NEW, [(f"n1:b{i}",) for i in range(500)])
            writer.execute("PRAGMA wal_checkpoint(RESTART)")
            writer.execute(NEW, ("n1:last",))
        copied.append(source)

    monkeypatch.setattr(merge_source.shutil, "copyfile", slow_copy)
    assert merge([path], tmp_path / "out.db").events == 4001
    assert copied == [path, path.with_name("live.db-wal")]
    assert rows(tmp_path / "out.db", "PRAGMA integrity_check") == [("ok",)]
    writer.close()


def test_a_log_that_goes_away_while_it_is_copied_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = database(tmp_path / "live.db")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute(NEW, ("n1:last",))
    copy = shutil.copyfile

    def stopping_copy(source: Path, target: Path) -> None:
        copy(source, target)
        writer.close()

    monkeypatch.setattr(merge_source.shutil, "copyfile", stopping_copy)
    assert merge([path], tmp_path / "out.db").events == 4


def test_the_output_may_be_a_link_but_no_source_and_nothing_but_a_file(tmp_path: Path) -> None:
    source = database(tmp_path / "a.db")
    other = Path("/dev/shm") if Path("/dev/shm").is_dir() else tmp_path
    target = other / f"ingero-merge-{os.getpid()}.db"
    link = tmp_path / "link.db"
    link.symlink_to(target)
    try:
        assert merge([source], link).events == 3
        assert link.is_symlink()
        assert rows(target, "SELECT count(*) FROM events") == [(3,)]
    finally:
        target.unlink(missing_ok=True)
    (tmp_path / "soft.db").symlink_to(source)
    (tmp_path / "hard.db").hardlink_to(source)
    for same in ("a.db", "soft.db", "hard.db"):
        with pytest.raises(StoreError, match="is also a source"):
            merge([source], tmp_path / same)
    (tmp_path / "loop.db").symlink_to(tmp_path / "loop.db")
    assert merge([source], tmp_path / "loop.db").events == 3
    os.mkfifo(tmp_path / "pipe")
    for special in (tmp_path / "pipe", tmp_path):
        with pytest.raises(StoreError, match="not a regular file"):
            merge([source], special)
        with pytest.raises(StoreError, match="is not a file"):
            merge([special], tmp_path / "out.db")
    assert (tmp_path / "pipe").is_fifo()


def test_what_may_not_be_looked_at_is_a_sentence() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody who may not look")
    folder = Path(tempfile.mkdtemp())  # not below `tmp_path`, which other users cannot enter
    try:
        for name, mode in ((".", 0o755), ("closed", 0o700), ("open", 0o777)):
            (folder / name).mkdir(exist_ok=True)
            (folder / name).chmod(mode)
        source = database(folder / "a.db")
        source.chmod(0o600)
        os.seteuid(65534)
        with pytest.raises(StoreError, match=r"closed/out\.db cannot be read: Permission denied"):
            merge([source], folder / "closed" / "out.db")
        with pytest.raises(StoreError, match=r"closed/a\.db cannot be read: Permission denied"):
            merge([folder / "closed" / "a.db"], folder / "open" / "out.db")
        with pytest.raises(StoreError, match=r"a\.db cannot be read: .*Permission denied"):
            merge([source], folder / "open" / "out.db")
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


def test_when_no_file_is_good_nothing_is_written(tmp_path: Path) -> None:
    output = tmp_path / "out.db"
    output.write_text("earlier")
    (tmp_path / "empty.db").touch()
    (tmp_path / "notes.db").write_text("no database" * 100)
    with pytest.raises(
        StoreError, match=r"none of the files can be merged:\n.*empty\.db is empty.*\n.*notes\.db"
    ):
        merge([tmp_path / "empty.db", tmp_path / "notes.db"], output, skip_bad=True)
    assert output.read_text() == "earlier"


ON_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=1m none disk
for more in "" --skip-bad; do
  "$PYTHON" -m ingero merge a.db b.db -o disk/out.db $more && exit 9
  [ -z "$(ls -A disk)" ]
done
"""


def test_a_full_disk_is_not_blamed_on_a_source(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare: the small disk lives in a namespace of its own")
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces are not allowed on this machine")
    for name in ("a", "b"):
        database(tmp_path / f"{name}.db", name, events=9000)
    (tmp_path / "disk").mkdir()
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", ON_A_SMALL_DISK], cwd=tmp_path, check=False,
        capture_output=True, text=True,
        env=os.environ | {"PYTHON": sys.executable, "HOME": str(tmp_path)}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == 2 * [
        "ingero merge: cannot write disk/out.db: database or disk is full; is there room in its "
        "folder?"
    ]


def test_one_bad_row_does_not_cost_the_file(tmp_path: Path) -> None:
    """Labels that are not JSON stay unchanged; a node that is not text is shown with marks."""
    source = changed(
        database(tmp_path / "a.db"),
        "INSERT INTO annotations (timestamp, labels, pid) VALUES (1, '{oops', 1)",
        "UPDATE events SET node = CAST(x'6eff' AS TEXT)",
    )
    summary = merge([source], tmp_path / "out.db")
    assert (summary.events, summary.nodes) == (3, ["n\ufffd"])
    assert rows(tmp_path / "out.db", "SELECT count(*) FROM annotations WHERE labels = '{oops'") == [
        (1,)
    ]


def test_a_source_that_fails_half_way_is_never_half_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F143: `--skip-bad` skips what its check finds.

    Damage found later refuses the merge and writes nothing.
    """
    good, bad = database(tmp_path / "good.db", "n1"), database(tmp_path / "bad.db", "n2", events=5)

    def fail_on_the_second(
        connection: sqlite3.Connection, node: str, **options: bool
    ) -> Iterator[Statement]:
        yield from (
            copy_statements(connection, node, **options)
            if node == "n1"
            else [Statement("SELECT * FROM src.torn")]
        )

    monkeypatch.setattr("ingero.storage.merge.merge.copy_statements", fail_on_the_second)
    with pytest.raises(ForeignFile, match=r"bad\.db is damaged.*without it"):
        merge([good, bad], tmp_path / "out.db", skip_bad=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.db", "good.db"]
