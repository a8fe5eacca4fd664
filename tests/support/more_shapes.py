"""Shapes of jobs beyond the common ones, with random sizes; `draw_more(kind, seed)` is a hold-out.

Context-parallel attention, experts inside tensor groups, shards whose gradients wait for the last
micro-batch, replicas that meet rarely, sequences of changing length, adapters with tiny gradients,
a rank that serves parameters, and others.
"""

from collections.abc import Callable

import numpy as np
from tests.support.job_shapes import MB, WORLD, Call, Host, Item, Join, Kernel, Limit, Shape, Sync
from tests.support.random_jobs import DrawnJob
from tests.support.simulated_job import Noise

Dice = np.random.Generator
Ends = Callable[[int], list[Item]]


def draw_more(kind: str, seed: int, step_s: float = 0.1) -> DrawnJob:
    """Draw a job of one kind of `MORE`."""
    dice = np.random.default_rng([seed, 77, [*MORE].index(kind)])
    noise = Noise(
        gpu=dice.uniform(0.005, 0.03),
        host=dice.uniform(0.05, 0.25),
        hiccup_s=step_s * dice.uniform(0.02, 0.2),
        hiccups=dice.uniform(0.002, 0.03),
        step_gpu=dice.uniform(0.001, 0.01),
        step_host=dice.uniform(0.01, 0.1),
        wander=dice.uniform(0.001, 0.02),
        eager_sends=kind == "receives ahead",
    )
    return DrawnJob(f"{kind}/{seed}", MORE[kind](dice, step_s), noise, step_s)


def ends_of(dice: Dice, step_s: float) -> Ends:
    """Draw how steps end: an optimizer, and a wait for the GPU now and then."""
    every = int(dice.choice([1, 1, 1, 4, 10]))
    optimizer = Kernel(step_s * dice.uniform(0.02, 0.08), step_s * dice.uniform(0.01, 0.03))

    def ends(step: int) -> list[Item]:
        return [optimizer, Sync()] if step % every == 0 else [optimizer, Limit(60)]

    return ends


def work(seconds: float, launch: float, parts: int = 1) -> list[Item]:
    """Return GPU work in equal parts; `launch` is the host's time as a share of it."""
    return [Kernel(seconds / parts, seconds / parts * launch)] * parts


def _context_gather(dice: Dice, step_s: float) -> Shape:
    """Keys and values of all ranks of a sequence are gathered before each attention."""
    width, replicas = int(dice.choice([2, 4, 4, 8])), int(dice.choice([1, 2, 2]))
    replicas = 2 if width * replicas < 4 else replicas
    ranks, layers, launch = width * replicas, int(dice.integers(3, 7)), dice.uniform(0.2, 0.6)
    ends, part = ends_of(dice, step_s), step_s * 0.85 / (3 * layers)

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width
        near = tuple(range(first, first + width))
        gather = Call("AllGather", 12 * MB, 700 + first, near, 1, feeds_compute=True)
        scatter = Call("ReduceScatter", 12 * MB, 700 + first, near, 1, feeds_compute=True)
        bucket = Call("AllReduce", 30 * MB, WORLD, tuple(range(ranks)), 2)
        items: list[Item] = [Host(step_s * 0.02)]
        for _ in range(layers):
            items += [*work(part * 0.4, launch), gather, *work(part * 0.6, launch)]
        for _ in range(layers):
            items += [*work(part * 0.8, launch), gather, *work(part * 0.6, launch)]
            items += [scatter, *work(part * 0.6, launch), bucket]
        return [*items, Join(2), *ends(step)]

    return Shape(ranks, program)


