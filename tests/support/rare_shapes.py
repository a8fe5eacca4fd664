"""Shapes of jobs that nobody had asked about live; `draw_rare(kind, seed)` draws one.

Generation beside training, two models in turn, embeddings that travel, statistics in every layer,
norms of gradients, recomputation, data that one rank broadcasts, barriers, jobs that meet rarely,
loaders that jitter, buckets that are fused differently in each step, and steps of all lengths.
"""

from collections.abc import Callable

import numpy as np
from tests.support.job_shapes import MB, WORLD, Call, Host, Item, Join, Kernel, Limit, Shape, Sync
from tests.support.more_shapes import Dice, draw_more, ends_of, plain_job, work
from tests.support.random_jobs import DrawnJob


def draw_rare(kind: str, seed: int) -> DrawnJob:
    """Draw a job of one kind of `RARE`, with a step of its own length."""
    dice = np.random.default_rng([seed, 78, [*RARE].index(kind)])
    make, lengths = RARE[kind]
    step_s = float(dice.choice(lengths))
    noise = draw_more("regional", seed + 2000, step_s).noise
    return DrawnJob(f"{kind}/{seed}", make(dice, step_s), noise, step_s)


def _generation(dice: Dice, step_s: float) -> Shape:
    """Tensor pairs generate token by token, then all ranks train on what they made."""
    ranks, tokens = int(dice.choice([4, 8])), int(dice.choice([8, 16, 24]))
    batches, buckets, launch = int(dice.integers(2, 5)), int(dice.integers(2, 5)), 0.3
    members, share = tuple(range(ranks)), dice.uniform(0.3, 0.6)
    lengths = np.ones(512) if dice.random() < 0.5 else dice.uniform(0.8, 1.2, 512)

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % 2
        token = Call("AllReduce", 64 << 10, 100 + first, (first, first + 1), 1, feeds_compute=True)
        items: list[Item] = [Host(step_s * 0.01)]
        for _ in range(int(tokens * lengths[step % 512])):
            items += [*work(step_s * share / tokens, 0.5), token]
        items += [Call("AllGather", 1 * MB, 3, members, 2, feeds_compute=True), Sync()]
        part = step_s * (0.9 - share) / batches
        for _ in range(batches):
            items += work(part * 0.3, launch)
            for bucket in range(buckets):
                items += work(part * 0.6 / buckets, launch)
                items.append(Call("AllReduce", (40 - bucket) * MB, WORLD, members, 3))
            items += [Join(3), *work(part * 0.1, 0.2)]
        return [*items, Sync()]

    return Shape(ranks, program)


def _two_models(dice: Dice, step_s: float) -> Shape:
    """A discriminator and a generator are trained in turn, each in a communicator of its own."""
    ranks, launch = int(dice.choice([4, 8])), dice.uniform(0.2, 0.7)
    members, buckets = tuple(range(ranks)), dice.integers(2, 6, 2).tolist()
    first, ends = dice.uniform(0.3, 0.6), ends_of(dice, step_s)

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02)]
        for model, share in enumerate((first, 1 - first)):
            part = step_s * 0.8 * share
            items += work(part * 0.35, launch, 3)
            for bucket in range(buckets[model]):
                items += work(part * 0.6 / buckets[model], launch)
                items.append(Call("AllReduce", (30 - bucket) * MB, 10 + model, members, 1 + model))
            items += [Join(1 + model), *work(part * 0.05, 0.3)]
        return [*items, *ends(step)]

    return Shape(ranks, program)


def _embeddings(dice: Dice, step_s: float) -> Shape:
    """Embeddings travel all to all, forward and back; dense layers are reduced in buckets."""
    ranks, launch = int(dice.choice([4, 8, 16])), dice.uniform(0.2, 0.7)
    buckets, tables = int(dice.integers(1, 4)), int(dice.integers(1, 3))
    members, ends = tuple(range(ranks)), ends_of(dice, step_s)
    lookups = np.exp(dice.choice([0.0, 0.03]) * dice.standard_normal(ranks))

    def program(rank: int, step: int) -> list[Item]:
        own = float(lookups[rank])
        travel = Call("AllToAll", 12 * MB, 2, members, 2, feeds_compute=True)
        keys = Call("AllToAll", 1 * MB, 2, members, 2, feeds_compute=True)
        items: list[Item] = [Host(step_s * 0.03), keys]
        for _ in range(tables):
            items += [*work(step_s * 0.1 * own / tables, launch), travel]
        items += work(step_s * 0.3, launch, 4)
        for bucket in range(buckets):
            items += work(step_s * 0.35 / buckets, launch)
            items.append(Call("AllReduce", (12 - bucket) * MB, WORLD, members, 1))
        for _ in range(tables):
            items += [travel, *work(step_s * 0.1 * own / tables, launch)]
        return [*items, Join(1), *ends(step)]

    return Shape(ranks, program)


