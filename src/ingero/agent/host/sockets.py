"""Paths of the local sockets of an agent, for those who serve and those who connect."""

import os
from pathlib import Path

from ingero.storage.runtime import FOLDER_VARIABLE, SYSTEM, running_service, runtime_folder


def own_socket(name: str) -> Path:
    """Return where this user serves a socket."""
    return runtime_folder() / name


def find_socket(name: str) -> Path:
    """Return the socket of an agent run by root where we can see one, else our own."""
    system = SYSTEM / name
    is_chosen = bool(os.environ.get(FOLDER_VARIABLE))
    return system if _is_seen(system) and not is_chosen else own_socket(name)


def find_health_socket(name: str) -> Path:
    """Return the socket of the agent's health, also of an agent that `ingero up` runs."""
    path, service = find_socket(name), running_service("agent")
    if _is_seen(path) or service is None or service.socket is None:
        return path
    return Path(service.socket)


def _is_seen(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:  # a folder that only root may enter
        return False
