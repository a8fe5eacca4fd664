"""The graph of a schedule: what waits for what, and how long a step is with other durations."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.blame.step_trace import (
    Node,
    StepTrace,
    build_graph,
    ideal_times,
    own_compute,
    replay,
    transfer_times,
)
from ingero.errors import MalformedInput

F, B = "forward-compute", "backward-compute"
FS, FR, BS, BR = "forward-send", "forward-recv", "backward-send", "backward-recv"
Row = tuple[str, float, float]  # name, start, end

# Two stages and two micro-batches; compute takes 1 s forward and 2 s backward, transfers 0.1 s.
PIPELINE: dict[int, list[Row]] = {
    0: [
        (F, 0, 1), (FS, 1, 1.1), (F, 1, 2), (FS, 2, 2.2), (BR, 1, 4.2), (B, 4.2, 6.2),
        (BR, 6.2, 7.2), (B, 7.2, 9.2),
    ],
    1: [
        (FR, 0, 1.1), (F, 1.1, 2.1), (FR, 2.1, 2.2), (B, 2.1, 4.1), (BS, 4.1, 4.2), (F, 4.1, 5.1),
        (B, 5.1, 7.1), (BS, 7.1, 7.2),
    ],
}  # fmt: skip


def trace(*replicas: dict[int, Sequence[Row]], chunk: dict[str, int] | None = None) -> StepTrace:
    """Return one step; operations of a kind are numbered, and all replicas have the same ones.

    `chunk` gives the chunks of operations by name, such as `0 forward-compute 1`.
    """
    stages = len(replicas[0])
    nodes, times = [], []
    for rows in replicas:
        seen: dict[tuple[int, str], int] = {}
        here, begin_end = [], []
        for stage, ops in rows.items():
            for optype, start, end in ops:
                seq = seen[stage, optype] = seen.get((stage, optype), -1) + 1
                own = (chunk or {}).get(f"{stage} {optype} {seq}", 0)
                here.append(Node(stage, optype, seq, own, own * stages + stage))
                begin_end.append((start, end - start))
        nodes.append(tuple(here))
        times.append(begin_end)
    assert len(set(nodes)) == 1
    table = np.array(times, float)  # [replica, node, start or duration]
    start, duration = (table[:, :, at].T[:, :, None] for at in (0, 1))
    ranks = np.arange(len(replicas) * stages).reshape(len(replicas), stages)
    return StepTrace(nodes[0], start, duration, (7,), ranks, ranks.size)


def labels(given_trace: StepTrace) -> list[str]:
    return [f"{node.stage} {node.optype} {node.seq}" for node in given_trace.nodes]


def dependencies(given_trace: StepTrace) -> dict[str, set[str]]:
    after, names = build_graph(given_trace).after, labels(given_trace)
    return {name: {names[i] for i in after[at]} for at, name in enumerate(names)}


def groups(given_trace: StepTrace) -> set[frozenset[str]]:
    group, names = build_graph(given_trace).group, labels(given_trace)
    return {frozenset(names[i] for i in members) for members in group if members}


def length(given_trace: StepTrace, **busy: float) -> float:
    """Return the length of the step with other durations, by name with `_` between its parts."""
    graph = build_graph(given_trace)
    times = transfer_times(given_trace, graph)
    names = [name.replace(" ", "_").replace("-", "_") for name in labels(given_trace)]
    for name, seconds in busy.items():
        times[names.index(name.removeprefix("at_"))] = seconds
    (result,) = replay(graph, times)
    return float(result)


def test_dependencies_of_a_pipeline_are_those_of_the_schedule() -> None:
    assert dependencies(trace(PIPELINE)) == {
        f"0 {F} 0": set(),
        f"0 {F} 1": {f"0 {F} 0"},
        f"0 {B} 0": {f"0 {F} 1", f"0 {BR} 0"},
        f"0 {B} 1": {f"0 {B} 0", f"0 {BR} 1"},
        f"0 {FS} 0": {f"0 {F} 0"},
        f"0 {FS} 1": {f"0 {FS} 0", f"0 {F} 1"},
        f"0 {BR} 0": {f"0 {F} 0"},  # posted before the last warm-up forward
        f"0 {BR} 1": {f"0 {BR} 0", f"0 {B} 0"},
        f"1 {FR} 0": set(),
        f"1 {F} 0": {f"1 {FR} 0"},
        f"1 {FR} 1": {f"1 {FR} 0", f"1 {F} 0"},
        f"1 {B} 0": {f"1 {F} 0"},
        f"1 {F} 1": {f"1 {B} 0", f"1 {FR} 1"},
        f"1 {B} 1": {f"1 {F} 1"},
        f"1 {BS} 0": {f"1 {B} 0"},
        f"1 {BS} 1": {f"1 {BS} 0", f"1 {B} 1"},
    }


def test_sends_end_with_their_receives() -> None:
    assert groups(trace(PIPELINE)) == {
        frozenset({f"0 {FS} {n}", f"1 {FR} {n}"}) for n in (0, 1)
    } | {frozenset({f"1 {BS} {n}", f"0 {BR} {n}"}) for n in (0, 1)}


def test_transfers_count_from_the_last_arrival() -> None:
    recorded = trace(PIPELINE)
    busy = transfer_times(recorded, build_graph(recorded))[:, 0, 0]
    for node, seconds in zip(recorded.nodes, busy, strict=True):
        expected = {F: 1.0, B: 2.0}.get(node.optype, 0.1)
        assert seconds == pytest.approx(expected), node


@pytest.mark.parametrize(
    ("change", "step_s"),
    [
        ({}, 9.2),
        ({"at_0_forward_compute_0": 1.5}, 9.7),  # everybody waits for it
        ({"at_0_forward_compute_1": 1.9}, 9.2),  # hidden behind the other stage
        ({"at_0_forward_compute_1": 5.2}, 11.4),  # F1, transfer, F1, B1, transfer, B1
        ({"at_1_backward_compute_0": 0.5}, 7.7),
        ({"at_1_forward_recv_0": 0.6}, 9.7),  # a transfer that takes longer
        ({"at_0_backward_recv_1": 0.0}, 9.1),
        ({"at_0_backward_compute_1": 0.0}, 7.2),
    ],
)
def test_replay_gives_the_length_of_the_step(change: dict[str, float], step_s: float) -> None:
    assert length(trace(PIPELINE), **change) == pytest.approx(step_s)


def test_a_transfer_with_a_wrong_clock_counts_as_none() -> None:
    """The receive ends before its send began."""
    for end, transfer in ((0.985, 0.0), (0.99, 0.0), (0.995, -0.005), (1.05, 0.05)):
        rows = {0: [(F, 0, 1), (FS, 1, 1.1)], 1: [(FR, 0, end), (F, 1.1, 2.1)]}
        recorded = trace(rows)
        busy = transfer_times(recorded, build_graph(recorded))[:, 0, 0]
        assert busy[2] == pytest.approx(transfer, abs=1e-9)


GRADIENTS = (
    "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
    "optimizer-clip-main-grad", "optimizer",
)  # fmt: skip


def finishing(*ends: tuple[float, float]) -> list[dict[int, Sequence[Row]]]:
    """Return replicas of two stages; gradient work starts when the backward of each ends.

    Each operation takes 0.1 s after the last member has arrived.
    """
    clock = {(r, s): end for r, pair in enumerate(ends) for s, end in enumerate(pair)}
    rows: list[dict[int, list[Row]]] = [
        {s: [(F, 0, 1), (B, 1, pair[s])] for s in (0, 1)} for pair in ends
    ]
    for optype in GRADIENTS:
        across = optype in ("grads-reduce-scatter", "optimizer-clip-main-grad")
        stages = optype in ("embedding-grads-all-reduce", "optimizer-clip-main-grad")
        begin = dict(clock)
        for (r, s), arrived in begin.items():
            members = [
                start
                for (replica, stage), start in begin.items()
                if (across or replica == r) and (stages or stage == s)
            ]
            clock[r, s] = max(members) + 0.1
            rows[r][s].append((optype, arrived, clock[r, s]))
    return [dict(each) for each in rows]


def test_gradient_work_waits_for_its_own_members_only() -> None:
    """Three replicas of two stages; each kind of collective has other members."""
    recorded = trace(*finishing((3, 4), (5, 3.5), (3, 3)))
    graph = build_graph(recorded)
    busy = transfer_times(recorded, graph)
    for at, node in enumerate(recorded.nodes):
        if node.optype in GRADIENTS:
            assert busy[at, :, 0] == pytest.approx([0.1] * 3), node
    assert replay(graph, busy) == pytest.approx([5.6])
    assert replay(graph, busy) == pytest.approx(
        (recorded.start_s + recorded.duration_s).max(axis=(0, 1))
    )
    across = zip(recorded.nodes, graph.across_replicas, strict=True)
    shared = {node.optype for node, is_across in across if is_across}
    assert shared == {"grads-reduce-scatter", "optimizer-clip-main-grad"}
    both = ("embedding-grads-all-reduce", "optimizer-clip-main-grad")
    over_stages = {frozenset(f"{s} {name} 0" for s in (0, 1)) for name in both}
    alone = {frozenset({f"{s} grads-reduce-scatter 0"}) for s in (0, 1)}
    assert groups(recorded) == over_stages | alone


def test_gradient_work_follows_the_last_compute_in_its_order() -> None:
    """The recorded order of starts is reversed; the kinds of work have a fixed order."""
    rows: list[Row] = [(F, 0, 1), (B, 1, 3)]
    names = ["gc", "layernorm-grads-all-reduce", "unknown", "embedding-grads-all-reduce",
             "grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"]  # fmt: skip
    rows += [(name, 3 + 0.1 * (7 - at), 3.8) for at, name in enumerate(names)]
    found = dependencies(trace({0: rows}))
    # What has no place of its own comes with the embedding, in the order of starts.
    order = [*names[:2], names[3], names[2], *names[4:]]
    for before, name in zip([B, *order], order, strict=False):
        assert found[f"0 {name} 0"] == {f"0 {before} 0"}, name


def test_without_overlap_scatters_follow_the_last_compute() -> None:
    rows = [(F, 0, 1), (B, 1, 3), ("grads-reduce-scatter", 3, 3.2), ("optimizer", 3.2, 3.3)]
    found = dependencies(trace({0: rows}))
    assert found["0 grads-reduce-scatter 0"] == {f"0 {B} 0"}
    assert found["0 optimizer 0"] == {"0 grads-reduce-scatter 0"}


def test_overlapped_scatters_follow_the_last_backward_of_their_chunk() -> None:
    """Two chunks: gradients of the second are scattered while the first still computes."""
    rows = [
        ("params-all-gather", 0, 0.2), ("params-all-gather", 0.2, 0.4),
        (F, 0.2, 1), (F, 1, 2), (F, 2, 3), (B, 3, 4), (B, 4, 5), (B, 5, 7),
        ("grads-reduce-scatter", 5, 5.5), ("grads-reduce-scatter", 7, 7.5),
        ("separate-grads-all-reduce", 7.5, 7.6), ("optimizer", 7.6, 7.7),
    ]  # fmt: skip
    chunk = {
        "0 params-all-gather 1": 1, f"0 {F} 1": 1, f"0 {F} 2": 1, f"0 {B} 0": 1, f"0 {B} 1": 1,
        "0 grads-reduce-scatter 0": 1,
    }  # fmt: skip
    recorded = trace({0: rows}, chunk=chunk)
    found = dependencies(recorded)
    assert found[f"0 {F} 0"] == {"0 params-all-gather 0"}
    assert found[f"0 {F} 1"] == {f"0 {F} 0", "0 params-all-gather 1"}
    assert found[f"0 {F} 2"] == {f"0 {F} 1"}
    assert found["0 params-all-gather 0"] == set()
    assert found["0 params-all-gather 1"] == {"0 params-all-gather 0"}
    assert found["0 grads-reduce-scatter 0"] == {"0 params-all-gather 1", f"0 {B} 1"}
    assert found["0 grads-reduce-scatter 1"] == {"0 grads-reduce-scatter 0", f"0 {B} 2"}
    assert found["0 separate-grads-all-reduce 0"] == {f"0 {B} 2", "0 grads-reduce-scatter 1"}
    assert found["0 optimizer 0"] == {"0 separate-grads-all-reduce 0"}
    assert length(recorded) == pytest.approx(7.7)


def test_gathers_and_scatters_of_unknown_chunks_wait_for_no_compute() -> None:
    rows = [
        ("params-all-gather", 0, 0.2), (F, 0.2, 1), (B, 1, 3), ("grads-reduce-scatter", 3, 3.5),
        ("separate-grads-all-reduce", 3.5, 3.6),
    ]  # fmt: skip
    found = dependencies(
        trace({0: rows}, chunk={"0 params-all-gather 0": 9, "0 grads-reduce-scatter 0": 9})
    )
    assert found[f"0 {F} 0"] == set()
    assert found["0 grads-reduce-scatter 0"] == {"0 params-all-gather 0"}


INTERLEAVED: dict[int, list[Row]] = {
    0: [(F, 0, 1), (FS, 1, 1.1), (FR, 1, 2.2), (F, 2.2, 3.2), (FS, 3.2, 3.3)],
    1: [(FR, 0, 1.1), (F, 1.1, 2.1), (FS, 2.1, 2.2), (FR, 2.1, 3.3), (F, 3.3, 4.3)],
}


def test_the_last_stage_sends_to_the_first_chunk_after_chunk() -> None:
    """The first stage has no receive for the first chunk."""
    recorded = trace(INTERLEAVED, chunk={f"{s} {F} 1": 1 for s in (0, 1)})
    found = dependencies(recorded)
    assert found[f"0 {F} 1"] == {f"0 {F} 0", f"0 {FR} 0"}
    assert found[f"0 {FR} 0"] == {f"0 {F} 0"}
    assert found[f"1 {F} 1"] == {f"1 {F} 0", f"1 {FR} 1"}
    assert groups(recorded) == {
        frozenset({f"0 {FS} 0", f"1 {FR} 0"}),
        frozenset({f"1 {FS} 0", f"0 {FR} 0"}),
        frozenset({f"0 {FS} 1", f"1 {FR} 1"}),
    }
    assert length(recorded) == pytest.approx(4.3)
    assert length(recorded, at_1_forward_compute_0=3.0) == pytest.approx(6.3)


def test_a_transfer_without_neighbour_ends_alone() -> None:
    """A first receive and a last send were recorded although nobody is at the other end."""
    rows: dict[int, Sequence[Row]] = {
        0: [(FR, 0, 0.1), (F, 0.1, 1), (FS, 1, 1.1)],
        1: [(FR, 0, 1.1), (F, 1.1, 2.1), (FS, 2.1, 2.2)],
    }
    assert groups(trace(rows)) == {
        frozenset({f"0 {FR} 0"}),
        frozenset({f"0 {FS} 0", f"1 {FR} 0"}),
        frozenset({f"1 {FS} 0"}),
    }


@pytest.mark.parametrize(
    ("send_s", "receive_s", "are_used"),
    [((1, 1.1), 1.1, True), ((0.5, 0.9999), 1.1, False), ((1, 1.1), 1.2, False),
     ((0.5, 0.99996), 1.10004, True)],
)  # fmt: skip
def test_transfers_outside_the_compute_they_belong_to_are_left_alone(
    send_s: tuple[float, float], receive_s: float, are_used: bool
) -> None:
    """A send ends after some compute has ended, and a receive begins before the last compute."""
    rows: dict[int, Sequence[Row]] = {
        0: [(F, 0, 1), (FS, *send_s)],
        1: [(FR, receive_s, 1.3), (F, 1.1, 2.1)],
    }
    found = groups(trace(rows))
    assert (frozenset({f"0 {FS} 0", f"1 {FR} 0"}) in found) == are_used
    if not are_used:
        assert len(found) == 2


def test_more_sends_than_receives_end_alone() -> None:
    rows: dict[int, Sequence[Row]] = {
        0: [(F, 0, 1), (FS, 1, 1.1), (F, 1, 2), (FS, 2, 2.1)],
        1: [(FR, 0, 1.1), (F, 1.1, 2.1), (F, 2.1, 3.1)],
    }
    assert frozenset({f"0 {FS} 1"}) in groups(trace(rows))
    rows = {
        0: [(F, 0, 1), (F, 1, 2), (FS, 2, 2.1)],
        1: [(FR, 0, 2.1), (F, 2.1, 3.1), (FR, 2.1, 2.2), (F, 3.1, 4.1)],
    }
    found = groups(trace(rows))
    assert frozenset({f"0 {FS} 0", f"1 {FR} 0"}) in found
    assert frozenset({f"1 {FR} 1"}) in found


def test_backward_work_without_warm_up_is_posted_by_its_own_compute() -> None:
    """With one forward before the first backward there is no second to last warm-up."""
    rows: dict[int, Sequence[Row]] = {
        0: [(F, 0, 1), (FS, 1, 1.1), (BR, 1, 4.2), (B, 4.2, 6.2)],
        1: [(FR, 0, 1.1), (F, 1.1, 2.1), (B, 2.1, 4.1), (BS, 4.1, 4.2)],
    }
    found = dependencies(trace(rows))
    assert found[f"0 {BR} 0"] == set()
    assert found[f"1 {BS} 0"] == {f"1 {B} 0"}


def test_a_job_that_only_runs_forward_is_replayed() -> None:
    rows: list[Row] = [(F, 0, 1), (F, 1, 2), (F, 2, 3)]
    assert length(trace({0: rows})) == pytest.approx(3)
    assert length(trace({0: rows}), at_0_forward_compute_1=4.0) == pytest.approx(6)


def test_a_stage_without_compute_is_refused() -> None:
    with pytest.raises(MalformedInput, match="stage 1 has no forward-compute"):
        build_graph(trace({0: [(F, 0, 1)], 1: [("optimizer", 0, 1)]}))


def test_operations_that_depend_on_each_other_in_a_circle_are_refused() -> None:
    """Each stage receives before it sends: nobody could ever begin."""
    rows: dict[int, Sequence[Row]] = {
        0: [(BR, 0, 1), (B, 1, 2), (F, 2, 3), (FS, 3, 4)],
        1: [(FR, 0, 1), (F, 1, 2), (B, 2, 3), (BS, 3, 4)],
    }
    with pytest.raises(MalformedInput, match="in a circle"):
        build_graph(trace(rows))


@pytest.mark.parametrize("kind", ["grads-reduce-scatter", "layernorm-grads-all-reduce"])
def test_ideal_times_are_means_of_compute_and_medians_of_communication(kind: str) -> None:
    recorded = trace({0: [(F, 0, 1), (F, 1, 4), (kind, 4, 5)]},
                     {0: [(F, 0, 3), (F, 3, 8), (kind, 8, 10)]},
                     {0: [(F, 0, 1), (F, 1, 6), (kind, 6, 15)]})  # fmt: skip
    ideal = ideal_times(recorded, recorded.duration_s)[:, :, 0]
    assert ideal[:2] == pytest.approx(np.full((2, 3), 3.0))
    assert ideal[2] == pytest.approx([2.0] * 3)


def test_own_compute_is_compute_alone() -> None:
    own = own_compute(trace(PIPELINE, PIPELINE))
    assert own.shape == (2, 2, 1)
    assert own == pytest.approx(np.full((2, 2, 1), 6.0))


def test_a_worker_stands_for_its_share_of_the_gpus() -> None:
    recorded = trace(PIPELINE, PIPELINE)
    assert (recorded.replicas, recorded.stages) == (2, 2)
    assert recorded.gpus_per_worker == 1.0
    assert recorded.nodes_where(frozenset({F}), 1).tolist() == [9, 13]
    assert recorded.nodes_where(frozenset({F})).tolist() == [0, 2, 9, 13]


@given(st.lists(st.floats(0, 3), min_size=16, max_size=16), st.integers(0, 15), st.floats(0, 3))
def test_longer_operations_never_make_a_step_shorter(
    busy: list[float], at: int, more: float
) -> None:
    """The step is at least as long as the compute of any stage, and grows by no more than added."""
    recorded = trace(PIPELINE)
    graph = build_graph(recorded)
    times = np.array(busy)[:, None, None]
    (before,) = replay(graph, times)
    longer = times.copy()
    longer[at] += more
    (after,) = replay(graph, longer)
    assert before - 1e-9 <= after <= before + more + 1e-9
    for stage in (0, 1):
        rows = recorded.nodes_where(frozenset({F, B}), stage)
        assert before >= times[rows].sum() - 1e-9
    assert replay(graph, 3 * times) == pytest.approx([3 * before])
