"""What makes one rank of a real job slow: a slower GPU, or a host that has other things to do.

A control file holds one JSON object; every rank reads it four times a second. Sizes are shares of a
calm step, which the job measures first.

    {"rank": 6, "gpu": 0.06}                       the GPU takes that much longer
    {"rank": 2, "host": 0.1}                       the host sleeps in every step
    {"rank": 2, "host": 1.5, "every": 10}          ... in every tenth step
    {"rank": 2, "lock": 0.2}                       waits for a lock that another thread holds
    {"rank": 2, "read": 0.2}                       reads from the disk, past the cache
    {"rank": 2, "collect": 1.5, "every": 10}       collects garbage
    {"stop": true}                                 ends the job
"""

import contextlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from host_faults import SlowHost
from torch import Tensor

LOOK_S = 0.25
CALM_STEPS = 100  # a calm step is their median
WARM_UP_STEPS = 20
CLOCK_STEPS = range(8, 16)  # in which a kernel of known length is timed, beside all other ranks
CLOCK_CYCLES = 2_000_000
LAUNCH_S = 15e-6  # what one extra kernel costs the host, roughly; `host_s` is measured
HOST_SHARE = 0.04  # of the extra GPU time that its launches may take


class Control:
    """The control file, read now and then; `changes` collects what was seen when."""

    def __init__(self, path: Path) -> None:
        self.path, self.says, self.read_s = path, {}, 0.0
        self.changes: list[dict[str, Any]] = []

    def look(self, step: int) -> dict[str, Any]:
        now_s = time.time()
        if now_s - self.read_s >= LOOK_S:
            self.read_s = now_s
            with contextlib.suppress(OSError, ValueError):
                says = json.loads(self.path.read_text())
                if says != self.says:
                    self.says = says
                    self.changes.append({"at": now_s, "step": step, "fault": says})
        return self.says


class SlowGpu:
    """Holds up the kernels of this rank at a few places of a step, forwards and backwards.

    A kernel that only waits holds up what comes after it, as a lower clock would, and takes
    nothing from the other ranks. Few of them keep the host free: `host_s` is the time that
    launching them took it in this step.
    """

    def __init__(self, device: torch.device) -> None:
        self.has_gpu = device.type == "cuda"
        self.cycles_per_s, self.clocks = 0.0, []
        self.places, self.counted, self.place_s, self.every = 0, 0, 0.0, 1
        self.host_s = 0.0

    def time_clock(self, step: int) -> None:
        """In some early steps, time a kernel that waits for so many cycles."""
        if self.has_gpu and step in CLOCK_STEPS:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            torch.cuda._sleep(CLOCK_CYCLES)
            after.record()
            self.clocks.append((before, after))
        elif self.clocks and step > CLOCK_STEPS[-1]:
            self.clocks[-1][1].synchronize()
            usual_ms = statistics.median(first.elapsed_time(last) for first, last in self.clocks)
            self.cycles_per_s, self.clocks = 1e3 * CLOCK_CYCLES / usual_ms, []
            print(f"waits at {self.cycles_per_s / 1e9:.2f} GHz", flush=True)

    def begin_step(self, extra_s: float) -> None:
        self.places, self.counted = max(self.places, self.counted), 0
        self.host_s = self.place_s = 0.0
        if self.places and extra_s:
            affordable = max(int(HOST_SHARE * extra_s / LAUNCH_S) // 2, 1)
            self.every = -(-self.places // min(affordable, self.places))
            self.place_s = extra_s / (2 * -(-self.places // self.every))

    def drag(self, x: Tensor) -> Tensor:
        """A place in the network: nothing on a calm rank, a wait forwards and backwards else."""
        self.counted += 1
        if self.place_s and (self.counted - 1) % self.every == 0:
            began = time.perf_counter()
            if x.requires_grad:
                x.register_hook(self._hold_up_gradient)
            self.host_s += time.perf_counter() - began
            self._hold_up()
        return x

    def _hold_up_gradient(self, _: Tensor) -> None:
        self._hold_up()

    def _hold_up(self) -> None:
        began = time.perf_counter()
        if self.has_gpu:
            torch.cuda._sleep(int(self.place_s * self.cycles_per_s))
        else:
            time.sleep(self.place_s)
        self.host_s += time.perf_counter() - began


class Faults:
    """Slows this rank as the control file says; `calm_s` is known after the first steps."""

    def __init__(self, control: Path, out: Path, rank: int, device: torch.device) -> None:
        self.calm_steps = CALM_STEPS if device.type == "cuda" else 1
        self.rank, self.control = rank, Control(control)
        self.gpu, self.host = SlowGpu(device), SlowHost(out, rank)
        self.times: list[float] = []
        self.calm_s: float | None = None

    def before_step(self, step: int) -> bool:
        """Do what slows the host, prepare what slows the GPU; returns whether to stop."""
        says = self.control.look(step)
        self.gpu.time_clock(step)
        mine = self.calm_s is not None and says.get("rank") == self.rank
        calm_s = self.calm_s or 0.0
        self.gpu.begin_step(says.get("gpu", 0.0) * calm_s if mine else 0.0)
        if mine and step % says.get("every", 1) == 0:
            self.host.hold_up(says, calm_s)
        return bool(says.get("stop"))

    def after_steps(self, took_s: list[float]) -> None:
        """Learn what a calm step takes."""
        if self.calm_s is None:
            self.times += took_s
            if len(self.times) >= WARM_UP_STEPS + self.calm_steps:
                self.calm_s = statistics.median(self.times[WARM_UP_STEPS:])
