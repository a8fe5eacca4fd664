"""What the jobs of one node share: the folder of their rings, Fleet and agent, and their start."""

import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from tests.hardware.real_jobs.services import Services

START_S = 120.0  # for the slowest job


class Node:
    """One Fleet and one agent beside the jobs of these modes, whose phases begin together."""

    def __init__(self, folder: Path, modes: tuple[str, ...]) -> None:
        self.folder, self.modes = folder, modes
        self.rings = Path(tempfile.mkdtemp(prefix="ingero-real-jobs-", dir="/dev/shm"))
        self.services = Services(self.rings, folder)
        self.began = 0.0
        self._all_up = threading.Barrier(len(modes), self._begin)

    def _begin(self) -> None:
        self.began = time.monotonic()

    def wait_for_others(self) -> float:
        """Return when the phases begin; a job whose neighbour fails goes on without it."""
        with suppress(threading.BrokenBarrierError):
            self._all_up.wait(START_S)
        return self.began or time.monotonic()

    def leave(self) -> None:
        """Say that a job has ended: nobody waits for it any more."""
        self._all_up.abort()

    def close(self) -> None:
        self.services.close()
        shutil.rmtree(self.rings, ignore_errors=True)
