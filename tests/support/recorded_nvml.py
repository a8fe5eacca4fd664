"""NVML as values: what `pynvml` returned for some GPUs, given back by the same functions."""

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """What the functions raise."""


@dataclass
class Gpu:
    """The values of one GPU; a value of None is not supported."""

    sm_clock: int | None = 1980
    throttle: int | None = 0
    power_mw: int | None = 640_000
    temperature: int | None = 62
    ecc: tuple[int, int] | None = (0, 0)  # uncorrected, corrected
    pcie: tuple[int, int] | None = (16, 5)  # width, generation
    pids: tuple[int, ...] = ()
    uuid: str = ""


@dataclass
class RecordedNvml:
    """Has the functions of `pynvml` that signals are read with."""

    gpus: list[Gpu]
    xids: deque[tuple[int, int]] = field(default_factory=deque)  # GPU and number
    has_events: bool = True

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_VOLATILE_ECC = 1, 0, 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_MEMORY_ERROR_TYPE_CORRECTED = 1, 0
    nvmlEventTypeXidCriticalError = 8

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is not recorded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return _known(self.gpus[handle].uuid or f"GPU-{handle}")

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        assert kind == self.NVML_CLOCK_SM
        return _known(self.gpus[handle].sm_clock)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return _known(self.gpus[handle].throttle)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return _known(self.gpus[handle].power_mw)

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:
        return _known(self.gpus[handle].temperature)

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        return _known(self.gpus[handle].ecc)[0 if kind else 1]

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return _known(self.gpus[handle].pcie)[0]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:
        return _known(self.gpus[handle].pcie)[1]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.gpus[handle].pids]

    def nvmlEventSetCreate(self) -> object:
        return _known(object() if self.has_events else None)

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: object) -> None:
        assert kinds == self.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        if not self.xids:
            raise NVMLError("timeout")
        gpu, number = self.xids.popleft()
        return SimpleNamespace(device=gpu, eventData=number)


def _known(value: Any) -> Any:
    if value is None:
        raise NVMLError("not supported")
    return value
