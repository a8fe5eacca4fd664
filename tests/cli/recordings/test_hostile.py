"""`ingero blame`, `whatif` and `import` on files made to stop them: a sentence, in bounds."""

import json
import os
import pickle
import random
import resource
import sqlite3
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.dump_files import write_dumps
from tests.support.recorded_jobs import Job
from tests.support.step_jobs import StepJob, trace_rows, write_parquet

HEAD = b"\x80\x04"
MAX_RESIDENT_BYTES = 900 << 20


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str
    peak_bytes: int


def _run(*args: object, cwd: Path | None = None, cpu_s: int = 3) -> Ended:
    """Run `ingero` in a process whose children may use this much CPU time each."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 2))

    # A process in between counts the largest child of this command alone.
    script = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-P', '-m', 'ingero', *sys.argv[1:]])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\n"
        "sys.exit(done.returncode)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *map(str, args)],
        capture_output=True, text=True, cwd=cwd, timeout=120, check=False,
        preexec_fn=limit,
    )  # fmt: skip
    *err, peak = done.stderr.splitlines()
    return Ended(done.returncode, done.stdout, "\n".join(err), int(peak) * 1024)


def _zeros(mebibytes: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    block = b"{}," * 349_525
    parts = [
        packer.compress(b'{"traceEvents":['),
        *(packer.compress(block) for _ in range(mebibytes)),
    ]
    return b"".join(parts) + packer.compress(b"{}]}") + packer.flush()


HOSTILE = {
    "nine bytes": ("_dump_0", HEAD + b"Nr\xff\xff\xff\x0f.", "claims place"),
    "gzip": ("t.json.gz", _zeros(1200), "unpacks to more than"),
    "many sets": ("_dump_0", HEAD + b"(" + b"\x8f" * 2_600_000 + b"t.", "more memory"),
    "key that is hashed forever": (
        "_dump_0", HEAD + b"}N" + b"2\x86" * 60 + b"Ns.", "of CPU time"
    ),
    "key of nested tuples": (
        "_dump_0", HEAD + b"})" + b"\x85" * 3_000_000 + b"Ns.", "the file is damaged or hostile"
    ),
    "one shared list": (
        "_dump_0",
        pickle.dumps({"entries": [], "pg_config": {
            str(i): {"ranks": ranks} for ranks in [list(range(50_000))] for i in range(5_000)
        }}),
        "CPU time|more memory",
    ),
    "job of too many ranks": ("j.yaml", b"world_size: 9999999\ntp_size: 1\n", "9999999 ranks"),
    "long field": ("r.csv", b"comm_hash,seq,op,rank,nranks,enqueue_ns,gpu_start_ns,gpu_stop_ns\n\""
                   + b"x" * 1_000_000 + b"\"\n", "field larger than field limit"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "reason"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_gets_a_sentence_within_bounds(
    name: str, content: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    ended = _run("blame", path)
    assert (ended.status, ended.out) == (3, "")
    assert len(ended.err.splitlines()) == 1
    assert str(path) in ended.err
    assert any(part in ended.err for part in reason.split("|"))
    assert ended.peak_bytes < MAX_RESIDENT_BYTES


@pytest.mark.parametrize("command", [["blame"], ["whatif"], ["import", "--to", "x.db"]])
def test_pipes_and_devices_are_refused_at_once(command: list[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe_0")
    ended = _run(*command, "pipe_0", cwd=tmp_path)
    assert ended.status == (3 if command == ["blame"] else 1)
    assert ended.err.endswith("pipe_0: not a regular file, but a pipe")
    ended = _run(*command, "/dev/zero", cwd=tmp_path)
    assert ended.err.endswith("/dev/zero: not a regular file, but a device")


def test_a_pipe_in_a_folder_is_skipped(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(tp=1, dp=4, slow_host={2: 0.003}, steps=30))
    os.mkfifo(tmp_path / "_dump_9")
    (tmp_path / "zero").symlink_to("/dev/zero")
    ended = _run("blame", tmp_path, "--json")
    assert [culprit["rank"] for culprit in json.loads(ended.out)["culprits"]] == [2]


def test_a_hostile_file_among_good_ones_is_noted(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(tp=1, dp=4, slow_host={2: 0.003}, steps=30))
    (tmp_path / "_dump_9").write_bytes(HOSTILE["many sets"][1])
    answer = json.loads(_run("blame", tmp_path, "--json", cpu_s=60).out)
    assert [culprit["rank"] for culprit in answer["culprits"]] == [2]
    assert any("_dump_9: needs more memory" in note for note in answer["notes"])


def test_modules_in_the_folder_of_the_files_are_not_imported(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(tp=1, dp=4, steps=10))
    for module in ("msgspec", "numpy", "json", "pickle"):
        (tmp_path / f"{module}.py").write_text("open('owned', 'w')")
    assert _run("blame", ".", cwd=tmp_path).status == 0
    assert not (tmp_path / "owned").exists()


def test_records_of_a_hostile_database_are_refused_with_a_sentence(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(tp=1, dp=2, steps=5))
    database = tmp_path / "job.db"
    assert _run("import", tmp_path, "--to", database).status == 0
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE collectives SET rank = 'zero', start_ns = 1e300")
    connection.close()
    for command in (["blame"], ["import", "--to", tmp_path / "other.db"]):
        ended = _run(*command, database)
        assert ended.status == (3 if command == ["blame"] else 1)
        assert len(ended.err.splitlines()) == 1
        assert "Traceback" not in ended.err


def test_damaged_step_traces_end_in_a_sentence_each(tmp_path: Path) -> None:
    """Fifteen of them in one command: not one may end the reader or be forgotten."""
    pytest.importorskip("pyarrow", reason="step traces are Parquet, which needs the parquet extra")
    whole = write_parquet(tmp_path / "whole", trace_rows(StepJob(dp=2))).read_bytes()
    (tmp_path / "whole").unlink()
    chance = random.Random(7)
    for number in range(15):
        data = bytearray(whole)
        for _ in range(20):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        (tmp_path / f"{number}.parquet").write_bytes(data)
    ended = _run("blame", tmp_path, cpu_s=60)
    assert "Traceback" not in ended.err
    assert (ended.status, len(ended.err.splitlines())) in ((0, 0), (1, 0), (3, 1))