def _deep_norms(dice: Dice, step_s: float) -> Shape:
    """A deep convolution net: statistics in every layer, in both directions."""
    ranks, layers, launch = int(dice.choice([4, 8])), int(dice.choice([20, 33, 53])), 0.5
    members, buckets, ends = tuple(range(ranks)), int(dice.integers(2, 5)), ends_of(dice, step_s)

    def program(rank: int, step: int) -> list[Item]:
        gather = Call("AllGather", 4 << 10, WORLD, members, 0, feeds_compute=True)
        norm = Call("AllReduce", 4 << 10, WORLD, members, 0, feeds_compute=True)
        items: list[Item] = [Host(step_s * 0.02)]
        for _ in range(layers):
            items += [*work(step_s * 0.27 / layers, launch), gather]
        for layer in range(layers):
            items += [*work(step_s * 0.54 / layers, launch), norm]
            if layer * buckets // layers != (layer + 1) * buckets // layers:
                items.append(Call("AllReduce", 25 * MB, 7, members, 1))
        return [*items, Join(1), *ends(step)]

    return Shape(ranks, program)


def _norms(dice: Dice, step_s: float) -> Shape:
    """The norm of all gradients is reduced, and read by the host, before the optimizer."""
    plain = plain_job(dice, step_s)
    members, reads = tuple(range(plain.ranks)), bool(dice.random() < 0.5)

    def program(rank: int, step: int) -> list[Item]:
        norm = Call("AllReduce", 4, WORLD, members, 1, feeds_compute=True)
        *items, optimizer, last = plain.program(rank, step)
        return [*items, norm, *([Sync()] if reads else []), optimizer, last]

    return Shape(plain.ranks, program)


def _recomputed(dice: Dice, step_s: float) -> Shape:
    """Tensor pairs recompute each layer, with its collectives, before they go back through it."""
    replicas, layers, launch = int(dice.choice([1, 2, 4])), int(dice.integers(3, 9)), 0.35
    width, part = (2 if replicas > 1 else 4), step_s * 0.85 / (4 * layers)
    ranks, ends = width * replicas, ends_of(dice, step_s)

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width
        near, across = tuple(range(first, first + width)), tuple(range(rank % width, ranks, width))
        join = Call("AllReduce", 6 * MB, 100 + first, near, 0, feeds_compute=True)
        items: list[Item] = [Host(step_s * 0.02)]
        for _ in range(layers):
            items += [*work(part / 2, launch), join, *work(part / 2, launch), join]
        for _ in range(layers):
            items += [*work(part / 2, launch), join, *work(part / 2, launch), join]
            items += [*work(part, launch), join, *work(part, launch), join]
            if replicas > 1:
                items.append(Call("AllReduce", 20 * MB, 200 + rank % width, across, 1))
        return [*items, Join(1), *ends(step)]

    return Shape(ranks, program)


def _gathered_ahead(dice: Dice, step_s: float) -> Shape:
    """A sharded optimizer whose parameters are gathered while the next step runs forward."""
    ranks, buckets = int(dice.choice([4, 8, 16])), int(dice.integers(2, 7))
    launch, members, ends = dice.uniform(0.2, 0.6), tuple(range(ranks)), ends_of(dice, step_s)

    def program(rank: int, step: int) -> list[Item]:
        gather = Call("AllGather", 20 * MB, WORLD, members, 1)
        items: list[Item] = [Host(step_s * 0.02), gather]
        for _ in range(buckets):
            items += [Join(1), gather, *work(step_s * 0.28 / buckets, launch)]
        for _ in range(buckets):
            items += work(step_s * 0.56 / buckets, launch)
            items.append(Call("ReduceScatter", 40 * MB, WORLD, members, 2))
        norm = Call("AllReduce", 4, 5, members, 2, feeds_compute=True)
        return [*items, norm, Join(2), *ends(step)]

    return Shape(ranks, program)


