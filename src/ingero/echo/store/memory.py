"""The memory of the store process, as the C library holds it."""

import ctypes
from typing import Final

_M_ARENA_MAX: Final = -8
# glibc reserves 64 MiB of address space for each arena, and would create one per waiting thread
_ARENAS: Final = 2
_M_MMAP_THRESHOLD: Final = -3
# columns of a load go back to the kernel when they are freed, instead of tearing holes in the heap
_MAPPED_FROM_BYTES: Final = 1 << 20


def keep_memory_together() -> None:
    """Use few arenas, and none for large pieces; without effect on another C library."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)


def give_back_memory() -> None:
    """Give free memory back to the kernel, which the C library would keep for the next load."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
