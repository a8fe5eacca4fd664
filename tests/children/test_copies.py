"""Children that are copies of an asyncio program."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.waiting import until

from ingero.children.aio import stop_child
from ingero.children.capabilities import permitted_capabilities
from ingero.children.copies import start_copy


def run_one(run: Callable[[], int], kept: tuple[int, ...] = ()) -> int:
    async def follow() -> int:
        return await start_copy(run, "try", kept, ()).wait()

    return asyncio.run(follow())


def sleep() -> int:
    time.sleep(60)
    return 0


def test_the_status_of_a_copy_is_what_its_function_returns() -> None:
    assert run_one(lambda: 7) == 7


def test_a_copy_that_raises_ends_with_status_1_and_says_why(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run_one(lambda: 1 // 0, (sys.stderr.fileno(),)) == 1
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_copy_runs_an_event_loop_of_its_own() -> None:
    async def three() -> int:
        await asyncio.sleep(0)
        return 3

    assert run_one(lambda: asyncio.run(three())) == 3


def test_stopping_a_copy_does_not_stop_its_parent() -> None:
    """Both have the handlers and the wake-up pipe of one event loop when the copy begins."""

    async def follow() -> tuple[int | None, bool]:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        copies = [start_copy(sleep, "try", (), ()) for _ in range(5)]
        for copy in copies:
            assert copy.returncode is None
            await stop_child(copy)
        await asyncio.sleep(0)
        return copies[-1].returncode, stopped.is_set()

    assert asyncio.run(follow()) == (-signal.SIGTERM, False)


def test_a_copy_inherits_no_socket_but_the_kept_one() -> None:
    ours, theirs = socket.socketpair()

    def tell() -> int:
        targets = [str(folder.joinpath(str(end.fileno())).readlink()) for end in (ours, theirs)]
        theirs.send("\n".join(targets).encode())
        return 0

    folder = Path("/proc/self/fd")
    expected = f"/dev/null\n{folder.joinpath(str(theirs.fileno())).readlink()}"
    with ours, theirs:
        assert run_one(tell, (theirs.fileno(),)) == 0
        assert ours.recv(1000).decode() == expected


def test_a_copy_has_a_name_of_its_own() -> None:
    def is_named() -> int:
        return int(Path("/proc/self/comm").read_text() != "ingero-try\n")

    assert run_one(is_named) == 0


def test_a_copy_keeps_only_the_capabilities_it_is_started_with() -> None:
    if not permitted_capabilities():
        pytest.skip("this process has no capabilities to give up")
    assert run_one(lambda: min(permitted_capabilities(), 100)) == 0


def test_a_copy_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"

    def tell_and_sleep() -> int:
        told.write_text(str(os.getpid()))
        return sleep()

    pid = os.fork()
    if pid == 0:
        try:
            run_one(tell_and_sleep)
        finally:
            os._exit(1)
    until(lambda: told.exists() and told.read_text() != "")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: not Path(f"/proc/{told.read_text()}").exists())
