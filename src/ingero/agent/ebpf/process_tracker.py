"""Traced processes: found, followed through fork and exec, dropped when they end.

Anybody may map a file that is named like a library of CUDA. What such files cost is charged to the
user of the process, and one user does not get all places.
"""

import os
import struct
import time
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.attach import ProbeMode, ProcessProbes, SiteCache, Sites, choose_functions
from ingero.agent.ebpf.functions import FUNCTIONS, LAUNCHES
from ingero.agent.ebpf.loaded import LoadedProbes
from ingero.agent.ebpf.loader.links import LinkCloser
from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.processes.budget import UserBudget
from ingero.agent.processes.discover import (
    Library,
    MappedLibrary,
    mapped_libraries,
    mapped_pages,
    owner_uid,
    process_ids,
    returns_are_safe,
    running_since,
    user_of,
)
from ingero.contract.events import Source
from ingero.errors import IngeroError, Unavailable

_EXEC, _FORK = 5, 7
# scans until the mappings of a process with all libraries are read again
_SETTLED_SCANS: Final = 10
SCAN_SHARE: Final = 0.01  # of one CPU that scans may take
IDLE_SCAN_SHARE: Final = 0.002
LONGEST_SCAN_PAUSE: Final = 5  # times the usual one
# CPU time of one user's mappings and libraries; those of PyTorch take about a second once
CPU_PER_S, CPU_BURST_S = 0.1, 2.0
RESERVE: Final = 8  # one of so many places is kept for users with few processes


