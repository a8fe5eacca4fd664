"""Signals of the GPU that a rank uses, from NVML; what a GPU does not support is left out."""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ingero.agent.host.deadline import DRIVER_S, Deadline
from ingero.agent.host.gpu import start_nvml
from ingero.agent.processes.info import read_environ
from ingero.contract.causes import Signal
from ingero.errors import Unavailable

log = logging.getLogger(__name__)
XID_KEPT_S: Final = 600.0  # an error of the driver explains a slow rank for this long
IDLE: Final = 0x1  # of the driver's mask
# An idle GPU lowers these by itself: they say nothing about how fast it works.
_WHILE_BUSY: Final = (Signal.SM_CLOCK, Signal.POWER, Signal.PCIE_GENERATION)
_COUNTED: Final = (Signal.ECC_ERRORS, Signal.ECC_CORRECTED)
MAX_EVENTS: Final = 64  # that are read at once
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
Answer = TypeVar("Answer")


class GpuSignals:
    """Reads one GPU at a time. `start` returns a module with the functions of `pynvml`.

    The driver is started by the first reading, because that may take a while.
    """

    def __init__(self, start: Callable[[], Any] = start_nvml, seconds: float = DRIVER_S) -> None:
        self._start = start
        self._deadline = Deadline("the NVIDIA driver", seconds)
        self._problem = ""
        self._is_started = False
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._events: Any = None
        self._xids: dict[int, tuple[int, float]] = {}  # by GPU: number, and when it came
        # by GPU and signal: counts of up to two moments at least XID_KEPT_S apart, older first
        self._counts: dict[tuple[int, Signal], list[tuple[float, float]]] = {}
        self._lock = threading.Lock()  # signals and looks are read in different threads

    def read(self, pid: int, local_rank: int | None, now_s: float) -> dict[Signal, float]:
        """Return the signals of the GPU of a process; empty where it is not known.

        They are empty, too, while the driver does not answer, which is logged once.
        """
        return self._asked(lambda: self._read(pid, local_rank, now_s)) or {}

    def uuid(self, pid: int, local_rank: int | None) -> str:
        """Return the UUID of the GPU of a process; empty where it is not known."""
        return self._asked(lambda: self._uuid(pid, local_rank)) or ""

    def _asked(self, question: Callable[[], Answer]) -> Answer | None:
        """Return the driver's answer; None while it does not answer, which is logged once."""
        with self._lock:
            try:
                found = self._deadline.call(lambda: self._opened(question))
            except Unavailable as error:
                if not self._problem:
                    log.warning("gpu_driver_silent", extra={"problem": str(error)})
                self._problem = str(error)
                return None
            if self._problem:
                log.info("gpu_driver_back")
            self._problem = ""
            return found

    def _opened(self, question: Callable[[], Answer]) -> Answer:
        if not self._is_started:
            self._open()
            self._is_started = True
        return question()

    def _uuid(self, pid: int, local_rank: int | None) -> str:
        index = self._gpu_of(pid, local_rank)
        if index is None:
            return ""
        try:
            found = self._nvml.nvmlDeviceGetUUID(self._handles[index])
        except self._nvml.NVMLError:
            return ""
        return found.decode() if isinstance(found, bytes) else str(found)

    def _read(self, pid: int, local_rank: int | None, now_s: float) -> dict[Signal, float]:
        index = self._gpu_of(pid, local_rank)
        if index is None:
            return {}
        nvml, handle = self._nvml, self._handles[index]
        reads: dict[Signal, Callable[[], Any]] = {
            Signal.SM_CLOCK: lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            Signal.THROTTLE: lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            Signal.POWER: lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            Signal.TEMPERATURE: lambda: nvml.nvmlDeviceGetTemperature(
                handle, nvml.NVML_TEMPERATURE_GPU
            ),
            Signal.ECC_ERRORS: lambda: self._ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            Signal.ECC_CORRECTED: lambda: self._ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            Signal.PCIE_WIDTH: lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
            Signal.PCIE_GENERATION: lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        }
        found: dict[Signal, float] = {}
        for signal, read in reads.items():
            try:
                found[signal] = float(read())
            except nvml.NVMLError:
                continue
        if int(found.get(Signal.THROTTLE, 0)) & IDLE:
            for signal in _WHILE_BUSY:
                found.pop(signal, None)
        for signal in _COUNTED:
            if signal in found:
                found[signal] = self._grown(index, signal, found[signal], now_s)
        self._take_events(now_s)
        number, at_s = self._xids.get(index, (0, 0.0))
        found[Signal.XID] = float(number) if now_s - at_s <= XID_KEPT_S else 0.0
        return found

    def _grown(self, index: int, signal: Signal, count: float, now_s: float) -> float:
        """Return how much a counter grew lately: errors of last week explain nothing today."""
        kept = self._counts.setdefault((index, signal), [])
        is_old = bool(kept) and now_s - kept[-1][0] > 2 * XID_KEPT_S  # nobody looked meanwhile
        if not kept or is_old or count < kept[0][1]:  # or the driver was loaded again
            kept[:] = [(now_s, count)]
        elif now_s - kept[-1][0] >= XID_KEPT_S:
            kept[:] = [kept[-1], (now_s, count)]
        return count - kept[0][1]

    def _open(self) -> None:
        nvml = self._nvml = self._start()
        if nvml is None:
            return
        try:
            self._handles = [
                nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
            ]
        except nvml.NVMLError:
            return
        try:
            self._events = nvml.nvmlEventSetCreate()
            for handle in self._handles:
                nvml.nvmlDeviceRegisterEvents(
                    handle, nvml.nvmlEventTypeXidCriticalError, self._events
                )
        except nvml.NVMLError:
            self._events = None  # some GPUs and containers do not deliver events

    def _ecc(self, handle: Any, kind: int) -> int:
        return int(
            self._nvml.nvmlDeviceGetTotalEccErrors(handle, kind, self._nvml.NVML_VOLATILE_ECC)
        )

    def _take_events(self, now_s: float) -> None:
        """Note the errors that the driver reported since the last call."""
        nvml = self._nvml
        for _ in range(MAX_EVENTS if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                index = nvml.nvmlDeviceGetIndex(event.device)
            except nvml.NVMLError:
                return  # a timeout: no more events
            self._xids[int(index)] = (int(event.eventData), now_s)

    def _gpu_of(self, pid: int, local_rank: int | None) -> int | None:
        """Return the GPU on which the driver sees the process, else the one of its local rank."""
        if len(self._handles) <= 1:
            return 0 if self._handles else None
        nvml = self._nvml
        for index, handle in enumerate(self._handles):
            try:
                if any(p.pid == pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)):
                    return index
            except nvml.NVMLError:
                continue
        visible = read_environ(pid).get(_VISIBLE, "")
        order = [int(word) for word in visible.split(",") if word.strip().isdigit()]
        if local_rank is None:
            return order[0] if len(order) == 1 and order[0] < len(self._handles) else None
        if order:
            chosen = order[local_rank] if local_rank < len(order) else order[0]
            return chosen if chosen < len(self._handles) else None
        return local_rank if local_rank < len(self._handles) else None
