"""Processes that stand for ranks, in a cgroup that other load of the machine does not disturb."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support import rank_stand_in
from tests.support.apart import Apart

HOG = "open('/proc/self/comm', 'w').write('hog')\nprint('ready', flush=True)\nwhile True: pass"


@pytest.fixture
def apart() -> Iterator[Apart]:
    if os.geteuid():
        pytest.skip("seeing what another process does needs root or ptrace rights")
    made = Apart()
    made.add(os.getpid())
    yield made
    made.close()


@pytest.fixture
def start(apart: Apart) -> Iterator[Callable[..., int]]:
    """Start a process, which ends with the test, and return its pid once it works."""
    started: list[subprocess.Popen[bytes]] = []

    def run(mode: str, cpu: int | None = None) -> int:
        command = (
            [sys.executable, "-c", HOG]
            if mode == "hog"
            else [sys.executable, str(Path(rank_stand_in.__file__)), mode]
        )
        prefix = [] if cpu is None else ["taskset", "-c", str(cpu)]
        process = subprocess.Popen(
            [*prefix, *command], stdout=subprocess.PIPE, start_new_session=True
        )
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    yield run
    for process in started:
        os.killpg(process.pid, 9)  # its own group, with the writer that it started
        process.communicate()
