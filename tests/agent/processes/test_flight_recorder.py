"""Dumps on demand from a stand-in process that listens on its pipe as PyTorch does."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S

from ingero.agent.processes import flight_recorder
from ingero.agent.processes.flight_recorder import (
    DumpOutcome,
    DumpTarget,
    find_target,
    find_targets,
    request_dump,
    target_of,
)

LISTENER = """
import os, sys
pipe, dump = sys.argv[1:]
os.mkfifo(pipe)
fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
keep = os.open(pipe, os.O_WRONLY)
print("ready", flush=True)
import select
while True:
    select.select([fd], [], [])
    if os.read(fd, 100):
        with open(dump, "wb") as file:
            file.write(b"dump")
            file.flush()
            file.write(b" of rank 3")
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        "PATH": os.environ["PATH"],
        "RANK": "3",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "ask_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "dump_"),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER, str(tmp_path / "ask_3.pipe"), str(tmp_path / "dump_3")],
        env=environment,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


async def test_a_running_process_writes_its_dump_when_asked(
    job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a crowded machine stops a writer for a while
    monkeypatch.setattr(flight_recorder, "SETTLED_POLLS", 10)
    target = find_target(job.pid)
    assert target is not None and target.rank == 3
    for _ in range(2):  # a second dump replaces the first and is noticed too
        reply = await request_dump(target, timeout_s=PATIENCE_S)
        assert (reply.outcome, reply.data) == (DumpOutcome.WRITTEN, b"dump of rank 3")


async def test_the_pipe_of_a_dead_process_never_blocks(job: subprocess.Popen[bytes]) -> None:
    target = find_target(job.pid)
    assert target is not None
    job.kill()
    job.wait()
    plain = DumpTarget(target.pid, 3, Path(str(target.pipe).split("/root", 1)[1]), target.dump)
    reply = await asyncio.wait_for(request_dump(plain, timeout_s=2 * PATIENCE_S), PATIENCE_S)
    assert reply.outcome is DumpOutcome.NO_READER


async def test_what_is_no_pipe_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "ask_0.pipe"
    file.write_text("precious")
    reply = await request_dump(DumpTarget(1, 0, file, tmp_path / "dump_0"), timeout_s=1)
    assert reply.outcome is DumpOutcome.REFUSED
    assert file.read_text() == "precious"
    (tmp_path / "ask_1.pipe").symlink_to(file)
    reply = await request_dump(
        DumpTarget(1, 1, tmp_path / "ask_1.pipe", tmp_path / "dump_1"), timeout_s=1
    )
    assert reply.outcome is DumpOutcome.REFUSED
    reply = await request_dump(
        DumpTarget(1, 2, tmp_path / "ask_2.pipe", tmp_path / "dump_2"), timeout_s=1
    )
    assert reply.outcome is DumpOutcome.NO_PIPE


async def test_a_process_that_does_not_answer_times_out(tmp_path: Path) -> None:
    pipe = tmp_path / "ask_0.pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        reply = await request_dump(DumpTarget(1, 0, pipe, tmp_path / "dump_0"), timeout_s=0.3)
    finally:
        os.close(reader)
    assert reply.outcome is DumpOutcome.TIMED_OUT


def test_targets_come_from_the_environment(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert [(t.pid, t.rank) for t in find_targets([job.pid, os.getpid()])] == [(job.pid, 3)]
    older = target_of(
        7,
        {
            "RANK": "1",
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/run/p",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "out_",
        },
        tmp_path / "7" / "root",
    )
    assert older == DumpTarget(7, 1, tmp_path / "7/root/run/p1.pipe", tmp_path / "7/cwd/out_1")
    assert target_of(7, {"RANK": "x", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/p"}, tmp_path) is None
    assert target_of(7, {"RANK": "1"}, tmp_path) is None
