"""Paths of the local sockets of an agent, for those who serve and those who connect."""

import os
from pathlib import Path

from ingero.storage.caller import home

SYSTEM = Path("/run/ingero")  # sockets of an agent that runs as root


def own_socket(name: str) -> Path:
    """Return where this user serves a socket.

    It is under /run for root, else in the runtime directory, or in the home folder without one.
    The runtime directory is found without its variable too: jobs and services often lack it.
    """
    if os.geteuid() == 0 and SYSTEM.parent.is_dir():
        return SYSTEM / name
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}")
    return (runtime / "ingero" if runtime.is_dir() else home() / ".ingero" / "run") / name


def find_socket(name: str) -> Path:
    """Return the socket of an agent run by root where there is one, else our own."""
    system = SYSTEM / name
    return system if system.exists() else own_socket(name)
