"""Memory of a process that runs for long."""

import ctypes
import gc


def return_freed_memory() -> None:
    """Give the kernel back what the start took and does not need any more."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc only
        libc.malloc_trim(0)
