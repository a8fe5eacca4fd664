"""The processes that rings belong to, also in containers with their own pids."""

import time
from dataclasses import dataclass
from pathlib import Path

from ingero.agent.processes.discover import process_ids, running_since
from ingero.contract.nccl_ring import RingHeader

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
INDEX_MAX_AGE_S = 1.0


@dataclass(frozen=True, slots=True)
class Process:
    """A running process as seen from here."""

    pid: int
    uids: frozenset[int]


class ProcessIndex:
    """All processes by start time, read at most once a second.

    A ring in another pid namespace is compared with every process; anybody may make many.
    """

    def __init__(self) -> None:
        self._read_s: float | None = None
        self._by_start: dict[int, list[int]] = {}

    def find(self, header: RingHeader, now_s: float | None = None) -> Process | None:
        """Find the running process that made a ring."""
        for pid in self._candidates(header, time.monotonic() if now_s is None else now_s):
            if running_since(pid) == header.start_ticks:
                fields = read_status(pid)
                if fields.get("NSpid", [str(pid)])[-1] == str(header.pid):
                    return Process(pid, frozenset(int(uid) for uid in fields.get("Uid", [])))
        return None

    def is_gone(self, header: RingHeader, now_s: float | None = None) -> bool:
        """Return whether the process has certainly ended; False where it is not visible."""
        if header.pid_namespace == pid_namespace():
            return running_since(header.pid) != header.start_ticks
        return pid_namespace() == INITIAL_PID_NAMESPACE and self.find(header, now_s) is None

    def _candidates(self, header: RingHeader, now_s: float) -> list[int]:
        if header.pid_namespace == pid_namespace():
            return [header.pid]
        if self._read_s is None or now_s - self._read_s >= INDEX_MAX_AGE_S:
            self._read_s, self._by_start = now_s, {}
            for pid in sorted(process_ids()):
                started = running_since(pid)
                if started is not None:
                    self._by_start.setdefault(started, []).append(pid)
        return self._by_start.get(header.start_ticks, [])


def read_status(pid: int) -> dict[str, list[str]]:
    """Return the fields of /proc/PID/status; none when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n"))
    return {name: rest.split() for name, _, rest in lines}


def pid_namespace() -> int:
    """Return what identifies the pid namespace of this process."""
    return Path("/proc/self/ns/pid").stat().st_ino
