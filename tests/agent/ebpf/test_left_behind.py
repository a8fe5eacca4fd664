"""What `ingero trace` leaves behind: files owned by the caller, and never a probe."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support.gpu_jobs import Job, require_bpf
from tests.support.waiting import until


def test_under_sudo_the_caller_owns_and_reads_everything_while_it_is_written_must_32(
    job: Callable[..., Job],
) -> None:
    """Run `ingero trace` as root with the variables of sudo; the caller queries meanwhile."""
    require_bpf()
    person = 54321
    process = job()
    with tempfile.TemporaryDirectory(prefix="ingero-sudo-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        (home / "own").mkdir()
        os.chown(home / "own", person, person)
        database = home / "own" / "new" / "t.db"
        sudo = {
            "SUDO_UID": str(person),
            "SUDO_GID": str(person),
            "SUDO_USER": "ana",
            "INGERO_DB": str(database),
        }
        command = [sys.executable, "-m", "ingero", "trace", "--pid", str(process.pid)]
        with subprocess.Popen(
            command, env=os.environ | sudo, stderr=subprocess.PIPE, text=True
        ) as tracer:
            assert tracer.stderr
            try:
                assert f"recording to {database}" in tracer.stderr.readline()
                assert sessions_as(person, database, job) == 1
                process.do("os.waitpid(os.spawnv(os.P_NOWAIT, '/bin/true', ['true']), 0)")
                owners = {
                    file.name: (file.stat().st_uid, file.stat().st_mode & 0o777)
                    for file in database.parent.iterdir()
                }
                assert {"t.db", "t.db-wal", "t.db-shm", "t.db.lock"} <= owners.keys()
                assert set(owners.values()) == {(person, 0o600)}
            finally:
                tracer.send_signal(signal.SIGTERM)  # must 61: the agent itself, whoever started it
        assert tracer.returncode == 0
        assert sessions_as(person, database, job) == 1
        assert database.parent.stat().st_uid == person


def sessions_as(uid: int, database: Path, job: Callable[..., Job]) -> int:
    """How many recordings a person sees who has no rights but their own."""
    asked = job().do(
        "import sqlite3, encodings.ascii\nreading, writing = os.pipe()\nif not os.fork():\n"
        f"  os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
        f"  found = sqlite3.connect({str(database)!r}).execute('SELECT count(*) FROM "
        f"sessions').fetchone()[0]\n"
        "  os.write(writing, str(found).encode()); os._exit(0)\n"
        "os.close(writing)\nresult = os.read(reading, 10).decode()"
    )
    return int(asked)


def test_kill_9_leaves_no_probe_in_the_job_must_12(job: Callable[..., Job]) -> None:
    """The code of the job itself is looked at: a probe is a changed instruction."""
    require_bpf()
    process = job()
    code = "result = ctypes.string_at(address(rt.cudaDeviceSynchronize), 32).hex()"
    untouched = process.do(f"rt = load('libcudart.so.12')\n{code}")
    command = [sys.executable, "-m", "ingero", "trace", "--no-record", "--pid", str(process.pid)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tracer:
        try:
            until(lambda: process.do(code) != untouched, "the function was never probed")
        finally:
            tracer.kill()
    until(lambda: process.do(code) == untouched, "a probe is left")
    assert process.do("result = rt.cudaDeviceSynchronize()") == "0"
