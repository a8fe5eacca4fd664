"""A training job as recorded operations per worker and step, and the replay of its graph.

All data-parallel replicas and all steps run the same schedule. The dependency graph therefore has
one node per (stage, operation, sequence number), and each node holds an array over replica × step.
A replay of the graph with other durations answers what-if questions.

The rules: compute runs in order on a stage. A receive is posted after the compute before it and
releases the compute it feeds; a send follows its compute. Collectives end together, when the last
member has arrived, plus the transfer. Gradient work follows the last compute in the order it was
recorded. Gaps that none of this explains are launch delay and are left out.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.errors import MalformedInput

Floats = NDArray[np.float64]

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE = frozenset({FORWARD, BACKWARD})
POINT_TO_POINT = frozenset({"forward-send", "forward-recv", "backward-send", "backward-recv"})
PARAMS_GATHER, GRADS_SCATTER, GRADS_SEPARATE = (
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
)
CLIP, EMBEDDING, OPTIMIZER = "optimizer-clip-main-grad", "embedding-grads-all-reduce", "optimizer"
ACROSS_REPLICAS = frozenset({PARAMS_GATHER, GRADS_SCATTER, GRADS_SEPARATE, CLIP})
COMMUNICATION = POINT_TO_POINT | ACROSS_REPLICAS | {EMBEDDING, "layernorm-grads-all-reduce"}
NEIGHBOUR = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
MAX_BACKWARD_CLOCK_S = 0.01  # a transfer more negative than this is a clock error
SAME_MOMENT_S = 5e-5


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of the schedule, which every replica runs in every step."""

    stage: int
    optype: str
    seq: int
    chunk: int  # model chunk on this stage, -1 where it does not apply
    place: int  # model chunk in the whole model


