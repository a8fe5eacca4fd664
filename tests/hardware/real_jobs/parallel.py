"""The ways in which the real jobs are split over ranks, each with the step that it repeats.

Every maker gets the device, the size and the place to be slow, and returns the parameters to train
and a function that runs one step (without the optimizer) and returns a value to wait for.
"""

import contextlib

import torch
import torch.distributed as dist
from models import GPT, Block, Drag, Experts, RingBlock, Size, TensorBlock
from pipelines import make_1f1b, make_pp
from splitting import Made, Maker, placed, reduce_flat, tokens, train
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

BUCKET_MB = 16
MICRO_BATCHES = 4
TENSOR_RANKS, EXPERT_RANKS, RING_RANKS, REPLICAS = 2, 4, 4, 2
SMALL = Size(width=256, layers=8, heads=4, words=2048, length=64, batch=2)
TINY = Size(width=32, layers=2, heads=4, words=64, length=16, batch=4)


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
    return sharded(device, size, drag, (dist.get_world_size(),))


def make_hsdp(device: torch.device, size: Size, drag: Drag) -> Made:
    """The same within two groups of ranks; gradients are also reduced between the two."""
    return sharded(device, size, drag, (REPLICAS, dist.get_world_size() // REPLICAS))


def sharded(device: torch.device, size: Size, drag: Drag, ranks: tuple[int, ...]) -> Made:
    net = placed(GPT(size, [Block(size) for _ in range(size.layers)], drag), device)
    names = ("replicas", "shards")[-len(ranks) :]
    mesh = dist.init_device_mesh(device.type, ranks, mesh_dim_names=names)
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, lambda: train(net, size, size.batch, device)


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


def make_ring(device: torch.device, size: Size, drag: Drag) -> Made:
    """Four ranks that split the sequence and pass keys and values round, two replicas."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rings = [
        dist.new_group(list(range(first, first + RING_RANKS)))
        for first in range(0, world, RING_RANKS)
    ]
    ring = rings[rank // RING_RANKS]
    net = placed(GPT(size, [RingBlock(size, ring) for _ in range(size.layers)], drag), device)

    def step() -> Tensor:
        loss = train(net, size, size.batch, device)
        reduce_flat(list(net.parameters()), dist.group.WORLD)
        return loss

    return net, step


MAKERS: dict[str, Maker] = {
    "ddp": make_ddp,
    "accum": make_accum,
    "fsdp": make_fsdp,
    "pp": make_pp,
    "ep": make_ep,
    "tp": make_tp,
    "small": make_ddp,
    "ahead": make_ddp,
    "hsdp": make_hsdp,
    "ring": make_ring,
    "1f1b": make_1f1b,
}
