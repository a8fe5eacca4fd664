"""A real PyTorch job of eight NCCL ranks on one GPU that can be slowed while it runs.

    python launch.py 8 job.py CONTROL OUT ddp

Nothing in it knows of Ingero. `faults.py` says what the control file can hold, and `parallel.py`
which jobs there are. Every rank writes its own step times to OUT/steps_RANK.jsonl: a line per 20
steps with the time at their end, the number of the first step, the milliseconds of each, those
until the host had launched all of it, and those that launching a GPU fault took. Lines with `fault`
say when a rank has seen the control file change. With --tiny the job runs on a CPU.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from faults import Faults
from models import Size
from parallel import MAKERS, SMALL, TINY
from torch import Tensor

STOP_EVERY = 20
UNSYNCED = ("ahead",)  # jobs whose hosts wait for their GPU only when they look whether to stop


def open_world(tiny: bool) -> torch.device:
    torch.manual_seed(1)
    if tiny:
        dist.init_process_group("gloo")
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda:0")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def all_stop(wants_to: bool, device: torch.device) -> bool:
    """Whether any rank wants to stop: one all-reduce of one integer."""
    flag = torch.tensor([int(wants_to)], device=device)
    dist.all_reduce(flag)
    return bool(flag.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("control", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("mode", choices=MAKERS)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = open_world(args.tiny)
    rank = dist.get_rank()
    size = TINY if args.tiny else SMALL if args.mode == "small" else Size()
    faults = Faults(args.control, args.out, rank, device)
    net, run_step = MAKERS[args.mode](device, size, faults.gpu.drag)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=not args.tiny)
    with (args.out / f"steps_{rank}.jsonl").open("w", buffering=1) as log:
        watch = GpuWatch() if args.mode in UNSYNCED and not args.tiny else HostWatch()
        train(faults, run_step, optimizer, device, log, watch)
    dist.destroy_process_group()


class HostWatch:
    """Waits for every step, as a job does that looks at its loss, and takes the host's time."""

    def __init__(self) -> None:
        self.began, self.ms = 0.0, []

    def begin(self) -> None:
        self.began = time.perf_counter()

    def end(self, waits_for: Tensor) -> None:
        waits_for.item()
        self.ms.append(1e3 * (time.perf_counter() - self.began))

    def take(self) -> list[float]:
        taken, self.ms = self.ms, []
        return taken


class GpuWatch:
    """Waits for no step: marks on the GPU say how long each took, once all are over."""

    def __init__(self) -> None:
        self.marks: list[torch.cuda.Event] = []

    def begin(self) -> None:
        if not self.marks:
            self._mark()

    def end(self, waits_for: Tensor) -> None:
        self._mark()

    def _mark(self) -> None:
        self.marks.append(torch.cuda.Event(enable_timing=True))
        self.marks[-1].record()

    def take(self) -> list[float]:
        torch.cuda.synchronize()
        taken = [a.elapsed_time(b) for a, b in itertools.pairwise(self.marks)]
        self.marks = self.marks[-1:]
        return taken


def train(faults: Faults, run_step, optimizer, device: torch.device, log, watch) -> None:
    step, wants_stop = 0, False
    lists: dict[str, list[float]] = {"launched_ms": [], "fault_host_ms": []}
    while True:
        if step % STOP_EVERY == 0:
            if step:
                times = [round(ms, 3) for ms in watch.take()]
                line = {"at": round(time.time(), 3), "first": step - STOP_EVERY, "ms": times}
                log.write(json.dumps(line | lists) + "\n")
                faults.after_steps([ms / 1e3 for ms in times])
                lists = {name: [] for name in lists}
            if all_stop(wants_stop, device):
                return
        watch.begin()
        began = time.perf_counter()
        wants_stop = faults.before_step(step)
        optimizer.zero_grad(set_to_none=True)
        waits_for = run_step()
        optimizer.step()
        launched = time.perf_counter()
        watch.end(waits_for)
        for name, seconds in zip(lists, (launched - began, faults.gpu.host_s), strict=True):
            lists[name].append(round(1e3 * seconds, 3))
        step += 1
        while faults.control.changes:
            log.write(json.dumps(faults.control.changes.pop(0)) + "\n")


if __name__ == "__main__":
    main()
