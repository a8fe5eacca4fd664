"""Which capabilities a child process keeps: none, or those it is started for.

A program that root starts gets every capability back, unless the process can never gain any.
"""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_AMBIENT_RAISE: Final = 2
_AMBIENT_CLEAR_ALL: Final = 4
_VERSION_3: Final = 0x20080522  # of the capset call: two words of 32 bits per set
_STATUS: Final = Path("/proc/self/status")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def permitted_capabilities() -> int:
    """Return the permitted capabilities of this process as bits."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    return 0


def keep_capabilities(numbers: Iterable[int]) -> None:
    """Called in a child before it runs its program: give up all other capabilities for good.

    Those that this process does not have are not asked for. The program that is run next, and
    everything it starts, can gain none.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    held = permitted_capabilities()
    kept = [number for number in numbers if held >> number & 1]
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0))
    words = [0, 0]
    for number in kept:
        words[number // 32] |= 1 << number % 32
    sets = (_Sets * 2)(*(_Sets(word, word, word) for word in words))
    _checked(libc.capset(ctypes.byref(_Header(_VERSION_3, 0)), sets))
    for number in kept:  # a program that root does not run keeps ambient ones only
        _checked(libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, number, 0, 0))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot give up capabilities: {os.strerror(number)}")