def _tensor_experts(dice: Dice, step_s: float) -> Shape:
    """Tensor groups of two, and experts spread over the tensor groups."""
    experts, replicas = int(dice.choice([2, 4])), int(dice.choice([1, 2]))
    width, layers, launch = 2, int(dice.integers(2, 5)), dice.uniform(0.2, 0.5)
    ranks, uneven = width * experts * replicas, dice.choice([0.0, 0.05, 0.1])
    ends, part = ends_of(dice, step_s), step_s * 0.85 / (3 * layers)
    load = np.exp(uneven * dice.standard_normal((512, layers, ranks // width)))

    def program(rank: int, step: int) -> list[Item]:
        pair, block = rank // width, rank // (width * experts)
        near = (pair * width, pair * width + 1)
        group = tuple(block * width * experts + at * width + rank % width for at in range(experts))
        join = Call("AllReduce", 6 * MB, 100 + pair, near, 1, feeds_compute=True)
        swap = Call("AllToAll", 8 * MB, 200 + group[0], group, 2, feeds_compute=True)
        items: list[Item] = [Host(step_s * 0.02)]
        for share in (1, 2):
            for layer in range(layers):
                expert = part * share * 0.5 * float(load[step % 512, layer, pair])
                items += [*work(part * share * 0.5, launch), join, swap]
                items += [*work(expert, launch), join, swap]
        items.append(Call("AllReduce", 80 * MB, WORLD, tuple(range(ranks)), feeds_compute=True))
        return [*items, *ends(step)]

    return Shape(ranks, program)


def _no_sync(dice: Dice, step_s: float) -> Shape:
    """Micro-batches gather each layer; gradients are scattered in the last one only."""
    ranks, layers, batches = int(dice.choice([4, 8])), int(dice.integers(3, 7)), 0
    batches = int(dice.integers(2, 5))
    launch, ends, members = dice.uniform(0.3, 0.9), ends_of(dice, step_s), tuple(range(ranks))
    part = step_s * 0.85 / (3 * layers * batches)
    kept = bool(dice.random() < 0.5)  # parameters stay gathered between micro-batches

    def program(rank: int, step: int) -> list[Item]:
        gather = Call("AllGather", 16 * MB, WORLD, members, 1, needs_compute=False)
        scatter = Call("ReduceScatter", 16 * MB, WORLD, members, 2)
        items: list[Item] = [Host(step_s * 0.02)]
        for batch in range(batches):
            for share in (1, 2):
                for _ in range(layers):
                    is_gathered = kept and (batch or share == 2)
                    items += [] if is_gathered else [gather, Join(1)]
                    items += work(part * share, launch)
                    items += [scatter] if share == 2 and batch == batches - 1 else []
        return [*items, Join(2), *ends(step)]

    return Shape(ranks, program)


def _local_steps(dice: Dice, step_s: float) -> Shape:
    """Groups train alone, and meet with all their parameters after every ten steps."""
    width, groups, every = 4, int(dice.choice([2, 3])), int(dice.choice([8, 10, 16]))
    ranks, buckets, launch = width * groups, int(dice.integers(2, 5)), dice.uniform(0.2, 0.6)
    ends, part = ends_of(dice, step_s), step_s * 0.85

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width
        near, across = tuple(range(first, first + width)), tuple(range(rank % width, ranks, width))
        items: list[Item] = [Host(step_s * 0.02), *work(part / 3, launch, 4)]
        for bucket in range(buckets):
            items += work(part / 1.5 / buckets, launch)
            items.append(Call("AllReduce", (20 + bucket) * MB, 50 + first, near, 1))
        items += [Join(1), *ends(step)]
        if step % every == every - 1:
            call = Call("AllReduce", 90 * MB, 90 + rank % width, across, 1, feeds_compute=True)
            items += [call, *work(step_s * 0.05, launch), Sync()]
        return items

    return Shape(ranks, program)


def _checkpoints(dice: Dice, step_s: float) -> Shape:
    """All ranks copy their state to the host every thirty steps, and write it in the background."""
    plain, every = plain_job(dice, step_s), int(dice.choice([20, 30, 50]))
    length = step_s * dice.uniform(0.3, 2.0)

    def program(rank: int, step: int) -> list[Item]:
        items = plain.program(rank, step)
        if step % every == every - 1:
            items += [Kernel(length, length * 0.1), Sync()]
        return items

    return Shape(plain.ranks, program)


def plain_job(dice: Dice, step_s: float, ranks: int = 0, launch: float = 0.0) -> Shape:
    """Overlapped gradient buckets; sizes that are not given are drawn."""
    ranks, buckets = ranks or int(dice.choice([4, 8, 8])), int(dice.integers(2, 8))
    launch, ends, members = (
        launch or dice.uniform(0.2, 0.7),
        ends_of(dice, step_s),
        tuple(range(ranks)),
    )

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02), *work(step_s * 0.28, launch, 4)]
        for bucket in range(buckets):
            items += work(step_s * 0.57 / buckets, launch)
            items.append(Call("AllReduce", (40 - 2 * bucket) * MB, WORLD, members, 1))
        return [*items, Join(1), *ends(step)]

    return Shape(ranks, program)


def _lengths(dice: Dice, step_s: float) -> Shape:
    """Sequences of one length in a step, and of another in the next, on all ranks alike."""
    plain = plain_job(dice, step_s)
    factor = dice.choice([0.5, 0.75, 1.0, 1.5], 512)

    def program(rank: int, step: int) -> list[Item]:
        by = float(factor[step % 512])
        return [
            Kernel(item.gpu_s * by, item.launch_s) if isinstance(item, Kernel) else item
            for item in plain.program(rank, step)
        ]

    return Shape(plain.ranks, program)


def _adapters(dice: Dice, step_s: float) -> Shape:
    """Tiny gradients of adapters, reduced in one or two calls."""
    ranks, calls = int(dice.choice([2, 4, 8])), int(dice.choice([1, 2, 4]))
    launch, ends, members = dice.uniform(0.3, 0.9), ends_of(dice, step_s), tuple(range(ranks))
    size = int(dice.choice([16 << 10, 256 << 10, 2 * MB]))

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02), *work(step_s * 0.28, launch, 6)]
        for call in range(calls):
            items += work(step_s * 0.57 / calls, launch, 3)
            items.append(Call("AllReduce", size + 1024 * call, WORLD, members, 1))
        return [*items, Join(1), *ends(step)]

    return Shape(ranks, program)


