"""Builds the host program that speaks NCCL's profiler interface, with the pinned compiler."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.nccl_jobs import HOST_SOURCE

from ingero.agent.nccl.build import FOLDER, LIBRARY


@pytest.fixture(scope="session")
def plugin() -> Path:
    """The plugin that ships for this machine."""
    return FOLDER / platform.machine() / LIBRARY


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host program."""
    target = tmp_path_factory.mktemp("host") / "host"
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-std=c11",
        "-O1",
        "-fno-sanitize=undefined",
        "-o",
        str(target),
    ]
    subprocess.run([*command, str(HOST_SOURCE), "-ldl", "-lpthread"], check=True)
    return target
