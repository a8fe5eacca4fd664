"""Checks whether this node can be traced; each states what a missing piece costs and the fix."""

import os
import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero.agent.host.gpu import Gpus
from ingero.agent.host.machine import driver_version
from ingero.agent.host.privileges import (
    CAPABILITIES,
    OPTIONAL_CAPABILITIES,
    STATUS,
    is_filtered,
    missing_capabilities,
)
from ingero.agent.processes.discover import mapped_libraries, process_ids
from ingero.compiled import PURE_VARIABLE, missing_parts, parts_in_use
from ingero.config.ingero import trace_database
from ingero.errors import IngeroError, Unavailable
from ingero.storage.trace.reading import connect_readonly

MIN_KERNEL: Final = (5, 15)
DRM: Final = Path("/sys/class/drm")
AMD_VENDOR: Final = "0x1002"
TESTED_DRIVER: Final = 550
BTF: Final = Path("/sys/kernel/btf/vmlinux")
YAMA: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_LIBRARY_DIRS: Final = (
    "/usr/local/cuda/lib64", "/usr/local/cuda-13/lib64", "/usr/local/cuda-12/lib64",
    "/usr/local/cuda-11/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/opt/conda/lib", "/usr/lib64", "/usr/lib",
)  # fmt: skip
_PACKAGE_MANAGERS: Final = {
    "apt-get": "apt-get install linux-image-$(uname -r)",
    "dnf": "dnf install kernel-core",
    "yum": "yum install kernel",
    "pacman": "pacman -S linux",
    "zypper": "zypper install kernel-default",
    "apk": "apk add linux-lts",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `ingero check`. A failed optional check does not fail the run."""

    name: str
    passed: bool
    value: str
    detail: str = ""
    recommendation: str = ""
    optional: bool = False


def run_checks(db: Path | None = None) -> list[Check]:
    """Run all local checks, in the order a person would ask."""
    checks: tuple[Callable[[], Check], ...] = (
        check_kernel, check_btf, check_privileges, check_probes, check_driver, check_gpu,
        check_cudart, check_cuda, check_processes, check_ptrace_scope, check_compiled,
    )  # fmt: skip
    return [*(check() for check in checks), *check_amd(), check_database(db)]


def check_compiled() -> Check:
    """Return which compiled parts are in use; without them everything works, only slower."""
    missing = missing_parts()
    if not missing:
        return Check("compiled parts", True, ", ".join(parts_in_use()))
    return Check(
        "compiled parts",
        False,
        f"not in use: {', '.join(missing)}",
        "pure Python gives the same results; exports and a busy Fleet or Echo need more CPU",
        f"install a C compiler, install ingero again, and leave {PURE_VARIABLE} unset",
        optional=True,
    )


def check_kernel(release: str | None = None) -> Check:
    """Check for Linux 5.15 or newer.

    Probes are tried at run time, so an older kernel with backports may work.
    """
    text = release or platform.release()
    match = re.match(r"(\d+)\.(\d+)", text)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version >= MIN_KERNEL:
        detail = (
            "" if version >= (6, 6) else "before 6.6 removing probes is slow (about 0.1 s each)"
        )
        return Check("kernel", True, text, detail)
    return Check(
        "kernel", False, text, "5.15 or newer is needed to trace", "upgrade the kernel of this host"
    )


def check_btf(path: Path = BTF) -> Check:
    """Check for kernel type information, without which host evidence is missing."""
    if path.is_file():
        return Check("kernel types (BTF)", True, f"{path.stat().st_size >> 20} MB")
    manager = next((name for name in _PACKAGE_MANAGERS if shutil.which(name)), None)
    command = f": {_PACKAGE_MANAGERS[manager]}" if manager else ""
    install = f"install a kernel built with CONFIG_DEBUG_INFO_BTF{command}"
    detail = "without it causes on the host (preemption, disk, network) stay unknown"
    return Check("kernel types (BTF)", False, "missing", detail, install)


def check_privileges() -> Check:
    """Check for root, or the capabilities that replace it."""
    missing = missing_capabilities()
    if not missing:
        return Check("privileges", True, "root" if os.geteuid() == 0 else "all capabilities")
    costs = "; ".join(f"{name}: {CAPABILITIES[name][1]}" for name in missing)
    lacking = f"lacks {', '.join(missing)}"
    needed = [name for name in missing if name not in OPTIONAL_CAPABILITIES]
    advice = "run `sudo ingero trace`"
    return Check("privileges", False, lacking, costs, advice, optional=not needed)


def check_probes() -> Check:
    """Load and remove every probe, the only reliable way to know whether this kernel allows it."""
    if set(missing_capabilities()) - OPTIONAL_CAPABILITIES:
        return Check(
            "probes",
            False,
            "not tried",
            "requires the capabilities above",
            "run `sudo ingero check`",
            optional=True,
        )
    from ingero.agent.ebpf.policy import CALL_LAYERS, TracePolicy  # noqa: PLC0415 - only if allowed
    from ingero.agent.ebpf.tracer import Tracer  # noqa: PLC0415 - only if allowed

    tracer = Tracer(TracePolicy(pids=()))
    try:
        tracer.start()
    except IngeroError as error:
        return Check("probes", False, "none", str(error), _advice_for_probes())
    try:
        found = tracer.capabilities()
    finally:
        tracer.close()
    off = [one for one in found if not one.on]
    names = ", ".join(sorted(one.name for one in found if one.on))
    detail = "; ".join(f"without {one.name}: {one.detail}" for one in off)
    if not any(one.on and one.name in CALL_LAYERS for one in found):
        detail = f"no call of a job can be seen; {detail}"
        return Check("probes", False, names or "none", detail, _advice_for_probes())
    return Check("probes", True, names, detail)


def _advice_for_probes(status: Path = STATUS) -> str:
    """Return what to do where the capabilities are there and `bpf()` is refused all the same.

    Runtimes of containers filter system calls; older ones allow `bpf()` with CAP_SYS_ADMIN only.
    """
    if is_filtered(status):
        return (
            "system calls of this process are filtered (seccomp), and the filter refuses bpf() or "
            "perf_event_open(); use a runtime whose default profile allows them with CAP_BPF and "
            "CAP_PERFMON (containerd 2), or run without the filter (seccomp=unconfined)"
        )
    return "see docs/deployment.md for what the kernel must allow"


def check_driver() -> Check:
    """Check the driver version; any driver can be traced, 550 and later were tested."""
    version = driver_version()
    if not version:
        return Check(
            "NVIDIA driver", False, "missing",
            "no GPU work can run here; demos and recorded files work without it",
            "install the NVIDIA driver if this is a GPU node", optional=True,
        )  # fmt: skip
    tested = version.split(".")[0].isdigit() and int(version.split(".")[0]) >= TESTED_DRIVER
    return Check(
        "NVIDIA driver",
        True,
        version,
        "" if tested else f"older than {TESTED_DRIVER}: works, but was not tested",
    )


def check_gpu() -> Check:
    """Check which GPUs NVML or nvidia-smi lists."""
    try:
        gpu = Gpus().info()
    except Unavailable as error:
        return Check(
            "GPU",
            False,
            "none visible",
            str(error),
            "in a container, pass the GPU through",
            optional=True,
        )
    return Check("GPU", True, f"{gpu.count} x {gpu.model}")


def check_amd(drm: Path = DRM) -> list[Check]:
    """Return what works on AMD GPUs, where there are any."""
    vendors = [path.read_text().strip() for path in sorted(drm.glob("card*/device/vendor"))]
    count = vendors.count(AMD_VENDOR)
    if not count:
        return []
    return [
        Check(
            "AMD GPU",
            False,
            f"{count} found",
            "traced: the kernel and host layers (scheduler, memory, disk, network); "
            "not traced: HIP calls, RCCL collectives, and clocks, power and memory of the GPU",
            "record the kernel and host layers with `ingero trace`",
            optional=True,
        )
    ]


def check_cudart() -> Check:
    """Check for the CUDA runtime, installed or mapped by a process."""
    return _check_library(
        "libcudart", "launches, copies and waits of the runtime API are not traced by name"
    )


def check_cuda() -> Check:
    """Check for the CUDA driver library."""
    return _check_library("libcuda", "calls of cuBLAS and cuDNN are not traced")


def _check_library(name: str, cost: str) -> Check:
    mapped = sorted(
        {one.path for pid in process_ids() for one in mapped_libraries(pid) if one.library == name}
    )
    on_disk = [
        str(path) for folder in _LIBRARY_DIRS for path in sorted(Path(folder).glob(f"{name}.so*"))
    ]
    found = mapped or on_disk
    if found:
        where = (
            "mapped by a process"
            if mapped
            else "on disk; copies in virtual environments are found when used"
        )
        return Check(
            name, True, found[0] + (f" and {len(found) - 1} more" if len(found) > 1 else ""), where
        )
    return Check(
        name, False, "not found", f"{cost}; normal on a node where only containers have it",
        "start the job, then check again", optional=True,
    )  # fmt: skip


def check_processes() -> Check:
    """List the processes that use CUDA or NCCL."""
    users = [pid for pid in process_ids() if pid != os.getpid() and mapped_libraries(pid)]
    if users:
        return Check(
            "CUDA processes",
            True,
            ", ".join(map(str, users[:8])) + (" …" if len(users) > 8 else ""),
        )
    return Check("CUDA processes", True, "none now", "`ingero trace` waits for the first one")


def check_ptrace_scope(path: Path = YAMA) -> Check:
    """Check whether Yama allows reading stacks and environments of other processes."""
    try:
        scope = int(path.read_text())
    except (OSError, ValueError):
        return Check("ptrace scope", True, "no Yama")
    if scope <= 1:
        return Check(
            "ptrace scope", True, str(scope), "" if scope == 0 else "root may read what it needs"
        )
    return Check(
        "ptrace scope", False, str(scope),
        "Python frames of slow calls cannot be read; everything else works",
        "sysctl kernel.yama.ptrace_scope=1", optional=True,
    )  # fmt: skip


def check_database(given: Path | None) -> Check:
    """Check whether a recording could be written."""
    path = trace_database(given)
    folder = next((one for one in (path.parent, *path.parents) if one.is_dir()), Path("/"))
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        return Check(
            "trace database",
            False,
            str(path),
            "its folder cannot be written",
            "name another with --db",
        )
    refusal = _refusal(path)
    if refusal:
        advice = "move it away, or name another file with --db"
        return Check("trace database", False, str(path), refusal, advice)
    enough = free > 1 << 30
    return Check(
        "trace database",
        enough,
        str(path),
        f"{free >> 30} GB free",
        "" if enough else "make room or name another with --db",
    )


def _refusal(path: Path) -> str:
    """Return why nothing could be recorded in this file; empty if something could."""
    if not path.exists():
        return ""
    try:
        connect_readonly(path).close()
    except IngeroError as error:
        return str(error)
    return ""
