"""The networks that the real jobs train: a small GPT, and its block for tensor parallelism."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class Size:
    """The size of a network and of what a rank reads in one step."""

    width: int = 768
    layers: int = 6
    heads: int = 12
    words: int = 8192
    length: int = 512
    batch: int = 8


Drag = Callable[[Tensor], Tensor]  # a place where a slow GPU takes longer


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Causal attention of (batch, length, features) with that many heads."""
    batch, length, width = q.shape
    parts = (t.view(batch, length, heads, width // heads).transpose(1, 2) for t in (q, k, v))
    mixed = scaled_dot_product_attention(*parts, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, length, width)


def feed_forward(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    """A transformer block; `inner` replaces the feed-forward part."""

    def __init__(self, size: Size, inner: nn.Module | None = None) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = inner or feed_forward(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(attend(q, k, v, self.heads))
        return x + self.inner(self.norm2(x))


class GPT(nn.Module):
    """Embedding, blocks and head, with a place to be slow after every block."""

    def __init__(self, size: Size, blocks: list[nn.Module], drag: Drag) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(size.width, size.words, bias=False)
        self.drag = drag

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = self.drag(block(x))
        return self.head(x)


class GatherSequence(torch.autograd.Function):
    """All-gather along the sequence, reduce-scatter of the gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return _scattered(gradient, ctx.group), None


class ScatterSequence(torch.autograd.Function):
    """Reduce-scatter along the sequence, all-gather of the gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scattered(x, group)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradient, ctx.group), None


def _gathered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    whole = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
    return whole


def _scattered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    part = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
    dist.reduce_scatter_tensor(part, x.contiguous(), group=group)
    return part


class TensorBlock(nn.Module):
    """A block split over the ranks of `group`: heads and hidden features, and the sequence between.

    Its input and output are (length / ranks, batch, width).
    """

    def __init__(self, size: Size, group: dist.ProcessGroup) -> None:
        super().__init__()
        width, ranks = size.width, group.size()
        self.group, self.heads = group, size.heads // ranks
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width // ranks)
        self.out = nn.Linear(width // ranks, width, bias=False)
        self.up = nn.Linear(width, 4 * width // ranks)
        self.down = nn.Linear(4 * width // ranks, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        whole = GatherSequence.apply(self.norm1(x), self.group).transpose(0, 1)
        q, k, v = self.qkv(whole).chunk(3, -1)
        mixed = self.out(attend(q, k, v, self.heads)).transpose(0, 1)
        x = x + ScatterSequence.apply(mixed, self.group)
        whole = GatherSequence.apply(self.norm2(x), self.group)
        hidden = self.down(nn.functional.gelu(self.up(whole)))
        return x + ScatterSequence.apply(hidden, self.group)


class PassOn(torch.autograd.Function):
    """Send to the next rank of a ring while receiving from the one before; gradients go back."""

    @staticmethod
    def forward(ctx, x: Tensor, ring: dist.ProcessGroup) -> Tensor:
        ctx.ring = ring
        return _passed(x, ring, 1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return _passed(gradient, ctx.ring, -1), None


def _passed(x: Tensor, ring: dist.ProcessGroup, by: int) -> Tensor:
    ranks, at = dist.get_process_group_ranks(ring), dist.get_rank(ring)
    target, source = (ranks[(at + step) % len(ranks)] for step in (by, -by))
    sent, received = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    swap = [
        dist.P2POp(dist.isend, sent, target, ring),
        dist.P2POp(dist.irecv, received, source, ring),
    ]
    for work in dist.batch_isend_irecv(swap):
        work.wait()
    return received


class RingBlock(nn.Module):
    """A block whose keys and values visit every rank of `ring`, each of which has other words.

    Its parts of attention are added up without their common denominator: the work is the same.
    """

    def __init__(self, size: Size, ring: dist.ProcessGroup) -> None:
        super().__init__()
        width = size.width
        self.ring, self.heads = ring, size.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = feed_forward(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        mixed, pair = attend(q, k, v, self.heads), torch.stack((k, v))
        for _ in range(self.ring.size() - 1):
            pair = PassOn.apply(pair, self.ring)
            mixed = mixed + attend(q, pair[0], pair[1], self.heads)
        x = x + self.out(mixed)
        return x + self.inner(self.norm2(x))


class ExchangeTokens(torch.autograd.Function):
    """All-to-all of equal parts; its gradient goes the same way back."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchanged(x, group)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return _exchanged(gradient, ctx.group), None


def _exchanged(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    received = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, x.contiguous(), group=group)
    return received


class Experts(nn.Module):
    """One expert per rank of `group`; every token goes to one of them, up to a capacity."""

    def __init__(self, size: Size, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.router = nn.Linear(size.width, group.size())
        self.expert = feed_forward(size.width)
        for parameter in self.expert.parameters():
            parameter.is_expert = True  # its gradient belongs to this expert's replicas alone

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        tokens, ranks = x.reshape(-1, width), self.group.size()
        capacity = tokens.shape[0] // ranks
        weights = self.router(tokens).softmax(-1)
        # each expert takes the tokens that want it most: equal parts, as in expert-choice routing
        gate, chosen = weights.topk(capacity, dim=0)
        chosen = chosen.t().reshape(-1)
        sent = tokens[chosen]
        worked = self.expert(ExchangeTokens.apply(sent, self.group))
        returned = ExchangeTokens.apply(worked, self.group) * gate.t().reshape(-1, 1)
        return torch.zeros_like(tokens).index_add(0, chosen, returned).view(batch, length, width)
