"""Processes beside the job: what advice may say about them without doing harm.

Advice never touches kernel threads, the first process of the system or Ingero itself. It names a
unit or a cgroup rather than single processes, and says when a process belongs to another user.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_FIRST_USER_PID = 3  # 1 is init, 2 is the parent of all kernel threads
# for recordings, which keep only names
_KERNEL_NAMES = re.compile(
    r"(rcu_|kworker|ksoftirqd|migration/|kswapd|kcompactd|khugepaged|kthreadd|irq/|idle_inject/"
    r"|cpuhp/|watchdog/|jbd2/|xfsaild|scsi_|nv_queue|nvidia-modeset|swapper|kdamond|oom_reaper"
    r"|writeback|kblockd|ksmd|md\d+_raid)"
)
_OURS = re.compile(r"ingero(-fleet|-echo)?")
_UNIT = re.compile(r"[\w@.:\\-]+\.(service|scope)")


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A process as far as it is known; `uid` is None where only its name was recorded."""

    name: str = ""
    uid: int | None = None
    is_kernel: bool = False
    cgroup: str = ""
    is_ours: bool = False

    @property
    def unit(self) -> str:
        """The innermost systemd unit of its cgroup, empty where there is none."""
        found = [part for part in self.cgroup.split("/") if _UNIT.fullmatch(part)]
        return found[-1] if found else ""

    @property
    def is_protected(self) -> bool:
        """Whether advice must leave it alone: the kernel's own, or Ingero itself."""
        by_name = _KERNEL_NAMES.match(self.name) or _OURS.fullmatch(self.name)
        return self.is_kernel or self.is_ours or by_name is not None


_UNKNOWN = Neighbour()


@dataclass(frozen=True, slots=True)
class Host:
    """The facts that recommendations name: number of cores, and processes by pid."""

    cpus: int = 0
    names: Mapping[int, str] = field(default_factory=dict)
    neighbours: Mapping[int, Neighbour] = field(default_factory=dict)

    def neighbour(self, pid: int) -> Neighbour:
        """Return what is known of a process."""
        found = self.neighbours.get(pid, _UNKNOWN)
        return found if found.name else Neighbour(self.names.get(pid, ""))

    def may_change(self, pid: int) -> bool:
        """Return whether advice may change how a process runs."""
        return pid >= _FIRST_USER_PID and not self.neighbour(pid).is_protected

    def describe(self, pid: int) -> str:
        """Return `rsync (pid 812)`, or `pid 812` if the name is unknown."""
        name = self.neighbour(pid).name
        return f"{name} (pid {pid})" if name else f"pid {pid}"

    def describe_for(self, pid: int, job: int) -> str:
        """Return the same, and say where it belongs to another user than the job."""
        uid, own = self.neighbour(pid).uid, self.neighbour(job).uid
        is_foreign = uid is not None and own is not None and uid != own
        return f"{self.describe(pid)} of user {uid}" if is_foreign else self.describe(pid)

    def groups_of(self, pids: Sequence[int], job: int) -> list[tuple[str, list[int]]]:
        """Group processes by the cgroup that can be limited instead of them.

        The group is empty for processes without a cgroup of their own, and for those that share
        it with the job: limiting that cgroup would slow down the job itself.
        """
        own, grouped = self.neighbour(job).cgroup, dict[str, list[int]]()
        for pid in pids:
            group = self.neighbour(pid).cgroup.rstrip("/")
            is_usable = group and not f"{own}/".startswith(f"{group}/")
            grouped.setdefault(group if is_usable else "", []).append(pid)
        return list(grouped.items())
