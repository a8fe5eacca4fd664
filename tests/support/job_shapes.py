"""Shapes of training jobs for the simulator: what each rank runs in a step."""

from collections.abc import Callable
from dataclasses import dataclass

WORLD = 1  # the communicator of all ranks
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Kernel:
    """GPU work, and the time the host needs to launch it."""

    gpu_s: float
    launch_s: float


@dataclass(frozen=True, slots=True)
class Host:
    """Work of the host alone."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Sync:
    """The host waits for its GPU, as `loss.item()` does."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The host waits until at most `kernels` of its launches are still to end."""

    kernels: int


@dataclass(frozen=True, slots=True)
class Join:
    """Compute waits for all calls of a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Call:
    """A collective; `peer` is the global rank of the other end of a send or receive."""

    op: str
    size_bytes: int
    comm: int
    members: tuple[int, ...]
    stream: int = 0
    peer: int = -1
    needs_compute: bool = True
    feeds_compute: bool = False


Item = Kernel | Host | Sync | Limit | Join | Call | tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A job: its number of ranks, and the program of a rank in a step."""

    ranks: int
    program: Callable[[int, int], list[Item]]


def ddp(
    ranks: int = 8,
    step_s: float = 0.04,
    buckets: int = 6,
    micro_batches: int = 1,
    launch: float = 0.4,
    one_size: bool = False,
) -> Shape:
    """Overlapped gradient buckets; `launch` is the host's time as a share of the GPU's."""
    members, part = tuple(range(ranks)), step_s * 0.9 / (3 * micro_batches)

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02)]
        for batch in range(micro_batches):
            items.append(Kernel(part, part * launch))
            for bucket in range(buckets):
                items.append(Kernel(2 * part / buckets, 2 * part / buckets * launch))
                if batch == micro_batches - 1:
                    size = 16 * MB if one_size else (30 - bucket) * MB
                    items.append(Call("AllReduce", size, WORLD, members, 1))
        return [*items, Join(1), Kernel(step_s * 0.05, step_s * 0.03), Sync()]

    return Shape(ranks, program)


def fsdp(
    ranks: int = 8, layers: int = 6, layer_s: float = 0.002, launch: float = 0.8, root: bool = True
) -> Shape:
    """Parameters gathered one layer ahead on one stream, gradients scattered on another."""
    members = tuple(range(ranks))

    def gather(size: int) -> Call:
        return Call("AllGather", size, WORLD, members, 1, needs_compute=False)

    def program(rank: int, step: int) -> list[Item]:
        kernel = Kernel(layer_s, layer_s * launch)
        items: list[Item] = [Host(layer_s)]
        if root:
            items += [gather(12 * MB), Join(1), kernel]
        for _ in range(layers):
            items += [gather(6 * MB), Join(1), kernel]
        for _ in range(layers):
            items += [gather(6 * MB), Join(1), kernel, kernel]
            items.append(Call("ReduceScatter", 6 * MB, WORLD, members, 2))
        if root:
            items.append(Call("ReduceScatter", 12 * MB, WORLD, members, 2))
        return [*items, Join(2), Kernel(layer_s, layer_s), Sync()]

    return Shape(ranks, program)


def tensor_parallel(
    ranks: int = 8, width: int = 2, layers: int = 8, layer_s: float = 0.002, launch: float = 0.3
) -> Shape:
    """Gathers and scatters within tensor groups, then one gradient all-reduce across them."""

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width
        near = tuple(range(first, first + width))
        across = tuple(range(rank % width, ranks, width))
        near_comm, across_comm = 100 + first, 200 + rank % width
        kernel = Kernel(layer_s / 2, layer_s / 2 * launch)
        items: list[Item] = [Host(layer_s)]
        for share in (1, 2):  # forward, then backward with twice the work
            for _ in range(layers):
                items.append(Call("AllGather", 4 * MB, near_comm, near, feeds_compute=True))
                items += [kernel] * share
                items.append(Call("ReduceScatter", 4 * MB, near_comm, near, feeds_compute=True))
                items += [kernel] * share
        if len(across) > 1:
            items.append(Call("AllReduce", 80 * MB, across_comm, across, 1, feeds_compute=True))
        return [*items, Kernel(layer_s, layer_s / 2), Sync()]

    return Shape(ranks, program)


