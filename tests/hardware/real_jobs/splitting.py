"""What all ways of splitting a real job share: types, tokens, and an all-reduce of gradients."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from models import Drag, Size
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Step = Callable[[], Tensor]
Made = tuple[nn.Module, Step]
Maker = Callable[[torch.device, Size, Drag], Made]


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
