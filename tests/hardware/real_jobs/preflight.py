"""Says within seconds whether real jobs can run here; ends with status 2 and a sentence if not."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ingero.compiled import parts_in_use

MODULES = (
    "numpy",
    "ingero.agent.push.app",
    "ingero.fleet.app",
    "ingero.cli.commands.services.fleet",
    "ingero.cli.commands.node.run",
)
PROGRAMS = ("nvidia-smi", "nvidia-cuda-mps-control", "xz")
GPU_S = 60
SHARED_BYTES = 4 << 30  # rings and NCCL's buffers of sixteen ranks
TORCH = """
import torch, torch.distributed
assert torch.cuda.is_available(), "PyTorch sees no GPU"
print("torch", torch.__version__, torch.cuda.get_device_name(0), torch.cuda.mem_get_info())
"""


def problems() -> list[str]:
    """Return what is missing, one sentence each."""
    found = []
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            found.append(f"{name}: {error}; run make wheelhouse again")
    found += [f"{name} is not on this machine" for name in PROGRAMS if not shutil.which(name)]
    if not Path("wheelhouse/libnccl.so.2.xz").exists():
        found.append("wheelhouse/libnccl.so.2.xz is missing; run make wheelhouse")
    free = shutil.disk_usage("/dev/shm").free
    if free < SHARED_BYTES:
        found.append(f"/dev/shm has {free >> 20} MiB left, {SHARED_BYTES >> 20} are needed")
    return found or gpu_problems()


def gpu_problems() -> list[str]:
    """Ask PyTorch for the GPU, in a process of its own that does not stay."""
    asked = [sys.executable, "-c", TORCH]
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            asked, env=without, capture_output=True, text=True, check=False, timeout=GPU_S
        )
    except subprocess.TimeoutExpired:
        return [f"PyTorch did not find the GPU within {GPU_S} s"]
    print(done.stdout.strip(), flush=True)
    return [done.stderr.strip()[-600:]] if done.returncode else []


def main() -> None:
    found = problems()
    if found:
        sys.exit("\n".join(found))
    print("compiled parts in use:", ", ".join(parts_in_use()) or "none", flush=True)


if __name__ == "__main__":
    main()
