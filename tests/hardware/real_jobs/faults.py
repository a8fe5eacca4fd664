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
import gc
import json
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LOOK_S = 0.25
CALM_STEPS = 100  # a calm step is their median
WARM_UP_STEPS = 20
ROWS = 1 << 16  # of the matrix that extra GPU work multiplies
BURNS = 8  # places of a step with extra work, forwards and as many backwards
HOST_FAULTS = ("host", "lock", "read", "collect")
READ_BYTES = 1 << 20
FILE_BYTES = 64 << 20


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


class BusyThread:
    """Another thread of the process that keeps a lock while it writes its statistics."""

    def __init__(self) -> None:
        self.lock, self.asked, self.taken = threading.Lock(), threading.Event(), threading.Event()
        self.keep_s = 0.0
        threading.Thread(target=self._write_statistics, name="statistics", daemon=True).start()

    def _write_statistics(self) -> None:
        while self.asked.wait():
            self.asked.clear()
            with self.lock:
                self.taken.set()
                time.sleep(self.keep_s)

    def wait_for_lock(self, seconds: float) -> None:
        self.keep_s = seconds
        self.taken.clear()
        self.asked.set()
        self.taken.wait()
        with self.lock:
            pass


class SlowHost:
    """Things that keep the host from launching; each is made when it is first needed."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.file = folder / f"samples_{rank}.bin"
        self.busy: BusyThread | None = None
        self.garbage: list[list[Any]] = []

    def hold_up(self, kind: str, seconds: float) -> None:
        """Keep this thread busy for about that long."""
        match kind:
            case "host":
                time.sleep(seconds)
            case "lock":
                self.busy = self.busy or BusyThread()
                self.busy.wait_for_lock(seconds)
            case "read":
                self._read_samples(seconds)
            case "collect":
                self._collect_garbage(seconds)

    def _read_samples(self, seconds: float) -> None:
        if not self.file.exists():
            self.file.write_bytes(os.urandom(FILE_BYTES))
        flags, buffer = os.O_RDONLY, mmap.mmap(-1, READ_BYTES)
        try:
            file = os.open(self.file, flags | os.O_DIRECT)
        except OSError:  # this file system caches everything
            file = os.open(self.file, flags)
        try:
            until_s, at = time.perf_counter() + seconds, 0
            while time.perf_counter() < until_s:
                at = (at + os.preadv(file, [buffer], at)) % FILE_BYTES
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)

    def _collect_garbage(self, seconds: float) -> None:
        began = time.perf_counter()
        gc.collect()
        took_s = time.perf_counter() - began
        if took_s < seconds:  # the heap grows until a collection takes that long
            more = int(min(max(seconds / max(took_s, 1e-3) - 1, 0.1), 2.0) * 50_000)
            self.garbage.extend([[number] for number in range(more)])


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
            for kind in HOST_FAULTS:
                if kind in says:
                    self.host.hold_up(kind, says[kind] * calm_s)
        return bool(says.get("stop"))

    def after_step(self, took_s: float) -> None:
        if self.calm_s is None:
            self.times.append(took_s)
            if len(self.times) == WARM_UP_STEPS + self.calm_steps:
                usual = sorted(self.times[WARM_UP_STEPS:])
                self.calm_s = usual[len(usual) // 2]
