"""Pid namespaces: inside a container a process has another pid."""

import os
import re
from typing import Final

from ingero.agent.processes.discover import parent_of

_NUMBERS: Final = re.compile(rb"^NSpid:.*?(\d+)$", re.MULTILINE)
_GENERATIONS: Final = 8


def is_elsewhere(pid: int) -> bool:
    """Return whether a process is in another pid namespace; False when it is gone."""
    return _namespace(pid) not in (None, _namespace("self"))


def find_ancestor(pid: int, inner: int) -> int | None:
    """Return the pid here of the process whose pid in its namespace is `inner`.

    It is `pid` itself or one of its ancestors in the same namespace.
    """
    namespace, current = _namespace(pid), pid
    for _ in range(_GENERATIONS):
        if namespace is None or _namespace(current) != namespace:
            return None
        if _inner_pid(current) == inner:
            return current
        current = parent_of(current) or 0
    return None


def _namespace(pid: int | str) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino  # noqa: PTH116 - one call
    except OSError:
        return None


def _inner_pid(pid: int) -> int | None:
    try:
        # as bytes: in text, a carriage return in the name of the process would begin a line
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - a kernel file
            found = _NUMBERS.search(file.read())
    except OSError:
        return None
    return int(found[1]) if found else None
