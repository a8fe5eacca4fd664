"""What /proc says about traced processes."""

import os
import subprocess
import sys

from ingero.agent.processes.info import ProcessBook, ProcessInfo, parse_environ, read_process


def test_rank_comes_from_the_environment_and_absent_is_not_zero() -> None:
    """F134."""
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    environ = os.environ | {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "x"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    info = read_process(process.pid)
    process.communicate("")
    assert (info.rank, info.local_rank, info.world_size) == (0, None, 8)
    assert info.start_time > 0
    assert info.name.startswith("python")


def test_a_process_that_is_gone_is_nothing_and_no_error() -> None:
    info = read_process(2**22 - 1)
    assert (info.name, info.rank, info.start_time) == ("", None, 0)


def test_environment_block() -> None:
    assert parse_environ(b"A=1\0B=x=y\0bad\0A=2\0\xff=\xff\0") == {"A": "1", "B": "x=y", "\ufffd": "\ufffd"}


def test_a_pid_used_again_is_read_again_and_a_dead_one_keeps_its_name() -> None:
    answers = [ProcessInfo(7, 1, "old", rank=3), ProcessInfo(7, 0, ""), ProcessInfo(7, 9, "new")]
    book = ProcessBook(lambda _: answers.pop(0))
    assert book.get(7).name == book.get(7).name == "old"
    book.mark_stale(7)
    assert book.get(7).rank == 3, "gone: late events still belong to what we knew"
    book.mark_stale(7)
    assert book.get(7).name == "new"
    assert [info.name for info in book.fresh] == ["old", "new"]
    assert book.names() == {7: "new"}
