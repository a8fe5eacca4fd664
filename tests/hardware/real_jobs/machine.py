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
CALM_KNOWN = {"gpu": 140, "tiny": 40, "simulated": 40}  # steps until ranks know a calm step


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
        library = self.folder / "libnccl.so.2"
        with library.open("wb") as out:
            packed = wheelhouse / "libnccl.so.2.xz"
            subprocess.run(["xz", "-dc", "-T0", str(packed)], stdout=out, check=True)
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

    def job_environment(self, share: int) -> dict[str, str]:
        """The variables of ranks that use `share` percent of the GPU each."""
        library = {"LD_PRELOAD": str(self.folder / "libnccl.so.2")} if self.ranks == "gpu" else {}
        return self.environment | library | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share)}

    def close(self) -> None:
        if self.has_mps:
            quiet = {n: v for n, v in self.environment.items() if n != "LD_PRELOAD"}
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=quiet, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


class Job:
    """One training job of eight ranks, of `jobs` that share the GPU.

    With a folder for `rings` it is started as `ingero run` does, else without the plugin.
    """

    def __init__(
        self, machine: Machine, mode: str, folder: Path, *, jobs: int, rings: Path | None
    ) -> None:
        self.folder, self.calm_known = folder, CALM_KNOWN[machine.ranks]
        self.start_s = START_S[machine.ranks]
        self.control = folder / "control.json"
        self.slow({})
        share = 100 // (WORLD * jobs)
        environment = machine.job_environment(share) | {"INGERO_JOB_ID": mode}
        command = [*job_command(machine.ranks), str(self.control), str(folder), mode]
        simulated = machine.ranks == "simulated"
        if not simulated:
            command += [f"--jobs={jobs}", *(["--tiny"] if machine.ranks == "tiny" else [])]
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
        """Return the seconds until every rank knew its calm step."""
        began = time.monotonic()
        while time.monotonic() - began < self.start_s:
            self.require_running()
            steps = read_steps(self.folder / "steps_0.jsonl")
            if len(steps.ms) >= self.calm_known:
                return time.monotonic() - began
            time.sleep(0.5)
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
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={WORLD}"]
    return [*launcher, f"--master-port={free_ports(1)[0]}", str(HERE / "job.py")]


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
    """Return the commit of this tree; "unknown" where git is not."""
    found = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"