def _rare_meetings(dice: Dice, step_s: float) -> Shape:
    """Every rank trains alone, and all meet with their parameters after many steps."""
    ranks, inner, launch = int(dice.choice([4, 8])), int(dice.choice([10, 20])), 0.4
    members, buckets = tuple(range(ranks)), int(dice.choice([1, 4]))

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.01)]
        for _ in range(inner):
            items += [*work(step_s * 0.9 / inner, launch, 2), Sync()]
        calls = [Call("AllReduce", 100 * MB, WORLD, members, 1) for _ in range(buckets)]
        return [*items, *calls, Join(1), *work(step_s * 0.02, 0.3), Sync()]

    return Shape(ranks, program)


def _curriculum(dice: Dice, step_s: float) -> Shape:
    """Sequences of one length for half a minute or so, and then longer or shorter ones."""
    plain, every = plain_job(dice, step_s), int(dice.choice([25.0, 40.0, 60.0]) / step_s)
    factors = np.concatenate([[1.0], dice.choice([0.7, 0.85, 1.2, 1.5, 2.0], 60)])

    def program(rank: int, step: int) -> list[Item]:
        by = float(factors[step // every])
        return [
            Kernel(item.gpu_s * by, item.launch_s) if isinstance(item, Kernel) else item
            for item in plain.program(rank, step)
        ]

    return Shape(plain.ranks, program)


def _background_writes(dice: Dice, step_s: float) -> Shape:
    """Every so many steps all hosts write a checkpoint in the background, and launch slower."""
    plain, every = plain_job(dice, step_s, launch=0.5), int(dice.choice([50, 100]))
    lasts, by = int(dice.integers(3, 12)), dice.uniform(1.2, 1.8)

    def program(rank: int, step: int) -> list[Item]:
        items = plain.program(rank, step)
        if step % every >= lasts or step < every:
            return items
        items = [
            Kernel(item.gpu_s, item.launch_s * by) if isinstance(item, Kernel) else item
            for item in items
        ]
        return [Kernel(step_s * 0.3, step_s * 0.02), *items] if step % every == 0 else items

    return Shape(plain.ranks, program)


def _loaders(dice: Dice, step_s: float) -> Shape:
    """Hosts wait for data, for longer or shorter in each step, and now and then for very long."""
    plain, spread = plain_job(dice, step_s), dice.uniform(0.3, 0.8)
    waits = step_s * 0.04 * np.exp(spread * dice.standard_normal((4096, plain.ranks)))

    def program(rank: int, step: int) -> list[Item]:
        return [Host(float(waits[step % 4096, rank])), *plain.program(rank, step)]

    return Shape(plain.ranks, program)


def _barriers(dice: Dice, step_s: float) -> Shape:
    """A barrier in front of each step, for which the host waits."""
    plain = plain_job(dice, step_s)
    members, last = tuple(range(plain.ranks)), bool(dice.random() < 0.5)

    def program(rank: int, step: int) -> list[Item]:
        barrier = [Call("AllReduce", 4, 2, members, 3, feeds_compute=True), Sync()]
        items = plain.program(rank, step)
        return [*items, *barrier] if last else [*barrier, *items]

    return Shape(plain.ranks, program)


def _broadcast_data(dice: Dice, step_s: float) -> Shape:
    """The first rank of each tensor group loads the data, and broadcasts them to its group."""
    width, replicas, layers = 2, int(dice.choice([2, 4])), int(dice.integers(3, 8))
    ranks, launch, ends = width * replicas, dice.uniform(0.2, 0.5), ends_of(dice, step_s)
    part, batches = step_s * 0.85 / (3 * layers), int(dice.choice([1, 2, 4]))

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width
        near, across = tuple(range(first, first + width)), tuple(range(rank % width, ranks, width))
        join = Call("AllReduce", 4 * MB, 100 + first, near, 0, feeds_compute=True)
        data = Call("Broadcast", 64 << 10, 100 + first, near, 0, feeds_compute=True)
        items: list[Item] = []
        for batch in range(batches):
            items += [Host(step_s * 0.02 / batches)] if rank == first else []
            items += [data] * 2
            for share in (1, 2):
                for _ in range(layers):
                    items += [*work(part * share / batches, launch), join]
                    if share == 2 and batch == batches - 1:
                        items.append(Call("AllReduce", 24 * MB, 200 + rank % width, across, 1))
        return [*items, Join(1), *ends(step)]

    return Shape(ranks, program)


def _fused_at_will(dice: Dice, step_s: float) -> Shape:
    """Gradients are fused by when they are ready: number and sizes of calls change by step."""
    ranks, launch, total = int(dice.choice([4, 8])), dice.uniform(0.2, 0.6), 12
    members, ends = tuple(range(ranks)), ends_of(dice, step_s)
    cuts = dice.random((1 << 14, total)) < dice.uniform(0.3, 0.6)  # rows that repeat are steps

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02), *work(step_s * 0.28, launch, 4)]
        waiting = 0
        for tensor in range(total):
            items += work(step_s * 0.57 / total, launch)
            waiting += 1
            if cuts[step % len(cuts), tensor] or tensor == total - 1:
                items.append(Call("AllReduce", waiting * 7 * MB, WORLD, members, 1))
                waiting = 0
        return [*items, Join(1), *ends(step)]

    return Shape(ranks, program)


