"""GPU memory, model and throttling, from NVML or else from nvidia-smi."""

import contextlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ingero.agent.host.deadline import DRIVER_S, Deadline
from ingero.children.output import output_of
from ingero.core.health.observation import GpuInfo
from ingero.errors import Unavailable

SMI_TIMEOUT_S = 2.0
MAX_SMI_BYTES = 4096
MAX_THROTTLE_BYTES = 8192
_MEMORY_QUERY = ("--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits")
_THROTTLE_QUERY = ("--query-gpu=uuid,clocks_throttle_reasons.active", "--format=csv,noheader")
_UNSUPPORTED = frozenset({"[not supported]", "[n/a]", "n/a"})
_NAME_QUERY = ("--query-gpu=name", "--format=csv,noheader")
_MIB = 1 << 20  # the unit of nvidia-smi


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory summed over the visible GPUs, in bytes."""

    used: int
    total: int

    @property
    def headroom(self) -> float:
        """The free share."""
        return min(max((self.total - self.used) / self.total, 0.0), 1.0)


def start_nvml() -> Any:
    """Return the NVML module, initialised; None without a driver."""
    try:
        import pynvml  # noqa: PLC0415 - loads the driver library

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - a half-installed driver may raise anything
        return None
    return pynvml


class Gpus:
    """Reads NVML, else nvidia-smi; raises Unavailable with the reason when neither works.

    Every question has a deadline: "the driver does not answer" is such a reason.
    """

    def __init__(self, start: Callable[[], Any] = start_nvml, seconds: float = DRIVER_S) -> None:
        self._deadline = Deadline("the NVIDIA driver", seconds)
        self._silence = ""
        self._nvml: Any = None
        try:
            self._nvml = self._deadline.call(start)
        except Unavailable as error:
            self._silence = str(error)
        self._smi = None if self._nvml else shutil.which("nvidia-smi")

    def memory(self) -> GpuMemory:
        """Return used and total memory."""
        return self._deadline.call(self._memory)

    def info(self) -> GpuInfo:
        """Return the model of the first GPU and the number of GPUs."""
        return self._deadline.call(self._info)

    def throttle(self) -> dict[str, int]:
        """Return the throttle mask of each GPU by UUID. Raises Unavailable.

        GPUs that do not support it are left out.
        """
        return self._deadline.call(self._throttle)

    def _memory(self) -> GpuMemory:
        if self._nvml is None:
            return parse_memory(self._ask(_MEMORY_QUERY))
        try:
            readings = [self._nvml.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles()]
        except self._nvml.NVMLError as error:
            raise Unavailable(f"NVML does not answer: {error}") from None
        if not readings or sum(reading.total for reading in readings) <= 0:
            raise Unavailable("NVML lists no GPU memory")
        return GpuMemory(sum(int(r.used) for r in readings), sum(int(r.total) for r in readings))

    def _info(self) -> GpuInfo:
        if self._nvml is None:
            return parse_names(self._ask(_NAME_QUERY))
        try:
            handles = self._handles()
            name = self._nvml.nvmlDeviceGetName(handles[0]) if handles else ""
        except self._nvml.NVMLError as error:
            raise Unavailable(f"NVML does not answer: {error}") from None
        if not name:
            raise Unavailable("NVML lists no GPU")
        return GpuInfo(name.decode() if isinstance(name, bytes) else str(name), len(handles))

    def _throttle(self) -> dict[str, int]:
        if self._nvml is None:
            return parse_throttle(self._ask(_THROTTLE_QUERY, MAX_THROTTLE_BYTES))
        found: dict[str, int] = {}
        try:
            for handle in self._handles():
                uuid = self._nvml.nvmlDeviceGetUUID(handle)
                with contextlib.suppress(self._nvml.NVMLError_NotSupported):
                    mask = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
                    found[uuid.decode() if isinstance(uuid, bytes) else str(uuid)] = int(mask)
        except self._nvml.NVMLError as error:
            raise Unavailable(f"NVML does not answer: {error}") from None
        return found

    def _handles(self) -> list[Any]:
        nvml: Any = self._nvml
        return [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]

    def _ask(self, query: tuple[str, ...], limit_bytes: int = MAX_SMI_BYTES) -> str:
        if self._silence:
            raise Unavailable(self._silence)
        if self._smi is None:
            raise Unavailable("no NVIDIA driver library and no nvidia-smi on the PATH")
        return output_of([self._smi, *query], limit_bytes, SMI_TIMEOUT_S)


def parse_memory(text: str) -> GpuMemory:
    """Parse lines of `used, total`; one bad line makes the reading invalid. Raises Unavailable."""
    used = total = 0
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = [field.strip() for field in line.split(",")]
        if (
            len(fields) != 2
            or not all(field.isascii() and field.isdigit() for field in fields)
            or int(fields[1]) == 0
        ):
            raise Unavailable(f"nvidia-smi printed {line[:80]!r} instead of used and total memory")
        used, total = used + int(fields[0]) * _MIB, total + int(fields[1]) * _MIB
    if total == 0:
        raise Unavailable("nvidia-smi lists no GPU")
    return GpuMemory(used, total)


def parse_throttle(text: str) -> dict[str, int]:
    """Parse lines of `uuid, mask`, the mask hexadecimal or decimal. Raises Unavailable.

    GPUs that do not support it are left out.
    """
    found: dict[str, int] = {}
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        uuid, comma, mask = (part.strip() for part in line.partition(","))
        if mask.lower() in _UNSUPPORTED:
            continue
        if (
            not comma
            or not uuid
            or not re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,19}", mask, re.ASCII)
        ):
            raise Unavailable(
                f"nvidia-smi printed {line[:80]!r} instead of a GPU and its throttle reasons"
            )
        found[uuid] = int(mask, 16) if mask[:2].lower() == "0x" else int(mask)
    if not lines:
        raise Unavailable("nvidia-smi lists no GPU")
    return found


def parse_names(text: str) -> GpuInfo:
    """Parse one GPU name per line. Raises Unavailable."""
    names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names:
        raise Unavailable("nvidia-smi lists no GPU")
    return GpuInfo(names[0], len(names))
