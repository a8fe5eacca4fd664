"""GPU work to be traced: `workload.py KIND`.

Steps run between lines on stdin; times and counts go to stdout as JSON.

Commands: `run SECONDS FILE` runs steps and leaves their end times (monotonic ns, int64) in FILE
while it goes on; `count STEPS` runs that many steps under the PyTorch profiler, waits for a line
before and after.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

KIND = sys.argv[1]
SIZES = {"gpt": (12, 768, 12, 1024, 16), "toy": (12, 256, 4, 64, 2)}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .view(batch, length, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        attended = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        )
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(8192, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 8192)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Tokens(torch.utils.data.Dataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int):
        return torch.randint(
            0, 8192, (self.length + 1,), generator=torch.Generator().manual_seed(index)
        )


def training(kind: str):
    layers, width, heads, length, batch = SIZES[kind]
    model = Gpt(layers, width, heads).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loader = torch.utils.data.DataLoader(
        Tokens(length), batch, num_workers=2, pin_memory=True, prefetch_factor=4
    )
    batches = iter(loader)

    def step() -> None:
        data = next(batches).cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(data[:, :-1], data[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def matmul():
    x = torch.randn(4096, 4096, device="cuda")

    def step() -> None:
        for _ in range(10):
            x @ x
        torch.cuda.synchronize()

    return step


def tiny():
    x = torch.randn(64, 64, device="cuda")

    def step() -> None:
        for _ in range(200):
            x.add_(1.0)
        torch.cuda.synchronize()

    return step


def graphs():
    x = torch.randn(256, 256, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x @ x
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(20):
            y = y @ x

    def step() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return step


def nccl():
    import os

    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    state: dict[str, torch.Tensor] = {}

    def step() -> None:
        if not dist.is_initialized():
            store = dist.HashStore()
            dist.init_process_group(
                "nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda:0")
            )
            state["x"] = torch.ones(1024, device="cuda")
        dist.all_reduce(state["x"])

    torch.cuda.nccl.version()
    return step


torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
make = {"matmul": matmul, "tiny": tiny, "graphs": graphs, "nccl": nccl}.get(KIND)
step = make() if make else training(KIND)
if KIND != "nccl":
    for _ in range(5):
        step()
    torch.cuda.synchronize()
print("ready", flush=True)


def run(seconds: float, path: str) -> None:
    """Steps until the time is over; end times are written as they come."""
    end = time.monotonic() + seconds
    with Path(path).open("wb", buffering=0) as file:
        while time.monotonic() < end:
            step()
            file.write(time.monotonic_ns().to_bytes(8, sys.byteorder))


def count(steps: int) -> dict[str, int]:
    """API calls of these steps as the PyTorch profiler counts them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        print("begin", flush=True)
        sys.stdin.readline()
        for _ in range(steps):
            step()
        print("end", flush=True)
        sys.stdin.readline()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    counts = {"kernels": sum(event.get("cat") == "kernel" for event in events)}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            counts[event["name"]] = counts.get(event["name"], 0) + 1
    return counts


for line in sys.stdin:
    command, *arguments = line.split()
    if command == "run":
        run(float(arguments[0]), arguments[1])
        print("done", flush=True)
    elif command == "count":
        print(json.dumps(count(int(arguments[0]))), flush=True)
    elif command == "steps":
        for _ in range(int(arguments[0])):
            step()
        torch.cuda.synchronize()
        print("done", flush=True)