def _packed(dice: Dice, step_s: float) -> Shape:
    """Packed sequences: how much each rank has to do differs in every step."""
    plain, spread = plain_job(dice, step_s), dice.uniform(0.01, 0.05)
    load = np.exp(spread * dice.standard_normal((4096, plain.ranks)))

    def program(rank: int, step: int) -> list[Item]:
        by = float(load[step % 4096, rank])
        return [
            Kernel(item.gpu_s * by, item.launch_s) if isinstance(item, Kernel) else item
            for item in plain.program(rank, step)
        ]

    return Shape(plain.ranks, program)


def _factors(dice: Dice, step_s: float) -> Shape:
    """Gradients are compressed to two factors, reduced one after the other at the end."""
    ranks, launch = int(dice.choice([4, 8, 16])), dice.uniform(0.2, 0.6)
    members, ends = tuple(range(ranks)), ends_of(dice, step_s)

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02), *work(step_s * 0.8, launch, 8)]
        for size in (2 * MB, 512 << 10, 512 << 10):
            items.append(Call("AllReduce", size, WORLD, members, 1, feeds_compute=True))
            items += work(step_s * 0.02, 0.3)
        return [*items, *ends(step)]

    return Shape(ranks, program)


def _of_ranks(*numbers: int) -> Callable[[Dice, float], Shape]:
    return lambda dice, step_s: plain_job(dice, step_s, ranks=int(dice.choice(numbers)))


def _sharded(dice: Dice, step_s: float) -> Shape:
    """FSDP with few long layers, whose steps take a second or more."""
    ranks, layers, launch = int(dice.choice([8, 16])), int(dice.integers(4, 9)), 0.2
    members, part = tuple(range(ranks)), step_s * 0.88 / (3 * layers)

    def program(rank: int, step: int) -> list[Item]:
        gather = Call("AllGather", 40 * MB, WORLD, members, 1, needs_compute=False)
        scatter = Call("ReduceScatter", 40 * MB, WORLD, members, 2)
        items: list[Item] = [Host(step_s * 0.02), gather]
        for share in (1, 2):
            for layer in range(layers):
                is_last = share == 2 and layer == layers - 1
                items += [Join(1), *([] if is_last else [gather, Limit(2)])]
                items += [*work(part * share, launch), *([scatter] if share == 2 else [])]
        return [*items, Join(2), *work(step_s * 0.03, 0.3), Sync()]

    return Shape(ranks, program)


Make = Callable[[Dice, float], Shape]
USUAL = (0.06, 0.1, 0.15)
# In this order: it is part of what is drawn. Each with the lengths that its steps may have.
RARE: dict[str, tuple[Make, tuple[float, ...]]] = {
    "generation": (_generation, (0.6, 1.5, 4.0)),
    "two models": (_two_models, USUAL),
    "embeddings": (_embeddings, (0.03, *USUAL)),
    "deep norms": (_deep_norms, (0.1, 0.2, 0.3)),
    "norms": (_norms, USUAL),
    "recomputed": (_recomputed, USUAL),
    "gathered ahead": (_gathered_ahead, USUAL),
    "rare meetings": (_rare_meetings, (1.0, 2.0)),
    "curriculum": (_curriculum, USUAL),
    "background writes": (_background_writes, USUAL),
    "loaders": (_loaders, USUAL),
    "barriers": (_barriers, USUAL),
    "broadcast data": (_broadcast_data, USUAL),
    "fused at will": (_fused_at_will, USUAL),
    "packed": (_packed, USUAL),
    "factors": (_factors, USUAL),
    "few": (_of_ranks(2, 3), USUAL),
    "nodes": (_of_ranks(16, 32), USUAL),
    "quick": (_of_ranks(4, 8), (0.012, 0.015, 0.02)),
    "seconds": (_of_ranks(4, 8), (0.7, 1.0, 1.6)),
    "tens of seconds": (_of_ranks(8), (6.0, 10.0)),
    "sharded seconds": (_sharded, (0.7, 1.3, 2.5)),
}
