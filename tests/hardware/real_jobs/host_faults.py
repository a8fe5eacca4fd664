"""What keeps the host of a rank from launching: a lock, a slow reader, garbage collection, sleep.

Needs nothing but Python, so that ranks without a GPU are slowed in the same way.
"""

import gc
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

HOST_FAULTS = ("host", "lock", "read", "collect")
READ_BYTES = 1 << 20
FILE_BYTES = 64 << 20


class BusyThread:
    """Another thread of the process that keeps a lock while it writes its statistics."""

    def __init__(self) -> None:
        self.lock, self.asked, self.taken = threading.Lock(), threading.Event(), threading.Event()
        self.keep_s = 0.0
        threading.Thread(target=self._write_statistics, name="statistics", daemon=True).start()

    def _write_statistics(self) -> None:
        while self.asked.wait():
            self.asked.clear()
            with self.lock:
                self.taken.set()
                time.sleep(self.keep_s)

    def wait_for_lock(self, seconds: float) -> None:
        self.keep_s = seconds
        self.taken.clear()
        self.asked.set()
        self.taken.wait()
        with self.lock:
            pass


class SlowHost:
    """Things that keep the host from launching; each is made when it is first needed."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.file = folder / f"samples_{rank}.bin"
        self.busy: BusyThread | None = None
        self.garbage: list[list[Any]] = []

    def hold_up(self, says: dict[str, Any], calm_s: float) -> None:
        """Keep this thread busy as long as the control file says, in shares of a calm step."""
        for kind in HOST_FAULTS:
            if kind in says:
                self._hold_up(kind, says[kind] * calm_s)

    def _hold_up(self, kind: str, seconds: float) -> None:
        match kind:
            case "host":
                time.sleep(seconds)
            case "lock":
                self.busy = self.busy or BusyThread()
                self.busy.wait_for_lock(seconds)
            case "read":
                self._read_samples(seconds)
            case "collect":
                self._collect_garbage(seconds)

    def _read_samples(self, seconds: float) -> None:
        if not self.file.exists():
            self.file.write_bytes(os.urandom(FILE_BYTES))
        flags, buffer = os.O_RDONLY, mmap.mmap(-1, READ_BYTES)
        try:
            file = os.open(self.file, flags | os.O_DIRECT)
        except OSError:  # this file system caches everything
            file = os.open(self.file, flags)
        try:
            until_s, at = time.perf_counter() + seconds, 0
            while time.perf_counter() < until_s:
                at = (at + os.preadv(file, [buffer], at)) % FILE_BYTES
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)

    def _collect_garbage(self, seconds: float) -> None:
        began = time.perf_counter()
        gc.collect()
        took_s = time.perf_counter() - began
        if took_s < seconds:  # the heap grows until a collection takes that long
            more = int(min(max(seconds / max(took_s, 1e-3) - 1, 0.1), 2.0) * 50_000)
            self.garbage.extend([[number] for number in range(more)])
