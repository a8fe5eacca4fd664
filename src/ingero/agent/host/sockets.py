"""Paths of the local sockets of an agent, for those who serve and those who connect."""

from pathlib import Path

from ingero.storage.runtime import SYSTEM, runtime_folder


def own_socket(name: str) -> Path:
    """Return where this user serves a socket."""
    return runtime_folder() / name


def find_socket(name: str) -> Path:
    """Return the socket of an agent run by root where there is one, else our own."""
    system = SYSTEM / name
    return system if system.exists() else own_socket(name)
