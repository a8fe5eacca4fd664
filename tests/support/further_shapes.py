"""Shapes of jobs that mix what others do apart, with random sizes; `FURTHER` is a hold-out.

Equal calls that follow each other, groups that meet rarely, two networks trained in turn, tensor
groups inside shards, embeddings exchanged beside gradients, heads swapped for sequences, chunks of
pipelines, losses that are logged in every step, and ranks that have more to do than others.
"""

from collections.abc import Callable

import numpy as np
from tests.support.job_shapes import MB, WORLD, Call, Host, Item, Join, Kernel, Limit, Shape, Sync
from tests.support.other_shapes import interleaved

Dice = np.random.Generator
Ends = Callable[[int], list[Item]]


def _ends(dice: Dice, step_s: float, ahead: bool = True) -> Ends:
    every = int(dice.choice([1, 1, 4, 10, 20])) if ahead else 1
    optimizer = Kernel(step_s * dice.uniform(0.02, 0.08), step_s * dice.uniform(0.005, 0.03))

    def ends(step: int) -> list[Item]:
        return [optimizer, Sync()] if step % every == 0 else [optimizer, Limit(60)]

    return ends


def _work(seconds: float, launch: float, parts: int = 1) -> list[Item]:
    return [Kernel(seconds / parts, seconds / parts * launch)] * parts


def _equal_calls(dice: Dice, step_s: float) -> Shape:
    """Two to four equal all-reduces per step with uneven work between them, none overlapped."""
    ranks, calls = int(dice.choice([2, 4, 8, 16])), int(dice.choice([2, 2, 3, 4]))
    launch, ends, members = dice.uniform(0.1, 0.6), _ends(dice, step_s), tuple(range(ranks))
    shares = dice.uniform(0.5, 1.5, calls)
    shares *= 0.8 / shares.sum()
    call = Call("AllReduce", 40 * MB, WORLD, members, feeds_compute=True)

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02)]
        for share in shares.tolist():
            items += [*_work(step_s * share, launch, 3), call]
        return [*items, *ends(step)]

    return Shape(ranks, program)


def _rare_meetings(dice: Dice, step_s: float) -> Shape:
    """Groups train alone for many steps; all ranks then average their parameters."""
    width, groups = int(dice.choice([2, 4, 8])), int(dice.choice([2, 3, 4]))
    every, buckets = int(dice.choice([5, 10, 25, 50])), int(dice.integers(1, 5))
    ranks, launch, ends = width * groups, dice.uniform(0.2, 0.7), _ends(dice, step_s)
    is_apart = bool(dice.random() < 0.5)

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width
        near, across = tuple(range(first, first + width)), tuple(range(rank % width, ranks, width))
        items: list[Item] = [Host(step_s * 0.02), *_work(step_s * 0.28, launch, 4)]
        for bucket in range(buckets):
            items += _work(step_s * 0.57 / buckets, launch)
            items.append(Call("AllReduce", (25 + bucket) * MB, 50 + first, near, 1))
        items += [Join(1), *ends(step)]
        if step % every == every - 1:
            comm, members = (
                (90 + rank % width, across) if is_apart else (WORLD, tuple(range(ranks)))
            )
            items += [Call("AllReduce", 80 * MB, comm, members, 1, feeds_compute=True)] * 2
            items.append(Sync())
        return items

    return Shape(ranks, program)


def _two_networks(dice: Dice, step_s: float) -> Shape:
    """Two networks are trained in turn within a step, each with its own buckets."""
    ranks, launch = int(dice.choice([4, 8])), dice.uniform(0.2, 0.7)
    buckets, ends = dice.integers(1, 5, 2).tolist(), _ends(dice, step_s)
    first, members = dice.uniform(0.3, 0.6), tuple(range(ranks))
    is_equal = bool(dice.random() < 0.4)

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02)]
        for net, share in enumerate((first, 1 - first)):
            items += _work(step_s * 0.27 * share, launch, 3)
            for bucket in range(buckets[net]):
                items += _work(step_s * 0.54 * share / buckets[net], launch)
                size = 16 if is_equal else 30 - 9 * net - bucket
                items.append(Call("AllReduce", size * MB, WORLD, members, 1))
            items += [Join(1), *_work(step_s * 0.02, 0.3)]
        return [*items, *ends(step)]

    return Shape(ranks, program)


