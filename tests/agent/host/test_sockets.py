"""Where local sockets lie, as root and as anybody else."""

import os
from pathlib import Path

import pytest

from ingero.agent.host import sockets
from ingero.agent.host.sockets import find_health_socket, find_socket, own_socket
from ingero.storage import runtime
from ingero.storage.runtime import RunningService, note_services


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody with a home and no runtime directory; the system's is a folder of the test."""
    monkeypatch.setattr(os, "geteuid", lambda: 987654)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for module in (sockets, runtime):
        monkeypatch.setattr(module, "SYSTEM", tmp_path / "run" / "ingero")
    return tmp_path


def test_root_serves_under_run(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (user / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(user))
    assert own_socket("a.sock") == user / "run" / "ingero" / "a.sock"


def test_anybody_else_serves_in_the_runtime_directory_or_at_home(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home = user / "home" / ".ingero" / "run" / "a.sock"
    assert own_socket("a.sock") == at_home
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(user / "runtime"))
    assert own_socket("a.sock") == at_home, "a runtime directory that is not there is none"
    (user / "runtime").mkdir()
    assert own_socket("a.sock") == user / "runtime" / "ingero" / "a.sock"


def test_the_socket_of_roots_agent_is_preferred(user: Path) -> None:
    assert find_socket("a.sock") == own_socket("a.sock")
    (user / "run" / "ingero").mkdir(parents=True)
    (user / "run" / "ingero" / "a.sock").touch()
    assert find_socket("a.sock") == user / "run" / "ingero" / "a.sock"


def test_a_folder_that_only_root_may_enter_is_passed_over(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `sudo ingero agent`, which makes the folder for itself."""
    system, look = user / "run" / "ingero", os.stat

    def refused(path: str | Path, **options: bool) -> os.stat_result:
        if system in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, **options)

    system.mkdir(parents=True)
    monkeypatch.setattr(os, "stat", refused)
    assert find_health_socket("a.sock") == find_socket("a.sock") == own_socket("a.sock")


def test_the_agent_of_up_is_found_where_it_says_and_a_chosen_folder_is_the_only_one(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user / "run" / "ingero").mkdir(parents=True)
    (user / "run" / "ingero" / "a.sock").touch()
    chosen = user / "chosen"
    monkeypatch.setattr(os, "geteuid", os.getuid)  # who owns the list
    monkeypatch.setenv("INGERO_RUNTIME_DIR", str(chosen))
    assert find_health_socket("a.sock") == find_socket("a.sock") == chosen / "a.sock"
    note_services({"agent": RunningService(os.getpid(), {}, socket="/up/agent.sock")})
    assert find_health_socket("a.sock") == Path("/up/agent.sock")
    (chosen / "a.sock").touch()
    assert find_health_socket("a.sock") == chosen / "a.sock", "the usual place comes first"
