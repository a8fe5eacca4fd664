"""The GPU machine: NCCL unpacked, the MPS daemon running, jobs started and stopped."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.hardware.real_jobs.processes import rank_processes
from tests.hardware.real_jobs.steps import read_steps

HERE = Path(__file__).parent
WORLD = 8
STOP_S = 8.0
NO_STEP_S = 20.0
START_S = {"gpu": 75.0, "tiny": 300.0, "simulated": 60.0}
UP_STEPS = 20  # a line of steps was written


class Machine:
    """A scratch folder with NCCL, and the MPS daemon; only ranks on a GPU need these.

    `ranks` are real ones on the `gpu`, real but `tiny` ones on the CPU, or `simulated`.
    """

    def __init__(self, wheelhouse: Path, ranks: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="real-jobs-"))
        self.ranks = ranks
        self.environment = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
        self.has_mps = False
        self.name = gpu_name() if ranks == "gpu" else ranks
        if ranks != "gpu":
            return
        unpack_nccl(wheelhouse, self.folder / "libnccl.so.2")
        mps = self.folder / "mps"
        mps.mkdir()
        self.environment |= {
            "CUDA_MPS_PIPE_DIRECTORY": str(mps),
            "CUDA_MPS_LOG_DIRECTORY": str(mps),
        }
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.environment, check=True)
        self.has_mps = True
        self.environment |= {
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            # kernels that wait for each other must all fit on the GPU together
            "NCCL_MAX_NCHANNELS": "2",
            "NCCL_MAX_CTAS": "2",
            "OMP_NUM_THREADS": "1",
        }

    def job_environment(self) -> dict[str, str]:
        """The variables of ranks that share the GPU evenly."""
        library = {"LD_PRELOAD": str(self.folder / "libnccl.so.2")} if self.ranks == "gpu" else {}
        share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // WORLD)}
        return self.environment | library | share

    def close(self) -> None:
        if self.has_mps:
            quiet = {n: v for n, v in self.environment.items() if n != "LD_PRELOAD"}
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=quiet, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


class Job:
    """One training job of eight ranks on one GPU.

    With a folder for `rings` it is started as `ingero run` does, else without the plugin.
    """

    def __init__(self, machine: Machine, mode: str, folder: Path, *, rings: Path | None) -> None:
        self.folder, self.start_s = folder, START_S[machine.ranks]
        self.control = folder / "control.json"
        self.slow({})
        environment = machine.job_environment() | {"INGERO_JOB_ID": mode}
        command = [*job_command(machine.ranks), str(self.control), str(folder), mode]
        command += ["--tiny"] if machine.ranks == "tiny" else []
        simulated = machine.ranks == "simulated"
        if rings is not None:
            # `ingero run` needs PYTHONPATH, the job must not see it
            without = [] if simulated else ["env", "-u", "PYTHONPATH"]
            command = [sys.executable, "-m", "ingero", "run", "--", *without, *command]
            environment |= {"INGERO_NCCL_RING_DIR": str(rings)}
        if rings is not None or simulated:
            environment |= {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        with (folder / "job.log").open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def slow(self, fault: dict[str, Any]) -> None:
        fresh = self.control.with_suffix(".new")
        fresh.write_text(json.dumps(fault))
        fresh.rename(self.control)

    def wait_until_up(self) -> float:
        """Return the seconds until the first steps were over."""
        began = time.monotonic()
        while time.monotonic() - began < self.start_s:
            self.require_running()
            steps = read_steps(self.folder / "steps_0.jsonl")
            if len(steps.ms) >= UP_STEPS:
                return time.monotonic() - began
            time.sleep(0.2)
        raise JobEnded(f"no steps after {self.start_s:.0f} s", self.log_tail())

    def require_running(self) -> None:
        if self.process.poll() is not None:
            raise JobEnded(f"it ended with status {self.process.returncode}", self.log_tail())
        steps = self.folder / "steps_0.jsonl"
        if steps.exists() and time.time() - steps.stat().st_mtime > NO_STEP_S:
            raise JobEnded(f"no step ended in {NO_STEP_S:.0f} s", self.log_tail())

    def log_tail(self) -> str:
        return (self.folder / "job.log").read_text(errors="replace")[-2500:]

    def close(self) -> None:
        """Ask the job to stop; what has not ended after a while is killed, process by process."""
        ranks = list(rank_processes(self.process.pid).values())
        self.slow({"stop": True})
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        if self.process.poll() is None:
            for pid in (*ranks, self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()


class JobEnded(Exception):
    """The job did not start, or ended too soon."""

    def __init__(self, what: str, log: str) -> None:
        super().__init__(f"the job failed: {what}\n{log}")


def job_command(ranks: str) -> list[str]:
    """Return the command that starts all ranks, without its arguments."""
    if ranks == "simulated":
        return [sys.executable, "-m", "tests.hardware.real_jobs.standin"]
    python = os.environ.get("JOB_PYTHON", sys.executable)  # one that has PyTorch
    return [python, str(HERE / "launch.py"), str(WORLD), str(HERE / "job.py")]


def unpack_nccl(wheelhouse: Path, target: Path) -> None:
    """Take the library that run.sh has unpacked, or unpack it."""
    ready = os.environ.get("NCCL_LIBRARY", "")
    if ready and Path(ready).exists():
        target.symlink_to(ready)
        return
    with target.open("wb") as out:
        packed = wheelhouse / "libnccl.so.2.xz"
        subprocess.run(["xz", "-dc", "-T0", str(packed)], stdout=out, check=True)


def gpu_name() -> str:
    """Return what the driver calls the GPU."""
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "simulated"
    return found.stdout.strip() or "unknown"


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, each another one."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def commit() -> str:
    """Return the commit of this tree; where git is not, the one that was carried along."""
    carried = HERE.parents[2] / "wheelhouse" / "COMMIT"
    found = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    if not found.stdout.strip() and carried.exists():
        return carried.read_text().strip()
    return found.stdout.strip() or "unknown"
