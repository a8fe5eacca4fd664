"""Memory of a process that runs for long."""

import ctypes
import gc
from typing import Final

_M_ARENA_MAX: Final = -8


def return_freed_memory() -> None:
    """Give the kernel back the memory that only the start needed."""
    gc.collect()
    trim_heap()


def settle_memory() -> None:
    """Called once, when a service has started: later collections hold its event loop briefly."""
    return_freed_memory()
    gc.freeze()  # objects of the start stay alive, so the collector need not scan them
    gc.set_threshold(20_000, 5, 200)  # no ordinary run scans more than 100,000 objects


def trim_heap() -> None:
    """Give the kernel back what the C library would keep for later."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc only
        libc.malloc_trim(0)


def use_one_heap() -> None:
    """Let all threads share a heap: those that wait most of the time need none of their own."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc only
        libc.mallopt(_M_ARENA_MAX, 1)
