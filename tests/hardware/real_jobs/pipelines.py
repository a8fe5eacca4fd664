"""Real jobs whose layers are split into four stages, with two replicas of each."""

import torch
import torch.distributed as dist
from models import Block, Drag, Size
from splitting import Made, number_type, placed, reduce_flat
from torch import Tensor, nn

STAGES, PIPELINE_BATCHES, PIPELINE_BLOCKS = 4, 6, 3


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


def make_1f1b(device: torch.device, size: Size, drag: Drag) -> Made:
    """The same stages, which run backward as soon as they can and swap with a neighbour at once."""
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = rank % STAGES
    groups = [dist.new_group(list(range(s, world, STAGES))) for s in range(STAGES)]
    net = placed(nn.Sequential(*[Block(size) for _ in range(PIPELINE_BLOCKS)]), device)
    shape = (max(size.batch // 4, 1), size.length, size.width)
    empty = {"device": device, "dtype": number_type(device)}
    is_first, is_last = stage == 0, stage == STAGES - 1
    waiting: list[tuple[Tensor, Tensor]] = []

    def swap(peer: int, sent: Tensor | None, takes: bool) -> Tensor | None:
        taken = torch.empty(shape, **empty) if takes else None
        operations = [dist.P2POp(dist.isend, sent, peer)] if sent is not None else []
        operations += [dist.P2POp(dist.irecv, taken, peer)] if takes else []
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return taken

    def take() -> Tensor:
        return torch.randn(shape, **empty) if is_first else swap(rank - 1, None, True)

    def forward(x: Tensor) -> Tensor:
        y = drag(net(x.requires_grad_()))
        waiting.append((x, y))
        return y.detach()

    def backward(gradient: Tensor | None) -> Tensor:
        x, y = waiting.pop(0)
        y.backward(torch.ones_like(y) if gradient is None else gradient)
        return x.grad

    def step() -> Tensor:
        ahead = min(STAGES - 1 - stage, PIPELINE_BATCHES)
        for _ in range(ahead):
            swap(rank + 1, forward(take()), False)
        x = take()
        for number in range(PIPELINE_BATCHES - ahead):
            y = forward(x)
            back = backward(None if is_last else swap(rank + 1, y, True))
            more = number < PIPELINE_BATCHES - ahead - 1
            if not is_first:
                x = swap(rank - 1, back, more)
            elif more:
                x = take()
        for _ in range(ahead):
            back = backward(swap(rank + 1, None, True))
            if not is_first:
                swap(rank - 1, back, False)
        return reduce_flat(list(net.parameters()), groups[stage])

    return net, step
