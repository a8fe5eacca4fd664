"""The system calls behind every probe, bpf(2) and perf_event_open(2), through ctypes."""

import ctypes
import errno
import os
import platform
from typing import Final

from ingero.errors import Unavailable

MACHINE: Final = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
_NUMBERS: Final = {"x86_64": (321, 298, 324), "aarch64": (280, 241, 283)}
_libc = ctypes.CDLL(None, use_errno=True)

MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, MAP_NEXT_KEY, PROG_LOAD = range(6)
RAW_TRACEPOINT_OPEN, BTF_LOAD, MAP_FREEZE, LINK_CREATE = 17, 18, 22, 28

_MEMBARRIER_PRIVATE, _MEMBARRIER_REGISTER = 8, 16


class BpfRefused(Unavailable):
    """The kernel refused a call; `number` is the errno."""

    def __init__(self, number: int, what: str) -> None:
        # EACCES is the verifier's: the program is at fault, not who loads it
        hint = "; CAP_BPF and CAP_PERFMON are needed" if number == errno.EPERM else ""
        super().__init__(f"{what}: {os.strerror(number)}{hint}")
        self.number = number


def _number(index: int) -> int:
    try:
        return _NUMBERS[MACHINE][index]
    except KeyError:
        raise Unavailable(f"no probes for {MACHINE}: x86_64 and aarch64 are supported") from None


def pinned(data: bytes | bytearray) -> "ctypes.Array[ctypes.c_char]":
    """Return a buffer for the kernel; keep the object alive as long as its address is used."""
    return ctypes.create_string_buffer(bytes(data), max(len(data), 1))


def bpf(command: int, attributes: bytes, what: str) -> tuple[int, bytes]:
    """Call bpf(2); return its result and the attribute block as the kernel left it."""
    block = pinned(attributes)
    result = _libc.syscall(_number(0), command, block, len(attributes))
    if result < 0:
        raise BpfRefused(ctypes.get_errno(), what)
    return result, block.raw


def perf_event_open(attributes: bytes, pid: int, cpu: int) -> int:
    close_on_exec = 8
    descriptor = int(_libc.syscall(_number(1), pinned(attributes), pid, cpu, -1, close_on_exec))
    if descriptor < 0:
        raise BpfRefused(ctypes.get_errno(), "perf_event_open")
    return descriptor


def register_barrier() -> None:
    """Register for `barrier`; needed once on machines that reorder loads."""
    if MACHINE != "x86_64":
        _libc.syscall(_number(2), _MEMBARRIER_REGISTER, 0, 0)


def barrier() -> None:
    """Order loads after the stores of the kernel.

    x86-64 does so by itself; plain Python loads on aarch64 do not.
    """
    if MACHINE != "x86_64":
        _libc.syscall(_number(2), _MEMBARRIER_PRIVATE, 0, 0)
