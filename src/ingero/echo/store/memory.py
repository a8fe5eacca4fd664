"""The memory of Echo and of its store process, as the C library holds it."""

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

_M_ARENA_MAX: Final = -8
# glibc reserves 64 MiB of address space for each arena, and would create one per waiting thread
_ARENAS: Final = 2
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# columns of a load go back to the kernel when they are freed, instead of tearing holes in the heap
_MAPPED_FROM_BYTES: Final = 1 << 20
_ANSWER_BYTES: Final = 16 << 20  # some twenty columns of 100,000 numbers


def keep_memory_together() -> None:
    """Use few arenas, and none for large pieces; without effect on another C library."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)


def keep_memory_of_answers() -> None:
    """Keep a few megabytes of free memory: to get it anew takes as long as computing an answer."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _ANSWER_BYTES // 4)
        libc.mallopt(_M_TRIM_THRESHOLD, _ANSWER_BYTES)


def leave_out_pyarrow() -> None:
    """Keep DuckDB from importing pyarrow where somebody has installed it.

    Our tables are streams that need no library. It would take 54 MB, and 1.4 GB of the address
    space that the store process may use.
    """
    sys.modules["pyarrow"] = None  # type: ignore[assignment]  # how Python notes "cannot import"


class QuietMoments:
    """Moments without a question, in which memory that questions use may be given back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._questions = 0

    @contextlib.contextmanager
    def question(self) -> Iterator[None]:
        """Answer a question; it waits while `use` runs something."""
        with self._lock:
            self._questions += 1
        try:
            yield
        finally:
            with self._lock:
                self._questions -= 1

    def use(self, work: Callable[[], None]) -> bool:
        """Run `work` if no question is under way; return whether it ran."""
        with self._lock:
            if self._questions:
                return False
            work()
            return True