def _server(dice: Dice, step_s: float) -> Shape:
    """Gradients are reduced to one rank, which sends the parameters to all others."""
    ranks, parts = int(dice.choice([4, 8])), int(dice.integers(1, 5))
    launch, members = dice.uniform(0.2, 0.6), tuple(range(ranks))

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02), *work(step_s * 0.3, launch, 4)]
        for part in range(parts):
            items += work(step_s * 0.5 / parts, launch)
            items.append(Call("Reduce", (20 + part) * MB, WORLD, members, 1))
        items += [Join(1), *(work(step_s * 0.06, 0.3) if rank == 0 else [])]
        items.append(Call("Broadcast", 60 * MB, WORLD, members, 1, feeds_compute=True))
        return [*items, Kernel(step_s * 0.01, step_s * 0.01), Sync()]

    return Shape(ranks, program)


def _two_calls(dice: Dice, step_s: float) -> Shape:
    """Two equal all-reduces per step, of which none overlaps compute."""
    ranks, launch = int(dice.choice([4, 8])), dice.uniform(0.1, 0.4)
    first, ends, members = dice.uniform(0.25, 0.5), ends_of(dice, step_s), tuple(range(ranks))
    call = Call("AllReduce", 50 * MB, WORLD, members, feeds_compute=True)

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02), *work(step_s * 0.8 * first, launch, 3), call]
        return [*items, *work(step_s * 0.8 * (1 - first), launch, 3), call, *ends(step)]

    return Shape(ranks, program)


def _receives_ahead(dice: Dice, step_s: float) -> Shape:
    """A pipeline whose stages post all receives of a pass ahead; sends do not wait."""
    stages, replicas = int(dice.choice([2, 4])), int(dice.choice([2, 2, 4]))
    batches, launch, ends = int(dice.integers(4, 9)), dice.uniform(0.15, 0.4), ends_of(dice, step_s)
    part = step_s * 0.85 / (3 * (batches + stages - 1))
    ranks, everybody = stages * replicas, tuple(range(stages * replicas))

    def program(rank: int, step: int) -> list[Item]:
        stage = rank % stages

        def call(op: str, stream: int, peer: int) -> Call:
            return Call(op, 2 * MB, WORLD, everybody, stream, peer, op == "Send", op == "Recv")

        items: list[Item] = [Host(step_s * 0.02)]
        for share, source, target in ((1, -1, 1), (2, 1, -1)):
            gets, gives = 0 <= stage + source < stages, 0 <= stage + target < stages
            for _ in range(batches):
                items += [call("Recv", 2 * share, rank + source)] if gets else []
                items += work(part * share, launch)
                items += [call("Send", 2 * share + 1, rank + target)] if gives else []
        same = tuple(range(stage, ranks, stages))
        items.append(Call("AllReduce", 40 * MB, 300 + stage, same, 7, feeds_compute=True))
        return [*items, *ends(step)]

    return Shape(ranks, program)


def _sharded_states(dice: Dice, step_s: float) -> Shape:
    """ZeRO-1 and 2: gradients are scattered in buckets, parameters gathered after the update."""
    ranks, buckets = int(dice.choice([4, 8, 16])), int(dice.integers(2, 8))
    launch, members = dice.uniform(0.2, 0.8), tuple(range(ranks))
    overlap, every = bool(dice.random() < 0.5), int(dice.choice([1, 4]))

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02), *work(step_s * 0.27, launch, 4)]
        for bucket in range(buckets):
            items += work(step_s * 0.54 / buckets, launch)
            if overlap:
                items.append(Call("ReduceScatter", (40 - bucket) * MB, WORLD, members, 1))
        if not overlap:
            items.append(Call("ReduceScatter", 120 * MB, WORLD, members, 1))
        items += [Join(1), *work(step_s * 0.04, 0.3)]
        items += [Call("AllGather", 30 * MB, WORLD, members, 1) for _ in range(3)]
        items.append(Join(1))
        return [*items, Sync()] if step % every == 0 else [*items, Limit(60)]

    return Shape(ranks, program)


