"""Where the local sockets of an agent lie: one rule for those who serve them and those who look for them."""

import os
from pathlib import Path

from ingero.storage.caller import home

SYSTEM = Path("/run/ingero")  # of root's agent


def own_socket(name: str) -> Path:
    """Where we would serve it: under /run as root, else in our runtime directory, or at home where there is none.

    The runtime directory is found without its variable too: jobs and services often lack it.
    """
    if os.geteuid() == 0 and SYSTEM.parent.is_dir():
        return SYSTEM / name
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}")
    return (runtime / "ingero" if runtime.is_dir() else home() / ".ingero" / "run") / name


def find_socket(name: str) -> Path:
    """Where to look for one: that of root's agent where there is one, else our own."""
    system = SYSTEM / name
    return system if system.exists() else own_socket(name)
