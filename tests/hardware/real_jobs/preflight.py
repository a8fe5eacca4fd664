"""Says within seconds whether real jobs can run here; ends with status 2 and a sentence if not."""

import importlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.hardware.real_jobs.machine import commit

from ingero.compiled import parts_in_use

MODULES = (
    "numpy",
    "ingero.agent.push.app",
    "ingero.fleet.app",
    "ingero.cli.commands.services.fleet",
    "ingero.cli.commands.node.run",
    "tests.hardware.real_jobs.drive",
)
STARTED = (
    ("ingero.cli.commands.services.fleet", "--help"),
    ("ingero", "fleet-push", "--help"),
)
PROGRAMS = ("nvidia-smi", "nvidia-cuda-mps-control", "xz")
GPU_S = 60
PARTS = 2
SHARED_BYTES = 2 << 30  # rings and NCCL's buffers of eight ranks, twice while one job ends
TORCH = """
import torch, torch.distributed
assert torch.cuda.is_available(), "PyTorch sees no GPU"
from torch.distributed.fsdp import fully_shard
torch.cuda._sleep(1000)  # how the GPU of a rank is slowed
torch.cuda.synchronize()
print("torch", torch.__version__, torch.cuda.get_device_name(0), torch.cuda.mem_get_info())
"""


def problems() -> list[str]:
    """Return what is missing, one sentence each; the GPU is asked while programs are."""
    found = [f"{name} is not on this machine" for name in PROGRAMS if not shutil.which(name)]
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            found.append(f"{name}: {error}; run make wheelhouse again")
    if not Path("wheelhouse/libnccl.so.2.xz").exists():
        found.append("wheelhouse/libnccl.so.2.xz is missing; run make wheelhouse")
    if commit() == "unknown":
        found.append("nobody says which commit this is: write wheelhouse/COMMIT")
    if len(parts_in_use()) < PARTS:
        found.append("the compiled parts were not carried: make wheelhouse finds no Python 3.12")
    free = shutil.disk_usage("/dev/shm").free
    if free < SHARED_BYTES:
        found.append(f"/dev/shm has {free >> 20} MiB left, {SHARED_BYTES >> 20} are needed")
    if found:
        return found
    with ThreadPoolExecutor() as pool:
        gpu = pool.submit(gpu_problems)
        return [each for line in pool.map(program_problems, STARTED) for each in line] + (
            gpu.result()
        )


def program_problems(line: tuple[str, ...]) -> list[str]:
    """Start a program as the run will, for its help only."""
    done = subprocess.run(
        [sys.executable, "-m", *line], capture_output=True, text=True, check=False, timeout=GPU_S
    )
    return [f"{' '.join(line)}: {done.stderr.strip()[-600:]}"] if done.returncode else []


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
    print("commit", commit(), flush=True)
    print("compiled parts in use:", ", ".join(parts_in_use()) or "none", flush=True)


if __name__ == "__main__":
    main()