def experts(ranks: int = 8, layers: int = 4, layer_s: float = 0.003, uneven: float = 0.0) -> Shape:
    """Tokens travel to experts and back in every layer; gradients are reduced at the end."""
    members = tuple(range(ranks))

    def exchange(step: int, layer: int) -> Call:
        size = int(8 * MB * (1 + uneven * (((step * 7 + layer * 3) % 11) / 11 - 0.5)))
        return Call("AllToAll", size, WORLD, members, feeds_compute=True)

    def program(rank: int, step: int) -> list[Item]:
        kernel = Kernel(layer_s / 2, layer_s * 0.15)
        items: list[Item] = [Host(layer_s / 2)]
        for layer in range(2 * layers):
            items += [kernel, exchange(step, layer), kernel, exchange(step, layer)]
        items += [Call("AllReduce", (40 - n) * MB, 2, members, 1) for n in range(3)]
        return [*items, Join(1), Kernel(layer_s, layer_s / 2), Sync()]

    return Shape(ranks, program)


def pipeline(
    stages: int = 4, replicas: int = 2, micro_batches: int = 8, stage_s: float = 0.003
) -> Shape:
    """One forward, one backward (1F1B): rank = replica × stages + stage."""
    ranks = stages * replicas
    everybody = tuple(range(ranks))

    def program(rank: int, step: int) -> list[Item]:
        stage = rank % stages
        after = [Call("Send", 2 * MB, WORLD, everybody, 1, rank + 1)] if stage < stages - 1 else []
        before = [Call("Recv", 2 * MB, WORLD, everybody, 2, rank - 1, False, True)] if stage else []
        grads = [Call("Recv", 2 * MB, WORLD, everybody, 3, rank + 1, False, True)] if after else []
        back = [Call("Send", 2 * MB, WORLD, everybody, 4, rank - 1)] if stage else []
        forward = Kernel(stage_s, stage_s * 0.3)
        backward = Kernel(2 * stage_s, stage_s * 0.4)
        warm = min(stages - 1 - stage, micro_batches)
        items: list[Item] = [Host(stage_s)]
        for _ in range(warm):
            items += [*before, forward, *after]
        for n in range(micro_batches - warm):
            items += [*before, forward]
            items += [tuple(after + grads)] if after else []
            items.append(backward)
            more = before if n < micro_batches - warm - 1 else []
            items += [tuple(back)] if back and not more else [*back]
        for _ in range(warm):
            items += [*grads, backward, *back]
        same = tuple(range(stage, ranks, stages))
        items.append(Call("AllReduce", 40 * MB, 300 + stage, same, 5, feeds_compute=True))
        return [*items, Kernel(stage_s, stage_s / 2), Sync()]

    return Shape(ranks, program)


def swapping_pipeline(
    stages: int = 4,
    replicas: int = 2,
    micro_batches: int = 6,
    stage_s: float = 0.003,
    launch: float = 0.3,
    *,
    in_pairs: bool = False,
) -> Shape:
    """One forward, one backward, with one kernel for what a stage sends and gets in return.

    Stages send to each other in the communicator of all ranks, or `in_pairs` in one of two.
    """
    ranks = stages * replicas
    forward, backward = Kernel(stage_s, stage_s * launch), Kernel(2 * stage_s, 2 * stage_s * launch)

    def swap(rank: int, peer: int, *ops: str) -> list[Item]:
        pair = (min(rank, peer), max(rank, peer))
        comm, members = (1000 + pair[0], pair) if in_pairs else (WORLD, tuple(range(ranks)))
        calls = [Call(op, 2 * MB, comm, members, 1, peer, feeds_compute=True) for op in ops]
        return [tuple(calls)] if calls else []

    def program(rank: int, step: int) -> list[Item]:
        stage = rank % stages
        is_first, is_last = stage == 0, stage == stages - 1
        take = [] if is_first else swap(rank, rank - 1, "Recv")
        warm = min(stages - 1 - stage, micro_batches)
        items: list[Item] = [Host(stage_s / 3)]
        for _ in range(warm):
            items += [*take, forward, *swap(rank, rank + 1, "Send")]
        items += take if micro_batches > warm else []
        for left in reversed(range(micro_batches - warm)):
            items += [forward, *([] if is_last else swap(rank, rank + 1, "Send", "Recv")), backward]
            items += [] if is_first else swap(rank, rank - 1, "Send", *(["Recv"] if left else []))
        for _ in range(warm):
            items += [*swap(rank, rank + 1, "Recv"), backward]
            items += [] if is_first else swap(rank, rank - 1, "Send")
        same = tuple(range(stage, ranks, stages))
        items.append(Call("AllReduce", 40 * MB, 300 + stage, same, 5, feeds_compute=True))
        return [*items, Kernel(stage_s, stage_s / 2), Sync()]

    return Shape(ranks, program)
