"""A cgroup whose processes get nearly all CPU time, so that other load does not disturb a test."""

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

V1 = Path("/sys/fs/cgroup/cpu")


class Apart:
    """A cgroup of the test; without the right to make one it does nothing."""

    def __init__(self) -> None:
        # one at a time on a machine: two tests that measure CPU time would disturb each other
        self._turn = (Path(tempfile.gettempdir()) / "ingero-test-apart.lock").open("w")
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        self.folder = V1 / f"ingero-test-{os.getpid()}"
        self.is_made = False
        with suppress(OSError):
            self.folder.mkdir()
            (self.folder / "cpu.shares").write_text("262144")
            self.is_made = True

    def add(self, pid: int) -> None:
        """Move a process into the cgroup."""
        if self.is_made:
            (self.folder / "cgroup.procs").write_text(str(pid))

    def limited(self, name: str, quota_us: int) -> Path | None:
        """Return a child cgroup that may use `quota_us` of every 100 ms; None without one."""
        if not self.is_made:
            return None
        folder = self.folder / name
        folder.mkdir()
        (folder / "cpu.shares").write_text("262144")
        (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        return folder

    def close(self) -> None:
        """Move what is left back to the root and remove the cgroups."""
        self._turn.close()
        if not self.is_made:
            return
        for folder in (*(path for path in self.folder.iterdir() if path.is_dir()), self.folder):
            for pid in (folder / "cgroup.procs").read_text().split():
                with suppress(OSError):  # it has just ended
                    (V1 / "cgroup.procs").write_text(pid)
            with suppress(OSError):
                folder.rmdir()