class ProcessTracker:
    """Owner of the traced processes.

    `on_end` is called once for each process that ends, while its counts can still be read. `cpu` is
    what the processes of each user may cost; beyond it they are looked at later.
    """

    def __init__(
        self, policy: TracePolicy, probes: LoadedProbes, on_end: Callable[[ProcessProbes], None]
    ) -> None:
        self.policy, self._probes, self._on_end = policy, probes, on_end
        self.processes: dict[int, ProcessProbes] = {}
        self.refused = 0
        self.cpu = UserBudget(CPU_PER_S, CPU_BURST_S)
        self._users: dict[int, int] = {}  # of the traced processes
        self._sites = SiteCache()
        self._closer = LinkCloser()
        self._roots = set(policy.pids or ())
        self._next_scan_s = 0.0
        # mapped pages of each process at the last read
        self._pages: dict[int, int | None] = {}
        self._over_limit: set[int] = set()  # refused because of the limit

    def scan(self, now_s: float) -> None:
        """Find new processes and libraries and drop what ended, when a scan is due.

        A process may end at any point of a scan.
        """
        if now_s < self._next_scan_s:
            return
        began_s = time.thread_time()
        for pid, process in list(self.processes.items()):
            if running_since(pid) != process.started:
                self._drop(pid)
                self._roots.discard(pid)
        ended = {pid for pid in self._roots - self.processes.keys() if running_since(pid) is None}
        self._roots -= ended  # pids are reused
        self._sweep_targets()
        self._probes.table.give_back(self._closer.freed())
        candidates = self._roots if self.policy.pids is not None else {*process_ids(), *self._roots}
        self._rescan([pid for pid in candidates if self._wanted(pid)], now_s)
        # while nothing is traced, looking for the first process is all that a scan does
        share = SCAN_SHARE if self.processes else IDLE_SCAN_SHARE
        usual_s = self.policy.rescan_s
        pause_s = min((time.thread_time() - began_s) / share, LONGEST_SCAN_PAUSE * usual_s)
        self._next_scan_s = time.monotonic() + max(usual_s, pause_s)

    def _rescan(self, pids: list[int], now_s: float) -> None:
        """Read the mappings of processes whose mapped size changed.

        A read takes milliseconds, so unchanged processes are skipped.
        """
        self._pages = {pid: self._pages.get(pid) for pid in pids}
        self._over_limit &= self._pages.keys()
        for pid in pids:
            process = self.processes.get(pid)
            if process is not None and now_s < process.rescan_at_s:
                continue
            pages = mapped_pages(pid)
            if pages != self._pages[pid] or pid in self._over_limit:
                self._pages[pid] = pages
                self._start_tracing(pid)

    def handle_forks_and_execs(self, critical: NDArray[np.void]) -> None:
        """Trace forked children and new programs of traced processes.

        Exits are noticed by the next scan.
        """
        for row in critical[critical["source"] == Source.HOST]:
            pid, op = int(row["pid"]), int(row["op"])
            if op == _FORK:
                self._handle_fork(int(row["arg1"]))
            elif op == _EXEC and pid in self.processes:
                self._drop(pid)  # a new program: old links would count its calls too
                self._roots.add(pid)
                self._start_tracing(pid)

    def add(self, pid: int) -> None:
        """Trace one more process from now on."""
        self._roots.add(pid)
        self._start_tracing(pid)

    def close(self) -> None:
        for pid in list(self.processes):
            self._drop(pid)
        self._closer.close()

    def _wanted(self, pid: int) -> bool:
        if pid == os.getpid():
            return False
        if pid in self._roots:
            return True
        return self.policy.pids is None and (
            self.policy.uid is None or owner_uid(pid) == self.policy.uid
        )

    def _handle_fork(self, pid: int) -> None:
        if self.policy.follow_children:
            self.add(pid)
        # not wanted or already gone, but the kernel added it by itself
        if pid not in self.processes:
            self._roots.discard(pid)
            self._probes.maps["targets"].delete(struct.pack("<I", pid))

    def _start_tracing(self, pid: int) -> None:
        uid = user_of(pid)
        if not self._may_read(pid, uid):
            return
        with self.cpu.cpu_of(uid):
            libraries = mapped_libraries(pid)
        process = self.processes.get(pid)
        if process is None:
            started = running_since(pid)
            if (not libraries and pid not in self._roots) or started is None:
                return
            if not self._has_room(uid):
                self.refused += pid not in self._over_limit
                self._over_limit.add(pid)
                return
            process = self.processes[pid] = ProcessProbes(
                pid, started, entry_only=not returns_are_safe(pid)
            )
            self._users[pid] = uid
            if process.entry_only:
                process.failures["returns"] = (
                    "only entries are probed: on this kernel a seccomp filter could kill it"
                )
            self._open_host(process)
        is_whole = self._attach(process, libraries)
        if is_whole and {library.library for library in libraries} == set(Library):
            process.rescan_at_s = time.monotonic() + _SETTLED_SCANS * self.policy.rescan_s

    def _may_read(self, pid: int, uid: int) -> bool:
        """Return whether a process may cost CPU time now; otherwise a later scan looks at it."""
        if self.cpu.allows(uid, time.monotonic()):
            return True
        self._pages[pid] = None
        return False

    def _has_room(self, uid: int) -> bool:
        """Return whether one more process of a user may be traced.

        The last of the processes and of the slots are for users with few processes.
        """
        own = list(self._users.values()).count(uid)
        places, slots = self.policy.max_processes, len(self._probes.table.rows)
        free = places - len(self.processes)
        is_large = own > 0 and (2 * own >= len(self.processes) or 2 * RESERVE * own >= places)
        is_scarce = free <= places // RESERVE or self._probes.table.free <= slots // RESERVE
        return free > 0 and not (is_large and is_scarce)

    def _attach(self, process: ProcessProbes, libraries: list[MappedLibrary]) -> bool:
        """Probe libraries that are not yet; return False where some wait for a later scan."""
        found: list[tuple[int, Sites]] = []
        uid, is_whole = self._users[process.pid], True
        fresh = [library for library in libraries if library.key not in process.files]
        for index, library in enumerate(fresh):
            if not self._may_read(process.pid, uid):
                is_whole = False
                break
            try:
                with self.cpu.cpu_of(uid):
                    found.append((index, self._sites.sites(process.pid, library)))
            except (IngeroError, OSError) as err:
                process.files[library.key] = library.path
                process.failures[library.path] = str(err)
        if found:
            self._add_sites(process, fresh, found)
        return is_whole

    def _add_sites(
        self, process: ProcessProbes, fresh: list[MappedLibrary], found: list[tuple[int, Sites]]
    ) -> None:
        known = {*process.slots, *(number for _, sites in found for number in sites)}
        chosen = choose_functions(
            known, self.policy.layers, both_launch_layers=self.policy.both_launch_layers
        )
        recordings = {number: self.policy.recording(number) for number in chosen}
        for index, sites in found:
            try:
                process.add(fresh[index], sites, self._probes.table, self._probes.calls, recordings)
            except Unavailable as refused:
                process.failures[fresh[index].path] = str(refused)
        try:
            self._detach_runtime_launches(process, chosen)
        except Unavailable as refused:  # the process has just ended: the next scan drops it
            process.failures["modes"] = str(refused)

    def _detach_runtime_launches(self, process: ProcessProbes, chosen: set[int]) -> None:
        """Detach launches of the runtime where the driver library was loaded later."""
        for number in process.slots.keys() - chosen - process.retired:
            if FUNCTIONS[number].name in LAUNCHES:
                process.set_mode(number, ProbeMode.DETACHED, self._probes.table, self._probes.calls)
                process.retired.add(number)

    def _open_host(self, process: ProcessProbes) -> None:
        recordings = list(self.policy.host_recordings())
        first = self._probes.table.take_run(process.pid, recordings)
        if first is None:
            process.failures["kernel events"] = "no slot is free"
            return
        process.first_host_slot, process.host_slots = first, len(recordings)
        try:
            self._probes.maps["targets"].update(
                struct.pack("<I", process.pid), struct.pack("<I", first)
            )
        except Unavailable as refused:
            process.failures["kernel events"] = str(refused)

    def _sweep_targets(self) -> None:
        """Delete targets that no longer run.

        The kernel adds forked children by itself, and the record of a fork may have been lost.
        """
        targets = self._probes.maps["targets"]
        for key in targets.keys():  # noqa: SIM118 - a kernel map, not a dict
            (pid,) = struct.unpack("<I", key)
            if pid not in self.processes and running_since(pid) is None:
                targets.delete(key)

    def _drop(self, pid: int) -> None:
        process = self.processes.pop(pid)
        del self._users[pid]
        self._probes.maps["targets"].delete(struct.pack("<I", pid))
        links, slots = process.detach(self._probes.table)
        self._on_end(process)
        self._closer.close_later(links, slots)
