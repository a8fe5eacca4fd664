"""Builds the host program that speaks NCCL's profiler interface, with the pinned compiler."""

import platform
from pathlib import Path

import pytest
from tests.support.compiler import compile_c
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
    options = ("-std=c11", "-O1", "-fno-sanitize=undefined", "-ldl", "-lpthread")
    return compile_c(HOST_SOURCE, target, *options)
