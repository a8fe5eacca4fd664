"""Jobs of random shape: how ranks work together, how many there are, how long things take.

`draw_job(kind, seed)` is the hold-out of the verdicts: nothing was tuned on one seed of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tests.support.job_shapes import MB, WORLD, Call, Host, Item, Join, Kernel, Limit, Shape, Sync
from tests.support.simulated_job import Noise


@dataclass(frozen=True, slots=True)
class DrawnJob:
    """A shape with its noise; `step_s` is about as long as a step lasts."""

    name: str
    shape: Shape
    noise: Noise
    step_s: float


def draw_job(kind: str, seed: int, step_s: float = 0.1) -> DrawnJob:
    """Draw a job of one kind of `KINDS`."""
    dice = np.random.default_rng([seed, [*KINDS].index(kind)])
    noise = Noise(
        gpu=dice.uniform(0.005, 0.03),
        host=dice.uniform(0.05, 0.3),
        hiccup_s=step_s * dice.uniform(0.02, 0.2),
        hiccups=dice.uniform(0.002, 0.03),
        step_gpu=dice.uniform(0.001, 0.01),
        step_host=dice.uniform(0.01, 0.15),
        wander=dice.uniform(0.001, 0.02),
        eager_sends=bool(dice.random() < 0.5),
        one_kernel=kind == "ring",
    )
    return DrawnJob(f"{kind}/{seed}", KINDS[kind](dice, step_s), noise, step_s)


def _ends(dice: np.random.Generator, step_s: float) -> Callable[[int], list[Item]]:
    """Draw how a step ends: an optimizer, and a wait for the GPU now and then."""
    every = int(dice.choice([1, 1, 4, 10]))
    optimizer = Kernel(step_s * dice.uniform(0.02, 0.08), step_s * dice.uniform(0.01, 0.04))

    def ends(step: int) -> list[Item]:
        return [optimizer, Sync()] if step % every == 0 else [optimizer, Limit(60)]

    return ends


def _ddp(dice: np.random.Generator, step_s: float, micro_batches: int = 1) -> Shape:
    ranks, buckets = int(dice.choice([4, 8, 8, 16])), int(dice.integers(2, 9))
    launch, ends = dice.uniform(0.2, 0.9), _ends(dice, step_s)
    sizes = sorted((dice.integers(4, 60, buckets) * MB).tolist())
    if dice.random() < 0.3:
        sizes = [16 * MB] * buckets
    part, parts = step_s * 0.85 / (3 * micro_batches), 6
    members = tuple(range(ranks))

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02)]
        for batch in range(micro_batches):
            items += [Kernel(part / parts, part / parts * launch)] * parts
            for size in sizes:
                items += [Kernel(2 * part / buckets, 2 * part / buckets * launch)]
                if batch == micro_batches - 1:
                    items.append(Call("AllReduce", size, WORLD, members, 1))
        return [*items, Join(1), *ends(step)]

    return Shape(ranks, program)


def _accumulation(dice: np.random.Generator, step_s: float) -> Shape:
    return _ddp(dice, step_s, int(dice.integers(2, 9)))


def _fsdp(
    dice: np.random.Generator,
    step_s: float,
    mesh: tuple[int, int] | None = None,
    neighbours: bool = True,
) -> Shape:
    """`mesh` is replicas × shards; ranks that share are neighbours, or as far apart as can be."""
    hybrid = mesh is not None
    ranks = mesh[0] * mesh[1] if mesh else int(dice.choice([4, 8, 8, 16]))
    layers = int(dice.integers(4, 13))
    launch, ends = dice.uniform(0.3, 1.0), _ends(dice, step_s)
    ahead, limit = int(dice.integers(1, 3)), int(dice.choice([0, 2, 4]))
    layer_s, size = step_s * 0.85 / (3 * layers), int(dice.integers(4, 40)) * MB
    sharing = mesh[1] if mesh else ranks

    def program(rank: int, step: int) -> list[Item]:
        first, place = rank - rank % sharing, rank % sharing
        near, across = (
            tuple(range(first, first + sharing)),
            tuple(range(place, ranks, sharing)),
        )
        if not neighbours:
            apart = ranks // sharing
            first, place = rank % apart, rank // apart
            near = tuple(range(first, ranks, apart))
            across = tuple(range(place * apart, place * apart + apart))
        gather = Call("AllGather", size, 50 + first, near, 1, needs_compute=False)
        scatter = Call("ReduceScatter", size, 50 + first, near, 2)
        reduce = Call("AllReduce", size // sharing, 190 + place, across, 3)
        forward, backward = (
            Kernel(layer_s, layer_s * launch),
            Kernel(2 * layer_s, 2 * layer_s * launch),
        )
        items: list[Item] = [Host(step_s * 0.02)]
        for kernel in (forward, backward):
            items += [gather] * min(ahead, layers)
            for layer in range(layers):
                items.append(Join(1))
                if layer + ahead < layers:
                    items += [Limit(limit)] if limit else []
                    items.append(gather)
                items.append(kernel)
                if kernel is backward:
                    items.append(scatter)
                    items += [reduce] if hybrid else []
        return [*items, Join(2), *([Join(3)] if hybrid else []), *ends(step)]

    return Shape(ranks, program)


def _hybrid(dice: np.random.Generator, step_s: float) -> Shape:
    return _fsdp(dice, step_s, mesh=(2, 4))


def _groups(dice: np.random.Generator, step_s: float) -> Shape:
    """FSDP in groups of any size, and any number of them."""
    mesh = (int(dice.choice([2, 2, 3, 4])), int(dice.choice([2, 4, 8])))
    return _fsdp(dice, step_s, mesh, neighbours=bool(dice.random() < 0.7))


def _ring(dice: np.random.Generator, step_s: float) -> Shape:
    """Ring attention: keys and values visit all ranks of a ring in each layer, and go back."""
    width, replicas = int(dice.choice([2, 3, 4, 4, 8])), int(dice.choice([1, 2, 2, 4]))
    if width * replicas < 4:
        replicas = 2
    ranks, layers, launch = width * replicas, int(dice.integers(2, 6)), dice.uniform(0.1, 0.5)
    neighbours, tensors = bool(dice.random() < 0.7), int(dice.choice([1, 2]))
    ends, part = _ends(dice, step_s), step_s * 0.8 / (3 * layers)

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width if neighbours else rank % replicas
        ring = tuple(range(first, first + width) if neighbours else range(first, ranks, replicas))
        at = ring.index(rank)

        def passed(by: int) -> Item:
            to, source = ring[(at + by) % width], ring[(at - by) % width]
            sends = (Call("Send", 8 * MB, 700 + first, ring, 3, to, feeds_compute=True),) * tensors
            return sends + tuple(
                Call("Recv", 8 * MB, 700 + first, ring, 3, source, feeds_compute=True)
                for _ in range(tensors)
            )

        items: list[Item] = [Host(step_s * 0.02)]
        for share, by in ((1, 1), (2, -1)):
            turn = Kernel(part * share * 0.4 / width, part * share * 0.4 / width * launch)
            rest = Kernel(part * share * 0.6, part * share * 0.6 * launch)
            for _ in range(layers):
                items.append(turn)
                for _ in range(width - 1):
                    items += [passed(by), turn]
                items.append(rest)
        items.append(Call("AllReduce", 60 * MB, WORLD, tuple(range(ranks)), feeds_compute=True))
        return [*items, *ends(step)]

    return Shape(ranks, program)


def _experts(dice: np.random.Generator, step_s: float) -> Shape:
    """Experts in groups with replicas; exchanges are one call, or sends and receives."""
    width, replicas = int(dice.choice([2, 4, 4, 8])), int(dice.choice([1, 2, 2]))
    if width * replicas < 4:
        width = 4
    ranks, layers, launch = width * replicas, int(dice.integers(2, 6)), dice.uniform(0.2, 0.7)
    uneven, pairwise = dice.choice([0.0, 0.0, 0.05, 0.15]), bool(dice.random() < 0.5)
    ends, part = _ends(dice, step_s), step_s * 0.8 / (3 * layers)
    load, size = np.exp(uneven * dice.standard_normal((512, layers, ranks))), 4 * MB

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width
        group = tuple(range(first, first + width))
        twins = tuple(range(rank % width, ranks, width))
        comm = 500 + first
        if pairwise:
            exchange: Item = tuple(
                Call(op, size, comm, group, 3, peer, feeds_compute=True)
                for peer in group
                if peer != rank
                for op in ("Send", "Recv")
            )
        else:
            exchange = Call("AllToAll", size * width, comm, group, 3, feeds_compute=True)
        items: list[Item] = [Host(step_s * 0.02)]
        for share in (1, 2):
            for layer in range(layers):
                work = part * share * 0.5
                expert = work * float(load[step % 512, layer, rank])
                items += [Kernel(work, work * launch), exchange]
                items += [Kernel(expert, work * launch), exchange]
        if replicas > 1:
            items.append(Call("AllReduce", 30 * MB, 600 + rank % width, twins, feeds_compute=True))
        items.append(Call("AllReduce", 60 * MB, WORLD, tuple(range(ranks)), feeds_compute=True))
        return [*items, *ends(step)]

    return Shape(ranks, program)


def _tensor(dice: np.random.Generator, step_s: float) -> Shape:
    """Tensor groups inside data parallelism; gradients are reduced in buckets or at the end."""
    width, replicas = int(dice.choice([2, 2, 4])), int(dice.choice([2, 4]))
    ranks, layers, launch = width * replicas, int(dice.integers(3, 9)), dice.uniform(0.2, 0.7)
    overlap, ends, part = (
        bool(dice.random() < 0.5),
        _ends(dice, step_s),
        step_s * 0.8 / (3 * layers),
    )

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width
        near, across = tuple(range(first, first + width)), tuple(range(rank % width, ranks, width))
        join = Call("AllReduce", 4 * MB, 100 + first, near, feeds_compute=True)
        bucket = Call("AllReduce", 24 * MB, 200 + rank % width, across, 1)
        items: list[Item] = [Host(step_s * 0.02)]
        for share in (1, 2):
            kernel = Kernel(part * share / 2, part * share / 2 * launch)
            for _ in range(layers):
                items += [kernel, join, kernel, join]
                items += [bucket] if overlap and share == 2 else []
        if not overlap:
            items.append(Call("AllReduce", 90 * MB, 200 + rank % width, across, 1))
        return [*items, Join(1), *ends(step)]

    return Shape(ranks, program)


def _pipeline(dice: np.random.Generator, step_s: float) -> Shape:
    """Stages over send and receive: all forward then all backward, or one forward, one backward."""
    stages, replicas = int(dice.choice([2, 4, 4])), int(dice.choice([2, 2, 4]))
    batches, launch = int(dice.integers(4, 9)), dice.uniform(0.15, 0.5)
    interleaved, ends = bool(dice.random() < 0.5), _ends(dice, step_s)
    part = step_s * 0.85 / (3 * (batches + stages - 1))
    ranks, everybody = stages * replicas, tuple(range(stages * replicas))

    def program(rank: int, step: int) -> list[Item]:
        stage = rank % stages
        after = [Call("Send", 2 * MB, WORLD, everybody, 1, rank + 1)] if stage < stages - 1 else []
        before = [Call("Recv", 2 * MB, WORLD, everybody, 2, rank - 1, False, True)] if stage else []
        grads = [Call("Recv", 2 * MB, WORLD, everybody, 3, rank + 1, False, True)] if after else []
        back = [Call("Send", 2 * MB, WORLD, everybody, 4, rank - 1)] if stage else []
        forward, backward = Kernel(part, part * launch), Kernel(2 * part, 2 * part * launch)
        warm = min(stages - 1 - stage, batches) if interleaved else batches
        items: list[Item] = [Host(step_s * 0.02)]
        for _ in range(warm):
            items += [*before, forward, *after]
        for _ in range(batches - warm):
            items += [*before, forward, *([tuple(after + grads)] if after else []), backward, *back]
        for _ in range(warm):
            items += [*grads, backward, *back]
        same = tuple(range(stage, ranks, stages))
        items.append(Call("AllReduce", 40 * MB, 300 + stage, same, 5, feeds_compute=True))
        return [*items, *ends(step)]

    return Shape(ranks, program)


# In this order: it is part of what is drawn.
KINDS: dict[str, Callable[[np.random.Generator, float], Shape]] = {
    "accumulation": _accumulation,
    "ddp": _ddp,
    "experts": _experts,
    "fsdp": _fsdp,
    "hybrid": _hybrid,
    "pipeline": _pipeline,
    "tensor": _tensor,
    "groups": _groups,
    "ring": _ring,
}