def _batch_norms(dice: Dice, step_s: float) -> Shape:
    """Statistics of a few kilobytes are shared in every layer, gradients in buckets."""
    ranks, layers, launch = (
        int(dice.choice([4, 8])),
        int(dice.integers(4, 12)),
        dice.uniform(0.2, 0.6),
    )
    ends, members = ends_of(dice, step_s), tuple(range(ranks))

    def program(rank: int, step: int) -> list[Item]:
        norm = Call("AllReduce", 8 << 10, 2, members, 2, feeds_compute=True)
        bucket = Call("AllReduce", 20 * MB, WORLD, members, 1)
        items: list[Item] = [Host(step_s * 0.02)]
        for _ in range(layers):
            items += [*work(step_s * 0.28 / layers, launch), norm]
        for _ in range(layers):
            items += [*work(step_s * 0.57 / layers, launch), norm, bucket]
        return [*items, Join(1), *ends(step)]

    return Shape(ranks, program)


def _three_dimensions(dice: Dice, step_s: float) -> Shape:
    """Tensor pairs, two stages, and replicas."""
    replicas, batches, launch = (
        int(dice.choice([2, 4])),
        int(dice.integers(3, 7)),
        dice.uniform(0.1, 0.3),
    )
    stages, width = 2, 2
    ranks, layers = stages * width * replicas, int(dice.integers(1, 4))
    ends, part = ends_of(dice, step_s), step_s * 0.85 / (3 * (batches + 1))

    def program(rank: int, step: int) -> list[Item]:
        lane, stage = rank % 2, rank // 2 % 2
        near = (rank - lane, rank - lane + 1)
        other = rank + 2 if stage == 0 else rank - 2
        pair = (min(rank, other), max(rank, other))
        join = Call("AllReduce", 4 * MB, 100 + near[0], near, 1, feeds_compute=True)

        def call(op: str, stream: int) -> Call:
            return Call(op, 2 * MB, 400 + pair[0], pair, stream, other, op == "Send", op == "Recv")

        items: list[Item] = [Host(step_s * 0.02)]
        for share in (1, 2):
            gets = stage == (1 if share == 1 else 0)
            for _ in range(batches):
                items += [call("Recv", 2 * share)] if gets else []
                for _ in range(layers):
                    items += [*work(part * share / layers, launch), join]
                items += [] if gets else [call("Send", 2 * share)]
        same = tuple(range(rank % 4, ranks, 4))
        items.append(Call("AllReduce", 60 * MB, 300 + rank % 4, same, 7, feeds_compute=True))
        return [*items, *ends(step)]

    return Shape(ranks, program)


def _many(dice: Dice, step_s: float) -> Shape:
    return plain_job(dice, step_s, ranks=64)


def _regional(dice: Dice, step_s: float) -> Shape:
    """Compiled blocks: few long kernels, launched at once."""
    return plain_job(dice, step_s, launch=float(dice.uniform(0.01, 0.08)))


def _evaluations(dice: Dice, step_s: float) -> Shape:
    """Every fiftieth step is followed by ten passes forward, and a shared metric."""
    plain, every, members = plain_job(dice, step_s), int(dice.choice([40, 60])), ()
    members = tuple(range(plain.ranks))

    def program(rank: int, step: int) -> list[Item]:
        items = plain.program(rank, step)
        if step % every == every - 1:
            items += work(step_s * 0.28, 0.3) * 10
            items += [Call("AllReduce", 64, WORLD, members, 1), Join(1), Sync()]
        return items

    return Shape(plain.ranks, program)


# In this order: it is part of what is drawn.
MORE: dict[str, Callable[[Dice, float], Shape]] = {
    "context gather": _context_gather,
    "tensor experts": _tensor_experts,
    "no sync": _no_sync,
    "local steps": _local_steps,
    "checkpoints": _checkpoints,
    "lengths": _lengths,
    "adapters": _adapters,
    "server": _server,
    "two calls": _two_calls,
    "receives ahead": _receives_ahead,
    "sharded states": _sharded_states,
    "batch norms": _batch_norms,
    "three dimensions": _three_dimensions,
    "many": _many,
    "regional": _regional,
    "evaluations": _evaluations,
}
