"""Which services run on this machine, in a small file that commands look into.

Root writes it under /run, others in their runtime directory. It holds addresses and no secrets.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from ingero.errors import IngeroError
from ingero.files import read_regular, replace_file
from ingero.storage.caller import home

SYSTEM: Final = Path("/run/ingero")  # of services that root runs
FOLDER_VARIABLE: Final = "INGERO_RUNTIME_DIR"
FILE_NAME: Final = "services.json"
_MAX_BYTES: Final = 64 << 10


class RunningService(msgspec.Struct):
    """One service: its process, the addresses of its listeners, its database and its socket."""

    pid: int
    addresses: dict[str, str]
    database: str | None = None
    socket: str | None = None  # where the agent answers for its health


def runtime_folder() -> Path:
    """Return where this user keeps sockets and the list of services.

    It is under /run for root, else in the runtime directory, or in the home folder without one.
    The runtime directory is found without its variable too: jobs and services often lack it.
    """
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    if os.geteuid() == 0 and SYSTEM.parent.is_dir():
        return SYSTEM
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}")
    return runtime / "ingero" if runtime.is_dir() else home() / ".ingero" / "run"


def note_services(services: dict[str, RunningService]) -> None:
    """Write which services run now; a folder that cannot be written is no reason to stop."""
    folder = runtime_folder()
    with contextlib.suppress(OSError, IngeroError):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(folder / FILE_NAME, msgspec.json.encode(services), 0o644)


def forget_services() -> None:
    """Remove the list that this process wrote; that of another one still holds."""
    path = runtime_folder() / FILE_NAME
    if any(service.pid == os.getpid() for service in _read(path).values()):
        with contextlib.suppress(OSError):
            path.unlink()


def running_service(name: str) -> RunningService | None:
    """Return a service of this user or of root that runs now; None where there is none."""
    system = () if os.environ.get(FOLDER_VARIABLE) else (SYSTEM,)
    for folder in dict.fromkeys((runtime_folder(), *system)):
        found = _read(folder / FILE_NAME).get(name)
        if found is not None and Path(f"/proc/{found.pid}").exists():
            return found
    return None


def _read(path: Path) -> dict[str, RunningService]:
    try:
        status = path.lstat()
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & stat.S_IWOTH:
            return {}  # somebody else could send our questions elsewhere
        return msgspec.json.decode(read_regular(path, _MAX_BYTES), type=dict[str, RunningService])
    except (OSError, IngeroError, msgspec.DecodeError):
        return {}
