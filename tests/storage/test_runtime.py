"""The list of services that run on this machine."""

import os
from pathlib import Path

import pytest

from ingero.storage.runtime import (
    FOLDER_VARIABLE,
    RunningService,
    forget_services,
    note_services,
    running_service,
)


def test_the_list_of_another_process_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second `ingero up` that cannot start must not hide the one that runs."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    other = RunningService(os.getppid(), {"mcp": "127.0.0.1:18081"})
    note_services({"echo": other})
    forget_services()
    assert running_service("echo") == other
    note_services({"echo": RunningService(os.getpid(), {})})
    forget_services()
    assert running_service("echo") is None
    assert not list(tmp_path.iterdir())
