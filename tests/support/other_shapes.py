"""Further shapes of jobs: more ranks, sharding with and without replicas, rings, chunks, experts.

Nothing was tuned on them. `launch` is the time of the host as a share of the GPU's.
"""

from tests.support.job_shapes import MB, WORLD, Call, Host, Item, Join, Kernel, Shape, Sync


def zero3(ranks: int = 12, layers: int = 4, layer_s: float = 0.003, launch: float = 0.4) -> Shape:
    """Parameters of equal layers are gathered when they are needed, gradients scattered at once."""
    members = tuple(range(ranks))
    gather = Call("AllGather", 24 * MB, WORLD, members, 1, needs_compute=False)
    scatter = Call("ReduceScatter", 24 * MB, WORLD, members, 2)

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(layer_s / 2)]
        for share in (1, 2):
            for _ in range(layers):
                items += [gather, Join(1), Kernel(share * layer_s, share * layer_s * launch)]
                items += [scatter] if share == 2 else []
        return [*items, Join(2), Kernel(layer_s, layer_s / 2), Sync()]

    return Shape(ranks, program)


def hybrid(
    ranks: int = 32, sharing: int = 8, layers: int = 3, layer_s: float = 0.004, launch: float = 0.4
) -> Shape:
    """Shards within a group, gathered one layer ahead; gradients are reduced between the groups."""

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % sharing
        near = tuple(range(first, first + sharing))
        across = tuple(range(rank % sharing, ranks, sharing))
        gather = Call("AllGather", 24 * MB, 50 + first, near, 1, needs_compute=False)
        scatter = Call("ReduceScatter", 24 * MB, 50 + first, near, 2)
        reduce = Call("AllReduce", 24 * MB // sharing, 90 + rank % sharing, across, 3)
        items: list[Item] = [Host(layer_s / 2)]
        for share in (1, 2):
            items.append(gather)
            for layer in range(layers):
                items.append(Join(1))
                items += [gather] if layer < layers - 1 else []
                items.append(Kernel(share * layer_s, share * layer_s * launch))
                items += [scatter, reduce] if share == 2 else []
        return [*items, Join(2), Join(3), Kernel(layer_s, layer_s / 2), Sync()]

    return Shape(ranks, program)


def context_ring(
    width: int = 4,
    replicas: int = 3,
    layers: int = 2,
    layer_s: float = 0.006,
    launch: float = 0.3,
    *,
    ahead: bool = True,
) -> Shape:
    """Attention over a split sequence: blocks travel round a ring while the last one is used.

    Without `ahead` they travel when it has been used.
    """
    ranks = width * replicas

    def program(rank: int, step: int) -> list[Item]:
        first, at = rank - rank % width, rank % width
        ring = tuple(range(first, first + width))
        after, before = ring[(at + 1) % width], ring[at - 1]
        comm = 700 + first
        swap = (
            Call("Send", 3 * MB, comm, ring, 1, after, needs_compute=not ahead),
            Call("Recv", 3 * MB, comm, ring, 1, before, needs_compute=not ahead),
        )
        items: list[Item] = [Host(layer_s / 4)]
        for share in (1, 2):
            block = Kernel(share * layer_s / width, share * layer_s / width * launch)
            for _ in range(layers):
                for _ in range(width - 1):
                    items += [swap, block, Join(1)] if ahead else [block, swap, Join(1)]
                items += [block, block]
        items += [Call("AllReduce", (50 - n) * MB, WORLD, tuple(range(ranks)), 2) for n in range(2)]
        return [*items, Join(2), Kernel(layer_s / 2, layer_s / 4), Sync()]

    return Shape(ranks, program)


def interleaved(
    stages: int = 4,
    replicas: int = 3,
    chunks: int = 2,
    batches: int = 4,
    part_s: float = 0.002,
    launch: float = 0.3,
) -> Shape:
    """A pipeline whose ranks hold several chunks of layers: the last stage sends to the first."""
    ranks = stages * replicas
    everybody, last = tuple(range(ranks)), stages * chunks - 1

    def program(rank: int, step: int) -> list[Item]:
        first, stage = rank - rank % stages, rank % stages
        after, before = first + (stage + 1) % stages, first + (stage - 1) % stages

        def call(op: str, stream: int, peer: int) -> Call:
            return Call(op, 2 * MB, WORLD, everybody, stream, peer, op == "Send", op == "Recv")

        forward = [(1, before, after, chunk * stages + stage) for chunk in range(chunks)]
        backward = [(2, after, before, last - at) for _, _, _, at in reversed(forward)]
        passes = [each for each in forward + backward for _ in range(batches)]
        items: list[Item] = [Host(part_s)]
        waiting: list[Call] = []
        for share, source, target, at in passes:
            if at > 0:
                waiting.append(call("Recv", 2 * share, source))
            items += [tuple(waiting)] if waiting else []
            items.append(Kernel(share * part_s, share * part_s * launch))
            waiting = [call("Send", 2 * share + 1, target)] if at < last else []
        items += [tuple(waiting)] if waiting else []
        same = tuple(range(stage, ranks, stages))
        items.append(Call("AllReduce", 40 * MB, 300 + stage, same, 9, feeds_compute=True))
        return [*items, Kernel(part_s, part_s / 2), Sync()]

    return Shape(ranks, program)


def sent_experts(
    width: int = 4, replicas: int = 3, layers: int = 2, layer_s: float = 0.005, launch: float = 0.3
) -> Shape:
    """Tokens travel to experts and back by sends and receives between all members of a group."""
    ranks = width * replicas

    def program(rank: int, step: int) -> list[Item]:
        first = rank - rank % width
        group = tuple(range(first, first + width))
        exchange = tuple(
            Call(op, MB, 500 + first, group, 3, peer, feeds_compute=True)
            for peer in group
            if peer != rank
            for op in ("Send", "Recv")
        )
        items: list[Item] = [Host(layer_s / 4)]
        for share in (1, 2):
            kernel = Kernel(share * layer_s / 2, share * layer_s / 2 * launch)
            items += [kernel, exchange, kernel, exchange] * layers
        twins = tuple(range(rank % width, ranks, width))
        items.append(Call("AllReduce", 30 * MB, 600 + rank % width, twins, 4))
        items.append(Call("AllReduce", 60 * MB, WORLD, tuple(range(ranks)), 4))
        return [*items, Join(4), Kernel(layer_s / 2, layer_s / 4), Sync()]

    return Shape(ranks, program)


def fused(ranks: int = 4, step_s: float = 0.04, launch: float = 0.1) -> Shape:
    """One all-reduce of all gradients after the backward pass, as compiled models have."""
    members = tuple(range(ranks))

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(step_s * 0.02)]
        items += [Kernel(step_s / 5, step_s / 5 * launch)] * 4
        items.append(Call("AllReduce", 200 * MB, WORLD, members, feeds_compute=True))
        return [*items, Kernel(step_s * 0.05, step_s * 0.03), Sync()]

    return Shape(ranks, program)


def sharded_batches(
    ranks: int = 4, layers: int = 4, batches: int = 3, layer_s: float = 0.001, launch: float = 0.7
) -> Shape:
    """Micro-batches that gather each layer; hosts wait for their GPUs in every fourth step only."""
    members = tuple(range(ranks))
    gather = Call("AllGather", 16 * MB, WORLD, members, 1, needs_compute=False)
    scatter = Call("ReduceScatter", 16 * MB, WORLD, members, 2)

    def program(rank: int, step: int) -> list[Item]:
        items: list[Item] = [Host(layer_s)]
        for batch in range(batches):
            for share in (1, 2):
                for _ in range(layers):
                    items += [gather, Join(1), Kernel(share * layer_s, share * layer_s * launch)]
                    items += [scatter] if share == 2 and batch == batches - 1 else []
        return [*items, Join(2), Kernel(layer_s, layer_s / 2), *([Sync()] if step % 4 == 0 else [])]

    return Shape(ranks, program)