def _tensor_shards(dice: Dice, step_s: float) -> Shape:
    """Tensor groups whose parameters are sharded across them, gathered a layer ahead."""
    width, sharing = 2, int(dice.choice([2, 4]))
    ranks, layers, launch = width * sharing, int(dice.integers(3, 7)), dice.uniform(0.2, 0.6)
    ends, part = _ends(dice, step_s), step_s * 0.85 / (3 * layers)

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width
        near, across = tuple(range(first, first + width)), tuple(range(rank % width, ranks, width))
        join = Call("AllReduce", 4 * MB, 100 + first, near, 3, feeds_compute=True)
        gather = Call("AllGather", 16 * MB, 200 + rank % width, across, 1, needs_compute=False)
        scatter = Call("ReduceScatter", 16 * MB, 200 + rank % width, across, 2)
        items: list[Item] = [Host(step_s * 0.02)]
        for share in (1, 2):
            items.append(gather)
            for layer in range(layers):
                items += [Join(1), *([gather] if layer < layers - 1 else [])]
                items += [*_work(part * share / 2, launch), join] * 2
                items += [scatter] if share == 2 else []
        return [*items, Join(2), *ends(step)]

    return Shape(ranks, program)


def _embeddings(dice: Dice, step_s: float) -> Shape:
    """Embeddings are exchanged beside the dense part, gradients reduced in buckets."""
    ranks, buckets, launch = int(dice.choice([4, 8, 16])), int(dice.integers(1, 4)), 0.3
    uneven, ends = dice.choice([0.0, 0.0, 0.05]), _ends(dice, step_s)
    load, members = np.exp(uneven * dice.standard_normal((512, ranks))), tuple(range(ranks))
    exchange = Call("AllToAll", 20 * MB, WORLD, members, 2)

    def program(rank: int, step: int) -> list[Item]:
        look = step_s * 0.15 * float(load[step % 512, rank])
        items: list[Item] = [Host(step_s * 0.02), *_work(look, launch), exchange]
        items += [*_work(step_s * 0.15, launch), Join(2), *_work(step_s * 0.15, launch)]
        for bucket in range(buckets):
            items += _work(step_s * 0.3 / buckets, launch)
            items.append(Call("AllReduce", (12 + bucket) * MB, 2, members, 1))
        items += [exchange, Join(2), *_work(look, launch), Join(1)]
        return [*items, *ends(step)]

    return Shape(ranks, program)


def _heads(dice: Dice, step_s: float) -> Shape:
    """Sequences are swapped for heads and back around each attention, inside sharded replicas."""
    width, replicas = int(dice.choice([2, 4])), int(dice.choice([2, 4]))
    ranks, layers, launch = width * replicas, int(dice.integers(2, 6)), dice.uniform(0.2, 0.5)
    ends, part, members = _ends(dice, step_s), step_s * 0.85 / (3 * layers), tuple(range(ranks))

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width
        near = tuple(range(first, first + width))
        swap = Call("AllToAll", 6 * MB, 300 + first, near, 3, feeds_compute=True)
        gather = Call("AllGather", 12 * MB, WORLD, members, 1, needs_compute=False)
        scatter = Call("ReduceScatter", 12 * MB, WORLD, members, 2)
        items: list[Item] = [Host(step_s * 0.02)]
        for share in (1, 2):
            for _ in range(layers):
                items += [gather, Join(1), *_work(part * share * 0.3, launch), swap]
                items += [*_work(part * share * 0.4, launch), swap]
                items += _work(part * share * 0.3, launch)
                items += [scatter] if share == 2 else []
        return [*items, Join(2), *ends(step)]

    return Shape(ranks, program)


def _chunks(dice: Dice, step_s: float) -> Shape:
    """A pipeline whose ranks hold several chunks of layers each."""
    stages, chunks = 4, 2
    replicas, batches = int(dice.choice([2, 3, 4])), 4
    part = step_s / (3 * chunks * (batches + stages))
    return interleaved(stages, replicas, chunks, batches, part, dice.uniform(0.1, 0.35))


