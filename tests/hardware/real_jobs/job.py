"""A real PyTorch job of eight NCCL ranks on one GPU that can be slowed while it runs.

    torchrun --nproc-per-node=8 job.py CONTROL OUT ddp

Nothing in it knows of Ingero. `faults.py` says what the control file can hold, and `parallel.py`
which jobs there are. Every rank writes its own step times to OUT/steps_RANK.jsonl: a line per 20
steps with the time at their end, the number of the first step and the milliseconds of each. Lines
with `fault` say when a rank has seen the control file change. With --tiny the job runs on a CPU.
"""

import argparse
import ctypes
import json
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from faults import Faults
from models import Size
from parallel import MAKERS, SMALL, TINY

STOP_EVERY = 20
SLEEP_WHILE_WAITING = 4  # cudaDeviceScheduleBlockingSync


def open_world(tiny: bool, jobs: int) -> torch.device:
    torch.manual_seed(1)
    if tiny:
        dist.init_process_group("gloo")
        torch.set_num_threads(1)
        return torch.device("cpu")
    if jobs > 1:
        leave_core_while_waiting()
    device = torch.device("cuda:0")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def leave_core_while_waiting() -> None:
    """Let hosts sleep while they wait for the GPU: two jobs have as many hosts as there are cores.

    By default a host spins, and then it keeps others from launching.
    """
    mapped = Path("/proc/self/maps").read_text().split()
    runtime = next((word for word in mapped if "/libcudart.so" in word), None)
    status = ctypes.CDLL(runtime).cudaSetDeviceFlags(SLEEP_WHILE_WAITING) if runtime else -1
    print("hosts sleep while they wait" if status == 0 else f"hosts spin: {status}", flush=True)


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
    parser.add_argument("--jobs", type=int, default=1, help="jobs that share the GPU")
    args = parser.parse_args()
    device = open_world(args.tiny, args.jobs)
    rank = dist.get_rank()
    size = TINY if args.tiny else SMALL if args.mode == "small" else Size()
    size = replace(size, batch=max(size.batch // args.jobs, 1))  # steps stay about as long
    faults = Faults(args.control, args.out, rank, device)
    net, run_step = MAKERS[args.mode](device, size, faults.gpu.drag)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=not args.tiny)
    with (args.out / f"steps_{rank}.jsonl").open("w", buffering=1) as log:
        train(faults, run_step, optimizer, device, log)
    dist.destroy_process_group()


def train(faults: Faults, run_step, optimizer, device: torch.device, log) -> None:
    step, times_ms, wants_stop = 0, [], False
    while True:
        if step % STOP_EVERY == 0:
            if times_ms:
                at, first = round(time.time(), 3), step - len(times_ms)
                log.write(json.dumps({"at": at, "first": first, "ms": times_ms}) + "\n")
                times_ms = []
            if all_stop(wants_stop, device):
                return
        began = time.perf_counter()
        wants_stop = faults.before_step(step)
        optimizer.zero_grad(set_to_none=True)
        waits_for = run_step()
        optimizer.step()
        waits_for.item()
        took_s = time.perf_counter() - began
        faults.after_step(took_s)
        times_ms.append(round(1e3 * took_s, 3))
        step += 1
        while faults.control.changes:
            log.write(json.dumps(faults.control.changes.pop(0)) + "\n")


if __name__ == "__main__":
    main()