@dataclass(frozen=True, slots=True)
class StepTrace:
    """Start and duration as [node, replica, step] in seconds; `worker_rank` is [replica, stage]."""

    nodes: tuple[Node, ...]
    start_s: Floats
    duration_s: Floats
    steps: tuple[int, ...]
    worker_rank: NDArray[np.int64]
    world_size: int
    skipped_steps: int = 0

    @property
    def replicas(self) -> int:
        return int(self.start_s.shape[1])

    @property
    def stages(self) -> int:
        return int(self.worker_rank.shape[1])

    @property
    def gpus_per_worker(self) -> float:
        return self.world_size / self.worker_rank.size

    def nodes_where(self, optypes: frozenset[str], stage: int | None = None) -> NDArray[np.intp]:
        """Return the indices of the nodes of these types, on one stage or all."""
        return np.array(
            [
                i
                for i, n in enumerate(self.nodes)
                if n.optype in optypes and stage in (None, n.stage)
            ],
            np.intp,
        )


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order that respects dependencies.

    `group` lists for each node the members that end together with it.
    """

    order: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    group: tuple[tuple[int, ...], ...]
    across_replicas: NDArray[np.bool_]


def build_graph(trace: StepTrace) -> Graph:
    """Return the dependencies of the schedule, found in the first step of the first replica."""
    after: list[set[int]] = [set() for _ in trace.nodes]
    lone_transfers: set[int] = set()
    ends: dict[tuple[str, int], list[int]] = {}
    for stage in range(trace.stages):
        order = _Order(trace, stage)
        _chain(after, order.compute)
        for optype in sorted(POINT_TO_POINT):
            valid = _link_transfers(after, order, optype, trace)
            ends[optype, stage] = valid
            lone_transfers.update(set(order.of(optype)) - set(valid))
        _link_first_backward(after, order)
        _link_gradients(after, order)
    groups = _pair_transfers(ends, trace.stages) + [(i,) for i in sorted(lone_transfers)]
    groups += _shared_groups(trace)
    group_of: dict[int, tuple[int, ...]] = {i: members for members in groups for i in members}
    order_ = _topological(after, group_of)
    return Graph(
        tuple(order_),
        tuple(tuple(sorted(a)) for a in after),
        tuple(group_of.get(i, ()) for i in range(len(trace.nodes))),
        np.array([n.optype in ACROSS_REPLICAS for n in trace.nodes]),
    )


def transfer_times(trace: StepTrace, graph: Graph) -> Floats:
    """Return durations without waiting, which count from the last arrival in a collective."""
    result = trace.duration_s.copy()
    for i, members in enumerate(graph.group):
        if members:
            arrival = _last_arrival(
                [trace.start_s[m] for m in members], bool(graph.across_replicas[i])
            )
            transfer = trace.start_s[i] + trace.duration_s[i] - arrival
            result[i] = np.where(transfer <= -MAX_BACKWARD_CLOCK_S, 0.0, transfer)
    return result


def replay(graph: Graph, busy_s: Floats) -> Floats:
    """Return the length of each step when nodes take `busy_s` and wait for their dependencies."""
    begin = np.zeros_like(busy_s)
    end = np.zeros_like(busy_s)
    done: set[int] = set()
    for i in graph.order:
        for before in graph.after[i]:
            np.maximum(begin[i], end[before], out=begin[i])
        members = graph.group[i]
        done.add(i)
        if not members:
            end[i] = begin[i] + busy_s[i]
        elif done.issuperset(members):
            arrival = _last_arrival([begin[m] for m in members], bool(graph.across_replicas[i]))
            for m in members:
                end[m] = arrival + busy_s[m]
    length: Floats = end.max(axis=(0, 1))
    return length


def ideal_times(trace: StepTrace, busy_s: Floats) -> Floats:
    """Return durations in which every operation takes what is typical of its kind.

    That is the mean of compute and the median of communication, over all workers.
    """
    result = busy_s.copy()
    for optype in {n.optype for n in trace.nodes}:
        rows = trace.nodes_where(frozenset({optype}))
        middle = np.median if optype in COMMUNICATION else np.mean
        result[rows] = middle(busy_s[rows])
    return result


def own_compute(trace: StepTrace) -> Floats:
    """Return compute time as [replica, stage, step]; it contains no waiting for others."""
    own = np.empty((trace.replicas, trace.stages, len(trace.steps)))
    for stage in range(trace.stages):
        own[:, stage] = trace.duration_s[trace.nodes_where(COMPUTE, stage)].sum(axis=0)
    return own


class _Order:
    """The operations of one stage in the order of the first recorded step."""

    def __init__(self, trace: StepTrace, stage: int) -> None:
        self.trace, self.stage = trace, stage
        first = trace.start_s[:, 0, 0]
        rows = [i for i, n in enumerate(trace.nodes) if n.stage == stage]
        self.rows = sorted(
            rows, key=lambda i: (first[i], trace.nodes[i].seq, trace.nodes[i].optype)
        )
        self.start = first
        self.end = first + trace.duration_s[:, 0, 0]
        self.compute = [i for i in self.rows if trace.nodes[i].optype in COMPUTE]
        if not self.compute:
            raise MalformedInput(
                f"stage {stage} has no {FORWARD} or {BACKWARD} operation to order its steps by"
            )

    def of(self, optype: str) -> list[int]:
        return [i for i in self.rows if self.trace.nodes[i].optype == optype]


def _chain(after: list[set[int]], rows: Sequence[int], first: Sequence[int] = ()) -> None:
    before = set(first)
    for i in rows:
        after[i] |= before
        before = {i}


def _link_transfers(
    after: list[set[int]], order: _Order, optype: str, trace: StepTrace
) -> list[int]:
    """Link sends and receives of one kind to their compute; return those that have a partner."""
    rows = order.of(optype)
    _chain(after, rows)
    computes = order.of(FORWARD if optype.startswith("forward") else BACKWARD)
    is_send = optype.endswith("send")
    if not computes or not rows:
        return []
    last_begin = max(order.start[c] for c in computes)
    first_end = min(order.end[c] for c in computes)
    used = [
        i
        for i in rows
        if (
            order.end[i] >= first_end - SAME_MOMENT_S
            if is_send
            else order.start[i] <= last_begin + SAME_MOMENT_S
        )
    ]
    # The first receive of the first stage may be absent.
    skip = 1 if not is_send and len(used) + 1 == len(computes) else 0
    chunks = max(n.chunk for n in trace.nodes) + 1 if trace.nodes else 1
    places = max(1, chunks) * trace.stages
    valid = []
    for i, compute in zip(used, computes[skip:], strict=False):
        if is_send:
            after[i].add(compute)
        else:
            after[compute].add(i)
            same_kind_before = computes.index(compute) - 1
            if same_kind_before >= 0:
                after[i].add(computes[same_kind_before])
        if 0 <= trace.nodes[compute].place + NEIGHBOUR[optype] < places:
            valid.append(i)
    return valid


def _link_first_backward(after: list[set[int]], order: _Order) -> None:
    """Link the first backward transfers to the second to last warm-up forward.

    They are posted before the last warm-up forward.
    """
    kinds = [order.trace.nodes[i].optype for i in order.compute]
    first = kinds.index(BACKWARD) if BACKWARD in kinds else 0
    if first >= 2:
        for optype in ("backward-recv", "backward-send"):
            for i in order.of(optype)[:1]:
                after[i].add(order.compute[first - 2])


def _link_gradients(after: list[set[int]], order: _Order) -> None:
    """Link parameter gathers to the first forward of a chunk, gradients to the last backward."""
    trace = order.trace
    gathers, scatters = order.of(PARAMS_GATHER), order.of(GRADS_SCATTER)
    _chain(after, sorted(gathers + scatters, key=lambda i: (order.start[i], trace.nodes[i].seq)))
    for i in gathers:
        fed = [
            c
            for c in order.compute
            if trace.nodes[c].optype == FORWARD and trace.nodes[c].chunk == trace.nodes[i].chunk
        ]
        if fed:
            after[fed[0]].add(i)
    last = max(order.compute, key=lambda i: order.end[i])
    overlapped = any(n.optype == GRADS_SEPARATE for n in trace.nodes)
    if overlapped:
        for i in scatters:
            fed = [
                c
                for c in order.compute
                if trace.nodes[c].optype == BACKWARD
                and trace.nodes[c].chunk == trace.nodes[i].chunk
            ]
            if fed:
                after[i].add(fed[-1])
    skipped = (
        COMPUTE | POINT_TO_POINT | {PARAMS_GATHER} | ({GRADS_SCATTER} if overlapped else set())
    )
    tail = [i for i in order.rows if trace.nodes[i].optype not in skipped]
    tail.sort(
        key=lambda i: (_TAIL.get(trace.nodes[i].optype, 2), order.start[i], trace.nodes[i].seq)
    )
    _chain(after, tail, [last, *(scatters[-1:] if overlapped else [])])


# The order of work after the last backward; recorded starts break ties.
_TAIL: Mapping[str, int] = {
    "gc": 0, "layernorm-grads-all-reduce": 1, EMBEDDING: 2, GRADS_SCATTER: 3, GRADS_SEPARATE: 4,
    CLIP: 5, OPTIMIZER: 6,
}  # fmt: skip


def _pair_transfers(
    ends: Mapping[tuple[str, int], list[int]], stages: int
) -> list[tuple[int, ...]]:
    """Pair sends and receives in order, stage by stage; one without a partner ends alone."""
    groups: list[tuple[int, ...]] = []
    for direction, hop in (("forward", 1), ("backward", -1)):
        for stage in range(stages):
            sends = ends[f"{direction}-send", stage]
            receives = ends[f"{direction}-recv", (stage + hop) % stages]
            groups += zip(sends, receives, strict=False)
            groups += [(i,) for i in sends[len(receives) :]]
            groups += [(i,) for i in receives[len(sends) :]]
    return groups


def _shared_groups(trace: StepTrace) -> list[tuple[int, ...]]:
    groups: list[tuple[int, ...]] = []
    for optype in (PARAMS_GATHER, GRADS_SCATTER, GRADS_SEPARATE):
        groups += [(int(i),) for i in trace.nodes_where(frozenset({optype}))]
    for optype in (EMBEDDING, CLIP):  # one group over stages
        by_seq: dict[int, list[int]] = {}
        for i in trace.nodes_where(frozenset({optype})):
            by_seq.setdefault(trace.nodes[i].seq, []).append(int(i))
        groups += [tuple(members) for members in by_seq.values()]
    return groups


def _last_arrival(starts: Sequence[Floats], across_replicas: bool) -> Floats:
    arrival: Floats = np.maximum.reduce(starts)
    return np.broadcast_to(arrival.max(axis=0), arrival.shape) if across_replicas else arrival


def _topological(after: Sequence[set[int]], group_of: Mapping[int, tuple[int, ...]]) -> list[int]:
    """Return Kahn's order; a node comes after all members of the groups it waits for."""
    waits = [{m for before in a for m in group_of.get(before, (before,))} for a in after]
    followers: dict[int, list[int]] = {}
    for i, befores in enumerate(waits):
        for before in befores:
            followers.setdefault(before, []).append(i)
    left = [len(befores) for befores in waits]
    ready = deque(i for i, n in enumerate(left) if n == 0)
    order = []
    while ready:
        i = ready.popleft()
        order.append(i)
        for follower in followers.get(i, ()):
            left[follower] -= 1
            if left[follower] == 0:
                ready.append(follower)
    if len(order) != len(after):
        raise MalformedInput(
            "the operations of a step depend on each other in a circle: "
            "starts or sequence ids are wrong"
        )
    return order