def _logged(dice: Dice, step_s: float) -> Shape:
    """Buffers are broadcast before each step; losses and norms are shared after it."""
    ranks, buckets = int(dice.choice([2, 4, 8, 8])), int(dice.integers(1, 7))
    launch, ends, members = dice.uniform(0.2, 0.9), _ends(dice, step_s), tuple(range(ranks))
    norm = Call("AllReduce", 4, WORLD, members, 1, feeds_compute=True)

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02)]
        items.append(Call("Broadcast", 3000, WORLD, members, 1, feeds_compute=True))
        items += _work(step_s * 0.28, launch, 4)
        for bucket in range(buckets):
            items += _work(step_s * 0.57 / buckets, launch)
            items.append(Call("AllReduce", (30 - bucket) * MB, WORLD, members, 1))
        items += [Join(1), norm, *_work(step_s * 0.01, 0.3)]
        items += [norm] * (2 if step % 5 == 0 else 0)
        return [*items, *ends(step)]

    return Shape(ranks, program)


def _one_has_more(dice: Dice, step_s: float) -> Shape:
    """Rank 0 has a few percent more to do in every step, by nature."""
    ranks, buckets = int(dice.choice([4, 8, 8])), int(dice.integers(2, 6))
    launch, ends, members = dice.uniform(0.2, 0.6), _ends(dice, step_s), tuple(range(ranks))
    more = step_s * dice.uniform(0.02, 0.06)

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02), *_work(step_s * 0.27, launch, 4)]
        items += _work(more, launch) if rank == 0 else []
        for bucket in range(buckets):
            items += _work(step_s * 0.54 / buckets, launch)
            items.append(Call("AllReduce", (40 - 3 * bucket) * MB, WORLD, members, 1))
        return [*items, Join(1), *ends(step)]

    return Shape(ranks, program)


def _many_shards(dice: Dice, step_s: float) -> Shape:
    """Shards over 32 or 64 ranks, gathered ahead."""
    ranks, layers = int(dice.choice([32, 64])), int(dice.integers(3, 6))
    launch, ends, members = dice.uniform(0.2, 0.7), _ends(dice, step_s), tuple(range(ranks))
    part = step_s * 0.85 / (3 * layers)
    gather = Call("AllGather", 20 * MB, WORLD, members, 1, needs_compute=False)
    scatter = Call("ReduceScatter", 20 * MB, WORLD, members, 2)

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02)]
        for share in (1, 2):
            items.append(gather)
            for layer in range(layers):
                items += [Join(1), *([gather] if layer < layers - 1 else [])]
                items += _work(part * share, launch)
                items += [scatter] if share == 2 else []
        return [*items, Join(2), *ends(step)]

    return Shape(ranks, program)


def _batches_ahead(dice: Dice, step_s: float) -> Shape:
    """Sharded parameters and several micro-batches, with hosts up to a step ahead."""
    ranks, layers = int(dice.choice([4, 8])), int(dice.integers(2, 6))
    batches, launch = int(dice.integers(2, 5)), dice.uniform(0.2, 0.5)
    every, members = int(dice.choice([5, 10, 20])), tuple(range(ranks))
    part = step_s * 0.88 / (3 * layers * batches)
    gather = Call("AllGather", 14 * MB, WORLD, members, 1, needs_compute=False)
    scatter = Call("ReduceScatter", 14 * MB, WORLD, members, 2)
    kernels = 3 * layers * batches + 1

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02)]
        for _ in range(batches):
            for share in (1, 2):
                for _ in range(layers):
                    items += [gather, Join(1), *_work(part * share, launch)]
                    items += [scatter] if share == 2 else []
        items += [Join(2), *_work(step_s * 0.04, 0.2)]
        return [*items, Sync() if step % every == 0 else Limit(min(kernels, 200))]

    return Shape(ranks, program)


# In this order: it is part of what is drawn.
FURTHER: dict[str, Callable[[Dice, float], Shape]] = {
    "equal calls": _equal_calls,
    "rare meetings": _rare_meetings,
    "two networks": _two_networks,
    "tensor shards": _tensor_shards,
    "embeddings": _embeddings,
    "heads": _heads,
    "chunks": _chunks,
    "logged": _logged,
    "one has more": _one_has_more,
    "many shards": _many_shards,
    "batches ahead": _batches_ahead,
}
