"""This machine: load samples every second, and a description for the session row."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from ingero.agent.host.gpu import Gpus
from ingero.agent.host.proc import PROC, CpuTimes, read_cpu_times, read_meminfo
from ingero.contract.node_api import GpuInfo
from ingero.core.chains.evidence import SystemSample
from ingero.errors import Unavailable


class HostSampler:
    """CPU, memory, swap and load; the first reading is None, because it has no CPU share yet."""

    def __init__(self) -> None:
        self._before: CpuTimes | None = None

    def read(self, now_ns: int) -> SystemSample | None:
        """Return a sample; None when /proc cannot be read, and at the first call."""
        try:
            now = read_cpu_times()
            memory = read_meminfo()
            load = float((PROC / "loadavg").read_text().split()[0])
        except (Unavailable, OSError, ValueError, IndexError):
            return None
        before, self._before = self._before, now
        if before is None or now.total <= before.total:
            return None
        busy = 100.0 * (now.busy - before.busy) / (now.total - before.total)
        total, available = memory.get("MemTotal", 0), memory.get("MemAvailable", 0)
        used = 100.0 * (total - available) / total if total else 0.0
        swap = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
        return SystemSample(
            now_ns, min(max(busy, 0.0), 100.0), used, available >> 10, swap >> 10, load
        )


def has_moved(before: SystemSample | None, now: SystemSample, deadband_pct: float) -> bool:
    """Return whether any value changed by more than `deadband_pct` percent (of at least 1)."""
    if before is None:
        return True
    pairs = (
        (before.cpu_pct, now.cpu_pct), (before.mem_pct, now.mem_pct),
        (before.mem_avail_mb, now.mem_avail_mb),
        (before.swap_mb, now.swap_mb), (before.load_avg, now.load_avg),
    )  # fmt: skip
    return any(abs(new - old) > deadband_pct / 100 * max(abs(old), 1.0) for old, new in pairs)


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """What a session row records about the machine; unknown values are empty."""

    gpu_model: str
    gpu_driver: str
    cpu_model: str
    cpu_cores: int
    mem_total_mb: int
    kernel: str
    os_release: str


def read_machine() -> MachineInfo:
    """Read the machine once, at the start of a recording."""
    gpu = read_gpu()
    return MachineInfo(
        gpu_model="" if gpu is None else gpu.model,
        gpu_driver=driver_version(),
        cpu_model=_after_colon(_text(PROC / "cpuinfo"), "model name"),
        cpu_cores=os.cpu_count() or 0,
        mem_total_mb=read_meminfo().get("MemTotal", 0) >> 10,
        kernel=platform.release(),
        os_release=_pretty_name(_text(Path("/etc/os-release"))),
    )


def read_gpu() -> GpuInfo | None:
    """Return the GPUs of this machine as its API shows them; None without any."""
    try:
        return GpuInfo(Gpus().info().label, driver_version())
    except Unavailable:
        return None


def driver_version() -> str:
    """Return the version of the NVIDIA kernel driver; empty without one."""
    words = _text(PROC / "driver" / "nvidia" / "version").partition("\n")[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _after_colon(text: str, name: str) -> str:
    line = next((line for line in text.splitlines() if line.startswith(name)), "")
    return line.partition(":")[2].strip()


def _pretty_name(text: str) -> str:
    line = next((line for line in text.splitlines() if line.startswith("PRETTY_NAME=")), "")
    return line.partition("=")[2].strip().strip('"')
