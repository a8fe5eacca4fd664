"""F119: a second process on the same database is refused and learns the owner's pid."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingero.errors import StoreLocked
from ingero.storage.lock import DatabaseLock


def test_the_second_owner_learns_who_the_first_is(tmp_path: Path) -> None:
    database = tmp_path / "echo.db"
    first = DatabaseLock(database)
    with pytest.raises(
        StoreLocked, match=rf"echo\.db is open for writing in process {os.getpid()}; stop it or use"
    ):
        DatabaseLock(database)
    first.release()
    DatabaseLock(database).release()


def test_a_killed_owner_leaves_no_lock(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from ingero.storage.lock import DatabaseLock\n"
        "kept = DatabaseLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "echo.db")], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"held\n"
    with pytest.raises(StoreLocked, match=f"process {owner.pid}"):
        DatabaseLock(tmp_path / "echo.db")
    owner.kill()
    owner.wait()
    owner.stdout.close()
    DatabaseLock(tmp_path / "echo.db").release()
