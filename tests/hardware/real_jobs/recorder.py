"""Keeps every record of the rings of a job, and how far each ring was at the end of a phase."""

import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from ingero.agent.nccl.folders import ring_files
from ingero.agent.nccl.reader import RingReader
from ingero.contract.nccl_ring import Records
from ingero.errors import IngeroError

POLL_S = 1.0


class Recorder:
    """Reads all rings in a folder once a second, beside the agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.readers: dict[str, RingReader] = {}
        self.parts: dict[str, list[Records]] = {}
        self.marks: list[tuple[str, dict[str, int]]] = []
        self.heads: dict[str, bytes] = {}
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def mark(self, name: str) -> None:
        """Remember how far every ring is at the end of a phase."""
        with self._lock:
            self._poll()
            at = {ring: int(parts[-1]["stamp"][-1]) for ring, parts in self.parts.items() if parts}
            self.marks.append((name, at))

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        with self._lock:
            self._poll()
            for reader in self.readers.values():
                reader.close()

    def records(self) -> dict[str, Records]:
        """Return all records of every ring, oldest first."""
        return {ring: np.concatenate(parts) for ring, parts in self.parts.items() if parts}

    def _run(self) -> None:
        while not self._end.wait(POLL_S):
            with self._lock:
                self._poll()

    def _poll(self) -> None:
        for path in filter(None, ring_files((self.folder,))):
            if path.name not in self.readers:
                with suppress(IngeroError, OSError):
                    self.readers[path.name] = RingReader(path)
        for name, reader in self.readers.items():
            with suppress(IngeroError, OSError):
                records = reader.poll(time.monotonic())
                if len(records):
                    self.parts.setdefault(name, []).append(records.copy())
                self.heads[name] = reader._bytes(reader.header.records_at, 0)
