"""Sources of the four signals: trace database, /proc and NVML; a recorded file; or constants."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from ingero.agent.host import proc
from ingero.agent.host.gpu import Gpus
from ingero.agent.push.cgroup_counters import CgroupCounters
from ingero.contract.push.encode import MemoryReport
from ingero.core.health.observation import GpuInfo, Observation
from ingero.core.health.score import Signals
from ingero.core.health.throttle import ThrottleReason, decode_throttle
from ingero.core.recording.gpu_memory import HeldMemory, add_up
from ingero.errors import MalformedInput, StoreError, TooLarge, Unavailable
from ingero.files import read_regular
from ingero.storage.trace.aggregates import TraceReader

log = logging.getLogger(__name__)

MAX_LAUNCHES = 2**31 - 1
MAX_REPLAY_BYTES = 256 << 20


class SignalSource(Protocol):
    """A source that is read once per tick; None means that it has ended."""

    def read(self, now_ns: int) -> Observation | None: ...

    def close(self) -> None: ...


class StubSource:
    """Constant signals, to try a Fleet without a GPU."""

    def read(self, now_ns: int) -> Observation:
        return Observation(at_s=now_ns / 1e9, launches=10, signals=Signals(100.0, 0.9, 0.9, 0.9))

    def close(self) -> None:
        pass


class ReplayLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One recorded observation: raw signals as measured.

    A missing key is a signal that was not measured.
    """

    launches: int | None = None
    throughput: float | None = None
    compute: float | None = None
    memory: float | None = None
    cpu: float | None = None


class ReplaySource:
    """One line of JSON per tick, in order, until the end of the file.

    The file is read once, so that errors show at the start.
    """

    def __init__(self, path: Path) -> None:
        try:
            lines = read_regular(path, MAX_REPLAY_BYTES).splitlines()
        except OSError as error:
            raise MalformedInput(f"cannot read {path}: {error.strerror}") from None
        except TooLarge as error:
            raise MalformedInput(f"{error}; shorten the recording") from None
        decoder = msgspec.json.Decoder(ReplayLine)
        self._lines: list[ReplayLine] = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    self._lines.append(decoder.decode(line))
                except msgspec.MsgspecError as error:
                    raise MalformedInput(f"{path}:{number}: {error}") from None
        if not self._lines:
            raise MalformedInput(
                f"{path} holds no recorded signals; it needs one JSON object per line"
            )
        self._next = 0

    def read(self, now_ns: int) -> Observation | None:
        if self._next == len(self._lines):
            return None
        line = self._lines[self._next]
        self._next += 1
        return Observation(
            at_s=now_ns / 1e9,
            launches=line.launches,
            signals=Signals(line.throughput, line.compute, line.memory, line.cpu),
            problem="" if line.launches is not None else "recorded as failed",
        )

    def close(self) -> None:
        pass


class TraceSource:
    """The trace database, /proc and NVML.

    Signals that are not available are left out, and this is logged once.
    """

    def __init__(
        self,
        database: Path,
        *,
        window_s: float,
        num_gpus: int,
        gpus: Gpus,
        cgroup_of: Callable[[int], str],
        now_ns: int,
        proc_path: Path = proc.PROC,
    ) -> None:
        self._reader = TraceReader(database)
        self._counters = CgroupCounters(self._reader, cgroup_of, now_ns)
        self._window_s = window_s
        self._num_gpus = num_gpus
        self._gpus = gpus
        self._proc = proc_path
        self._cpu_before: proc.CpuTimes | None = None
        self._problems: dict[str, str] = {}
        self._seen_database = False
        self._info: GpuInfo | None = None
        self._used_bytes = 0  # of all GPUs, as the driver says

    def read(self, now_ns: int) -> Observation:
        memory, cpu = self._memory(), self._cpu()
        seen = Observation(
            at_s=now_ns / 1e9,
            launches=0,
            signals=Signals(memory=memory, cpu=cpu),
            gpu=self._gpu(),
            throttle=self._throttle(),
        )
        if not self._seen_database and not self._reader.path.exists():
            self._note("trace", f"waiting for {self._reader.path}; record it with `ingero trace`")
            return seen  # nothing was ever recorded here: no launches, no throughput
        try:
            self._reader.check_recorder(now_ns)
            totals = self._reader.window(now_ns, self._window_s)
            cgroups = self._counters.read(now_ns)
            held = self._reader.memory(now_ns)
        except StoreError as error:
            self._note("trace", str(error))
            return replace(seen, launches=None, problem=str(error))
        self._seen_database = True
        self._note("trace", "")
        gpus = self._num_gpus or (self._info.count if self._info else 1)
        return replace(
            seen,
            launches=min(totals.launches, MAX_LAUNCHES),
            signals=Signals(
                totals.launches / self._window_s,
                min(max(totals.gpu_call_ns / (self._window_s * 1e9 * gpus), 0.0), 1.0),
                memory,
                cpu,
            ),
            totals=cgroups,
            totals_since_ns=self._counters.since_ns,
            memory=self._held(add_up(held)) if held else None,
            evicted_cgroups=self._counters.evicted,
            straggles=self._counters.straggles,
        )

    def close(self) -> None:
        self._reader.close()

    def _memory(self) -> float | None:
        """Return free GPU memory; host memory only where there is no GPU."""
        try:
            used = self._gpus.memory()
        except Unavailable as error:
            self._note("gpu", str(error))
        else:
            self._note("gpu", "")
            self._used_bytes = used.used
            return used.headroom
        self._used_bytes = 0
        try:
            headroom = proc.host_memory_headroom(self._proc)
        except Unavailable as error:
            self._note("memory", str(error))
            return None
        self._note("memory", "")
        return headroom

    def _held(self, memory: HeldMemory) -> MemoryReport:
        """Return what processes hold; the driver knows better how much of it is reserved."""
        return MemoryReport(
            allocated_bytes=memory.allocated,
            reserved_bytes=max(memory.reserved, self._used_bytes),
            largest_free_bytes=memory.largest_free,
            fragmentation=memory.fragmentation,
        )

    def _cpu(self) -> float | None:
        try:
            now = proc.read_cpu_times(self._proc)
        except Unavailable as error:
            self._note("cpu", str(error))
            return None
        self._note("cpu", "")
        availability = proc.cpu_availability(self._cpu_before, now)
        self._cpu_before = now
        return availability

    def _gpu(self) -> GpuInfo | None:
        if self._info is None and not self._problems.get("gpu"):
            try:
                self._info = self._gpus.info()
            except Unavailable:
                return None
        return self._info

    def _throttle(self) -> dict[str, frozenset[ThrottleReason]]:
        if self._problems.get("gpu"):
            return {}
        try:
            return {gpu: decode_throttle(mask) for gpu, mask in self._gpus.throttle().items()}
        except Unavailable:
            return {}

    def _note(self, what: str, problem: str) -> None:
        """Log when a source fails and when it works again, never per tick."""
        if problem and not self._problems.get(what):
            log.warning("signal_source_lost", extra={"source": what, "problem": problem})
        elif not problem and self._problems.get(what):
            log.info("signal_source_back", extra={"source": what})
        self._problems[what] = problem
