"""The ways in which the real jobs are split over ranks, each with the step that it repeats.

Every maker gets the device, the size and the place to be slow, and returns the parameters to train
and a function that runs one step (without the optimizer) and returns a value to wait for.
"""

import contextlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from models import GPT, Block, Drag, Experts, Size, TensorBlock
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

Step = Callable[[], Tensor]
Made = tuple[nn.Module, Step]
Maker = Callable[[torch.device, Size, Drag], Made]
BUCKET_MB = 16
MICRO_BATCHES = 4
STAGES, PIPELINE_BATCHES, PIPELINE_BLOCKS = 4, 6, 3
TENSOR_RANKS, EXPERT_RANKS = 2, 4
SMALL = Size(width=256, layers=8, heads=4, words=2048, length=64, batch=2)
TINY = Size(width=32, layers=2, heads=4, words=64, length=16, batch=4)


def number_type(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def placed(net: nn.Module, device: torch.device) -> nn.Module:
    return net.to(device=device, dtype=number_type(device))


def tokens(size: Size, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random words to read, and the words that follow them."""
    drawn = torch.randint(0, size.words, (batch, size.length + 1), device=device)
    return drawn[:, :-1], drawn[:, 1:].reshape(-1)


def train(net: nn.Module, size: Size, batch: int, device: torch.device) -> Tensor:
    read, expected = tokens(size, batch, device)
    loss = cross_entropy(net(read).float().view(-1, size.words), expected)
    loss.backward()
    return loss.detach()


def wrapped(net: nn.Module, device: torch.device, group: dist.ProcessGroup | None = None):
    ids = [device.index or 0] if device.type == "cuda" else None
    return DistributedDataParallel(
        net, device_ids=ids, bucket_cap_mb=BUCKET_MB, process_group=group
    )


def make_ddp(device: torch.device, size: Size, drag: Drag) -> Made:
    """Gradient buckets, whose all-reduces overlap the backward pass."""
    net = GPT(size, [Block(size) for _ in range(size.layers)], drag)
    net = wrapped(placed(net, device), device)
    return net, lambda: train(net, size, size.batch, device)


def make_accum(device: torch.device, size: Size, drag: Drag) -> Made:
    """The same with four micro-batches, of which the last one synchronises."""
    net, _ = make_ddp(device, size, drag)

    def step() -> Tensor:
        for number in range(MICRO_BATCHES):
            last = number == MICRO_BATCHES - 1
            with contextlib.nullcontext() if last else net.no_sync():
                loss = train(net, size, max(size.batch // MICRO_BATCHES, 1), device)
        return loss

    return net, step


def make_fsdp(device: torch.device, size: Size, drag: Drag) -> Made:
    """FSDP2: parameters are gathered ahead on one stream, gradients scattered on another."""
    net = placed(GPT(size, [Block(size) for _ in range(size.layers)], drag), device)
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, lambda: train(net, size, size.batch, device)


def make_pp(device: torch.device, size: Size, drag: Drag) -> Made:
    """Four stages, micro-batches over send and receive, an all-reduce between the replicas."""
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = rank % STAGES
    groups = [dist.new_group(list(range(s, world, STAGES))) for s in range(STAGES)]
    net = placed(nn.Sequential(*[Block(size) for _ in range(PIPELINE_BLOCKS)]), device)
    shape = (max(size.batch // 4, 1), size.length, size.width)
    empty = {"device": device, "dtype": number_type(device)}

    def forward() -> tuple[Tensor, Tensor]:
        x = torch.randn(shape, **empty) if stage == 0 else torch.empty(shape, **empty)
        if stage > 0:
            dist.recv(x, rank - 1)
        x.requires_grad_()
        y = drag(net(x))
        if stage < STAGES - 1:
            dist.send(y.detach(), rank + 1)
        return x, y

    def backward(x: Tensor, y: Tensor) -> None:
        gradient = torch.ones_like(y) if stage == STAGES - 1 else torch.empty_like(y)
        if stage < STAGES - 1:
            dist.recv(gradient, rank + 1)
        y.backward(gradient)
        if stage > 0:
            dist.send(x.grad, rank - 1)

    def step() -> Tensor:
        for x, y in [forward() for _ in range(PIPELINE_BATCHES)]:
            backward(x, y)
        return reduce_flat(list(net.parameters()), groups[stage])

    return net, step


def make_tp(device: torch.device, size: Size, drag: Drag) -> Made:
    """Two tensor-parallel ranks that also split the sequence, times data parallelism."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [
        dist.new_group(list(range(first, first + TENSOR_RANKS)))
        for first in range(0, world, TENSOR_RANKS)
    ]
    lines = [dist.new_group(list(range(side, world, TENSOR_RANKS))) for side in range(TENSOR_RANKS)]
    pair, side = pairs[rank // TENSOR_RANKS], rank % TENSOR_RANKS
    net = GPT(size, [TensorBlock(size, pair) for _ in range(size.layers)], drag)
    norms = [p for name, p in net.named_parameters() if "norm" in name or "words" in name]
    net = placed(net, device)
    part = size.length // TENSOR_RANKS

    def step() -> Tensor:
        read, expected = tokens(size, size.batch, device)
        expected = expected.view(size.batch, size.length).t()
        mine = slice(side * part, (side + 1) * part)
        words = net(read.t()[mine])
        loss = cross_entropy(words.float().reshape(-1, size.words), expected[mine].reshape(-1))
        loss.backward()
        reduce_flat(norms, pair)  # each rank has seen its part of the sequence only
        # Not overlapped: on one shared GPU, kernels of two communicators can wait for each other.
        reduce_flat(list(net.parameters()), lines[side])
        return loss.detach()

    return net, step


def make_ep(device: torch.device, size: Size, drag: Drag) -> Made:
    """Experts on four ranks, twice; every third block exchanges its tokens all to all."""
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [
        dist.new_group(list(range(first, first + EXPERT_RANKS)))
        for first in range(0, world, EXPERT_RANKS)
    ]
    replicas = [
        dist.new_group(list(range(which, world, EXPERT_RANKS))) for which in range(EXPERT_RANKS)
    ]
    group, twins = groups[rank // EXPERT_RANKS], replicas[rank % EXPERT_RANKS]
    blocks = [
        Block(size, Experts(size, group) if number % 3 == 2 or size.layers < 3 else None)
        for number in range(size.layers)
    ]
    net = placed(GPT(size, blocks, drag), device)
    experts = [p for p in net.parameters() if getattr(p, "is_expert", False)]
    shared = [p for p in net.parameters() if not getattr(p, "is_expert", False)]

    def step() -> Tensor:
        loss = train(net, size, size.batch, device)
        reduce_flat(experts, twins)
        reduce_flat(shared, dist.group.WORLD)
        return loss

    return net, step


def reduce_flat(parameters: list[nn.Parameter], group: dist.ProcessGroup) -> Tensor:
    """Average the gradients over the group in one all-reduce; returns one of them to wait for."""
    found = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in found])
    dist.all_reduce(flat, group=group)
    flat /= group.size()
    at = 0
    for gradient in found:
        gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
        at += gradient.numel()
    return flat[0]


MAKERS: dict[str, Maker] = {
    "ddp": make_ddp,
    "accum": make_accum,
    "fsdp": make_fsdp,
    "pp": make_pp,
    "ep": make_ep,
    "tp": make_tp,
    "small": make_ddp,
}
