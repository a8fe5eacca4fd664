"""What makes one rank of a real job slow: extra GPU work, or a host that has other things to do.

A control file holds one JSON object; every rank reads it four times a second. Sizes are shares of a
calm step, which the job measures first.

    {"rank": 6, "gpu": 0.06}                       6 % more work on the GPU
    {"rank": 2, "host": 0.1}                       the host sleeps in every step
    {"rank": 2, "host": 1.5, "every": 10}          ... in every tenth step
    {"rank": 2, "lock": 0.2}                       waits for a lock that another thread holds
    {"rank": 2, "read": 0.2}                       reads from the disk, past the cache
    {"rank": 2, "collect": 1.5, "every": 10}       collects garbage
    {"stop": true}                                 ends the job
"""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from host_faults import SlowHost
from torch import Tensor

LOOK_S = 0.25
CALM_STEPS = 100  # a calm step is their median
WARM_UP_STEPS = 20
ROWS = 1 << 16  # of the matrix that extra GPU work multiplies
BURNS = 8  # places of a step with extra work, forwards and as many backwards


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
    """Extra matrix products, spread over the places of a step.

    A GPU that is throttled launches nothing more than before, so few places have any.
    """

    def __init__(self, device: torch.device) -> None:
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        width = 1024 if device.type == "cuda" else 64
        self.tall = torch.randn(ROWS, width, device=device, dtype=kind)
        self.square = torch.randn(width, width, device=device, dtype=kind)
        self.product = torch.empty_like(self.tall)
        self.row_s = self._measure_row_s(device)
        self.places, self.counted, self.place_s, self.every = 0, 0, 0.0, 1

    def _measure_row_s(self, device: torch.device) -> float:
        synchronise = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
        for _ in range(3):
            synchronise()
            began = time.perf_counter()
            for _ in range(20):
                torch.mm(self.tall, self.square, out=self.product)
            synchronise()
        return (time.perf_counter() - began) / 20 / ROWS

    def begin_step(self, extra_s: float) -> None:
        self.places, self.counted = max(self.places, self.counted), 0
        self.every = -(-self.places // BURNS) if self.places else 1
        self.place_s = extra_s / (2 * -(-self.places // self.every)) if self.places else 0.0

    def drag(self, x: Tensor) -> Tensor:
        """A place in the network: nothing on a calm rank, work forwards and backwards else."""
        self.counted += 1
        is_slow = self.place_s and (self.counted - 1) % self.every == 0
        return Burn.apply(x, self) if is_slow else x

    def burn(self) -> None:
        rows = round(self.place_s / self.row_s)
        while rows > 0:
            part = min(rows, ROWS)
            torch.mm(self.tall[:part], self.square, out=self.product[:part])
            rows -= part


class Burn(torch.autograd.Function):
    """Works on the GPU and passes its input on, forwards and backwards."""

    @staticmethod
    def forward(ctx, x: Tensor, gpu: SlowGpu) -> Tensor:
        ctx.gpu = gpu
        gpu.burn()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.gpu.burn()
        return gradient, None


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
        mine = self.calm_s is not None and says.get("rank") == self.rank
        calm_s = self.calm_s or 0.0
        self.gpu.begin_step(says.get("gpu", 0.0) * calm_s if mine else 0.0)
        if mine and step % says.get("every", 1) == 0:
            self.host.hold_up(says, calm_s)
        return bool(says.get("stop"))

    def after_step(self, took_s: float) -> None:
        if self.calm_s is None:
            self.times.append(took_s)
            if len(self.times) == WARM_UP_STEPS + self.calm_steps:
                usual = sorted(self.times[WARM_UP_STEPS:])
                self.calm_s = usual[len(usual) // 2]
