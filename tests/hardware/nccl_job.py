"""One rank of a real NCCL job: tensor parallel 2, data parallel the rest, with one injected fault.

Started once per rank by `nccl_ranks.py`; needs PyTorch and a GPU. Counts its own collectives, so
that the count in the plugin's ring can be checked against it, and leaves a JSON file. With a
`control` file the fault can be changed while the job runs: every rank looks at it before each step,
and `{"stop": true}` in it ends the job.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

WARM_UP = 5
PRODUCTS = 60  # matrix products per half step
STOP_STEPS = 100


def groups(rank: int, world: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Every rank makes all groups in the same order; these two are its own."""
    tensor = [
        dist.new_group([2 * pair, 2 * pair + 1], group_desc=f"tp{pair}")
        for pair in range(world // 2)
    ]
    data = [
        dist.new_group(list(range(side, world, 2)), group_desc=f"dp{side}") for side in range(2)
    ]
    return tensor[rank // 2], data[rank % 2]


class Control:
    """The injected fault.

    Ranks are at most a step apart, so a stop that rank 0 announces ahead reaches all of them.
    """

    def __init__(self, scenario: dict, rank: int) -> None:
        self.path = Path(scenario["control"]) if "control" in scenario else None
        self.rank, self.fault, self.last_step = rank, scenario, scenario["steps"]
        self.seen_ns = 0

    def look(self, step: int) -> None:
        if self.path is None:
            return
        changed_ns = self.path.stat().st_mtime_ns
        if changed_ns != self.seen_ns:
            self.seen_ns = changed_ns
            self.fault = json.loads(self.path.read_text())
            if self.fault.get("stop") and self.rank == 0:
                self.path.with_suffix(".stop.new").write_text(str(step + STOP_STEPS))
                self.path.with_suffix(".stop.new").rename(self.path.with_suffix(".stop"))
        if self.fault.get("stop") and self.path.with_suffix(".stop").exists():
            self.last_step = int(self.path.with_suffix(".stop").read_text())

    def products(self) -> int:
        return round(
            PRODUCTS
            * (1 + (self.fault.get("gpu", 0.0) if self.rank == self.fault.get("rank") else 0.0))
        )

    def asleep_s(self) -> float:
        return self.fault.get("host_s", 0.0) if self.rank == self.fault.get("rank") else 0.0


def main() -> None:
    scenario = json.loads(sys.argv[1])
    rank, world, out = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(sys.argv[2])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    tensor_group, data_group = groups(rank, world)
    matrix = torch.randn(1536, 1536, device="cuda", dtype=torch.bfloat16) * 0.01
    activations = torch.ones(512 * 1024, device="cuda", dtype=torch.bfloat16)
    gradients = torch.ones(2 * 1024 * 1024, device="cuda", dtype=torch.bfloat16)
    control = Control(scenario, rank)
    counted = 0

    def step() -> None:
        nonlocal counted
        products, asleep_s = control.products(), control.asleep_s()
        for half in range(2):
            result = matrix
            for _ in range(products):
                result = result @ matrix
            if asleep_s and half == 0:
                torch.cuda.current_stream().synchronize()
                time.sleep(asleep_s)
            dist.all_reduce(activations, group=tensor_group)
        dist.all_reduce(gradients, group=data_group)
        counted += 3
        torch.cuda.current_stream().synchronize()

    for _ in range(WARM_UP):
        step()
    steps_s = []
    while len(steps_s) < control.last_step:
        began = time.perf_counter()
        control.look(len(steps_s))
        step()
        steps_s.append(time.perf_counter() - began)
    report = {"rank": rank, "pid": os.getpid(), "all_reduces": counted, "steps_s": steps_s}
    (out / f"rank_{rank}.json").write_text(json.dumps(report))
    time.sleep(0.5)  # NCCL reports the last kernels from a thread of its own
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
