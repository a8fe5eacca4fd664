"""Faults that come from outside the job: a busy program on a rank's core, or a CPU quota."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
SPIN = "while True: pass"


class Pressure:
    """Slows one process until it is closed."""

    def __init__(self, pid: int, fault: dict[str, Any]) -> None:
        self.pid, self.hogs = pid, []
        self.cores = os.sched_getaffinity(pid)
        self.cgroup: Path | None = None
        if "hog" in fault:
            self._share_core(fault["hog"])
        if "quota" in fault:
            self._limit(fault["quota"])

    def _share_core(self, hogs: int) -> None:
        core = {max(self.cores)}
        self._pin(core)
        for _ in range(hogs):
            hog = subprocess.Popen([sys.executable, "-c", SPIN])
            os.sched_setaffinity(hog.pid, core)
            self.hogs.append(hog)

    def _pin(self, cores: set[int]) -> None:
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(OSError):
                os.sched_setaffinity(int(thread.name), cores)

    def _limit(self, share: float) -> None:
        lines = Path(f"/proc/{self.pid}/cgroup").read_text().splitlines()
        quota_us = int(share * PERIOD_US)
        if (CGROUPS / "cpu" / "cpu.cfs_quota_us").exists():  # the first version of cgroups
            path = next(line.rpartition(":")[2] for line in lines if ":cpu" in line)
            self.home = CGROUPS / "cpu" / path.lstrip("/")
            self.cgroup = CGROUPS / "cpu" / f"real-jobs-{self.pid}"
            self.cgroup.mkdir(exist_ok=True)
            (self.cgroup / "cpu.cfs_quota_us").write_text(str(quota_us))
            (self.cgroup / "cgroup.procs").write_text(str(self.pid))
            return
        self.home = CGROUPS / lines[-1].rpartition(":")[2].lstrip("/")
        with suppress(OSError):
            (CGROUPS / "cgroup.subtree_control").write_text("+cpu")
        self.cgroup = CGROUPS / f"real-jobs-{self.pid}"
        self.cgroup.mkdir(exist_ok=True)
        (self.cgroup / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        (self.cgroup / "cgroup.procs").write_text(str(self.pid))

    def close(self) -> None:
        for hog in self.hogs:
            hog.kill()
            hog.wait()
        if self.hogs:
            with suppress(OSError):
                self._pin(self.cores)
        if self.cgroup is not None:
            with suppress(OSError):
                (self.home / "cgroup.procs").write_text(str(self.pid))
                self.cgroup.rmdir()
