"""GPU memory and model: NVML where its library is there, nvidia-smi where only the tool is, else absent."""

import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from ingero.errors import Unavailable

SMI_TIMEOUT_S = 2.0
MAX_SMI_BYTES = 4096
_MEMORY_QUERY = ("--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits")
_NAME_QUERY = ("--query-gpu=name", "--format=csv,noheader")


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Summed over the visible GPUs, in any one unit."""

    used: int
    total: int

    @property
    def headroom(self) -> float:
        """The free share."""
        return min(max((self.total - self.used) / self.total, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """What is built in."""

    model: str
    count: int


class Gpus:
    """Asks NVML, else nvidia-smi; raises Unavailable with the reason when neither answers."""

    def __init__(self) -> None:
        self._nvml = _start_nvml()
        self._smi = None if self._nvml else shutil.which("nvidia-smi")

    def memory(self) -> GpuMemory:
        """Used and total memory now."""
        if self._nvml is None:
            return parse_memory(self._ask(_MEMORY_QUERY))
        try:
            readings = [self._nvml.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles()]
        except self._nvml.NVMLError as error:
            raise Unavailable(f"NVML does not answer: {error}") from None
        if not readings or sum(reading.total for reading in readings) <= 0:
            raise Unavailable("NVML lists no GPU memory")
        return GpuMemory(sum(int(r.used) for r in readings), sum(int(r.total) for r in readings))

    def info(self) -> GpuInfo:
        """Model of the first GPU, and how many there are."""
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

    def _handles(self) -> list[Any]:
        nvml: Any = self._nvml
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    def _ask(self, query: tuple[str, ...]) -> str:
        if self._smi is None:
            raise Unavailable("no NVIDIA driver library and no nvidia-smi on the PATH")
        try:
            done = subprocess.run([self._smi, *query], capture_output=True, timeout=SMI_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"nvidia-smi does not answer: {error}") from None
        if done.returncode != 0:
            raise Unavailable(f"nvidia-smi failed with status {done.returncode}")
        if len(done.stdout) > MAX_SMI_BYTES:
            raise Unavailable("nvidia-smi printed more than expected")
        return done.stdout.decode(errors="replace")


def parse_memory(text: str) -> GpuMemory:
    """`used, total` per line; one bad line makes the whole reading worthless. Raises Unavailable."""
    used = total = 0
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 2 or not all(field.isascii() and field.isdigit() for field in fields) or int(fields[1]) == 0:
            raise Unavailable(f"nvidia-smi printed {line[:80]!r} instead of used and total memory")
        used, total = used + int(fields[0]), total + int(fields[1])
    if total == 0:
        raise Unavailable("nvidia-smi lists no GPU")
    return GpuMemory(used, total)


def parse_names(text: str) -> GpuInfo:
    """One GPU name per line. Raises Unavailable."""
    names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names:
        raise Unavailable("nvidia-smi lists no GPU")
    return GpuInfo(names[0], len(names))


def _start_nvml() -> Any:
    try:
        import pynvml  # noqa: PLC0415 - looks for the driver library, which most machines lack

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - whatever a half-installed driver raises, the answer is: no NVML
        return None
    return pynvml
