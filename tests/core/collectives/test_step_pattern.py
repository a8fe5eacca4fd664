"""The step of one rank is found from its calls, whatever else it calls now and then."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.shared_data import recorded_rings

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.step_kinds import Detail
from ingero.core.collectives.step_pattern import cut_steps, find_pattern
from ingero.core.collectives.steps.patterns import StepCut
from ingero.importers.nccl_ring import read_ring

Call = tuple[str, int, int, int]  # operation, bytes, communicator, peer
OPS = ("AllReduce", "AllGather", "ReduceScatter", "Send", "Recv", "AllToAll")
WIDTHS = {1: 8, 2: 2, 3: 4}
MS = 1_000_000

BUCKETS: tuple[Call, ...] = (
    ("AllReduce", 30 << 20, 1, -1),
    ("AllReduce", 25 << 20, 1, -1),
    ("AllReduce", 25 << 20, 1, -1),
    ("AllReduce", 3 << 20, 1, -1),
)
FLAG: Call = ("AllReduce", 8, 1, -1)
LAYERS: tuple[Call, ...] = (
    ("AllGather", 5 << 20, 1, -1),
    *[("AllGather", 6 << 20, 1, -1)] * 32,
    *[("AllGather", 6 << 20, 1, -1), ("ReduceScatter", 1 << 20, 1, -1)] * 32,
)
STAGE: tuple[Call, ...] = (
    *[("Recv", 1 << 20, 1, 0), ("Send", 1 << 20, 1, 2)] * 12,
    *[("Recv", 1 << 20, 1, 2), ("Send", 1 << 20, 1, 0)] * 12,
    ("AllReduce", 4 << 20, 2, -1),
)
TENSOR: tuple[Call, ...] = (
    *[("AllGather", 6 << 20, 2, -1), ("ReduceScatter", 6 << 20, 2, -1)] * 400,
    ("AllReduce", 40 << 20, 3, -1),
)


def columns_of(steps: Iterable[Iterable[Call]], pause_ms: int = 20) -> Collectives:
    """Columns of one rank: a pause before each step, one millisecond between its calls."""
    rows: dict[str, list[int]] = {
        name: []
        for name in ("comm", "seq", "op", "rank", "nranks", "peer", "size_bytes", "start_ns")
    }
    now, count = 0, {1: 0, 2: 0, 3: 0}
    for calls in steps:
        now += pause_ms * MS
        for op, size, comm, peer in calls:
            pairwise = op in ("Send", "Recv")
            values = (comm, -1 if pairwise else count[comm], OPS.index(op), 1, WIDTHS[comm])
            for name, value in zip(rows, (*values, peer, size, now), strict=True):
                rows[name].append(value)
            count[comm] += not pairwise
            now += MS
    starts = np.array(rows["start_ns"])
    timed = {"end_ns": starts + MS // 2, "gpu_duration_ns": np.full(len(starts), MS // 4)}
    who = np.zeros(len(starts), np.int32)
    return from_columns({**rows, **timed, "who": who}, OPS, (Recorder(None, None, 1),))


def cut(columns: Collectives) -> StepCut:
    pattern = find_pattern(columns)
    assert pattern is not None
    return cut_steps(columns, pattern)


def with_flags(step: tuple[Call, ...], every: int, steps: int = 300) -> Iterator[tuple[Call, ...]]:
    for number in range(steps):
        yield (FLAG, *step) if number % every == 0 else step


@pytest.mark.parametrize("step", [BUCKETS, LAYERS, STAGE, TENSOR], ids=["ddp", "zero", "pp", "tp"])
def test_a_step_is_one_repetition_of_the_whole_pattern(step: tuple[Call, ...]) -> None:
    # The layers of a model and the micro-batches of a pipeline repeat too; they are no steps.
    found = cut(columns_of([step] * 60))
    assert len(found) == 60
    assert found.whole[1:-1].all()
    assert (np.bincount(found.step[found.place == 0]) == 1).all()
    assert found.place.max() + 1 == len(step)


@pytest.mark.parametrize("every", [2, 3, 7, 20, 250, 1000])
@pytest.mark.parametrize("step", [BUCKETS, STAGE], ids=["ddp", "pp"])
def test_rare_light_calls_do_not_change_the_step(every: int, step: tuple[Call, ...]) -> None:
    found = cut(columns_of(with_flags(step, every, 1100 if every == 1000 else 300)))
    assert len(found) == (1100 if every == 1000 else 300)
    assert found.whole[1:-1].all()


@pytest.mark.parametrize("every", [3, 10])
def test_a_flag_like_a_call_of_every_step_does_not_change_the_step(every: int) -> None:
    found = cut(columns_of(with_flags((*BUCKETS, FLAG), every)))
    assert len(found) == 300
    assert found.whole[1:-1].mean() > 0.99


NORM: Call = ("AllReduce", 4096, 1, -1)
GATHER: Call = ("AllGather", 4096, 1, -1)
BUCKET: Call = ("AllReduce", 25 << 20, 1, -1)


@pytest.mark.parametrize("backward", [[*[NORM] * 10, BUCKET] * 2, [NORM, BUCKET] * 10])
def test_small_calls_of_every_layer_belong_to_the_step(backward: list[Call]) -> None:
    """Two equal buckets are no two steps where the forward pass lies before one of them."""
    step = (*[GATHER] * 20, *backward)
    pattern = find_pattern(columns_of(with_flags(step, 20), pause_ms=1))
    assert pattern is not None
    assert len(pattern) == len(step)


def test_small_calls_that_come_as_they_like_are_no_step() -> None:
    """Tokens are generated before the gradients are reduced, in some steps more than in others."""
    tokens = [NORM] * 40
    steps = [(*tokens[: 12 + 7 * n % 23], *BUCKETS) for n in range(60)]
    pattern = find_pattern(columns_of(steps))
    assert pattern is not None
    assert [kind.size_bytes for kind, _ in pattern.places if kind.size_bytes > 4096] == [
        call[1] for call in BUCKETS
    ]


def test_steps_begin_after_the_longest_silence() -> None:
    columns = columns_of(with_flags(STAGE, 20))
    found = cut(columns)
    first = columns.start_ns[found.place == 0]
    assert (np.diff(first) // MS == 20 + len(STAGE) + (np.arange(299) % 20 == 19)).all()


def test_evaluations_and_checkpoints_are_outside_steps() -> None:
    gathers = [("AllGather", 6 << 20, 1, -1)] * 32 * 5
    steps = [(*LAYERS, *gathers) if n % 50 == 49 else LAYERS for n in range(400)]
    found = cut(columns_of(steps))
    assert len(found) == pytest.approx(400, abs=16)
    assert found.whole.mean() > 0.9


def test_sizes_that_change_with_the_data_are_one_kind() -> None:
    sizes = np.random.default_rng(7).integers(1 << 18, 1 << 20, (200, 8))
    steps = [
        (*(("AllToAll", int(size), 1, -1) for size in row), ("AllReduce", 9 << 20, 3, -1))
        for row in sizes
    ]
    columns = columns_of(steps)
    pattern = find_pattern(columns)
    assert pattern is not None and pattern.detail is Detail.EXCHANGES
    assert len(cut_steps(columns, pattern)) == 200


def test_members_share_the_sequence_number_of_a_step() -> None:
    columns = columns_of(with_flags(BUCKETS, 20))
    whole, late = cut(columns), cut(columns.take(np.arange(len(columns)) > 100))
    assert (late.comm == 1).all()
    assert set(late.seq.tolist()) < set(whole.seq.tolist())


def test_a_live_reader_passes_the_rows_since_the_last_whole_step_again() -> None:
    columns = columns_of(with_flags(STAGE, 20, 100))
    pattern = find_pattern(columns)
    assert pattern is not None
    numbers, held = [], np.empty(0, np.intp)
    for batch in np.array_split(np.arange(len(columns)), 37):
        held = np.concatenate((held, batch))
        found = cut_steps(columns.take(held), pattern)
        done = np.flatnonzero(found.whole)
        numbers += found.seq[done].tolist()
        if len(done):
            held = held[np.flatnonzero(found.step == done[-1]).max() + 1 :]
    assert numbers == cut_steps(columns, pattern).seq.tolist()


def test_no_pattern_is_found_where_nothing_repeats() -> None:
    sizes = np.random.default_rng(1).integers(0, 40, 500)
    steps = [(("AllReduce", 1 << 20 << int(size % 7), 1, -1),) * int(size) for size in sizes]
    assert find_pattern(columns_of(steps)) is None
    assert find_pattern(columns_of([])) is None


@pytest.mark.parametrize(
    ("recording", "places", "step_ms"),
    [
        ("ddp/healthy", 6, 39.14),
        ("accum/healthy", 6, 55.85),
        ("fsdp/healthy", 20, 50.51),
        ("pp/healthy", 13, 52.12),
    ],
)
def test_the_steps_of_real_jobs_are_found(
    recording: str, places: int, step_ms: float, tmp_path: Path
) -> None:
    columns, _ = read_ring(recorded_rings(recording, tmp_path)[0])
    found = cut(columns)
    ends = np.sort(columns.end_ns[found.place == places - 1])
    assert found.place.max() + 1 == places
    assert np.diff(ends).mean() / MS == pytest.approx(step_ms, rel=0.01)


def test_many_kinds_that_come_once_do_not_slow_the_search() -> None:
    """A job whose messages change: no turn holds the kinds of both."""
    spent_s = []
    for calls in (800, 8000):
        dice = np.random.default_rng(3)
        single = [[("AllReduce", size, 1, -1)] for size in dice.integers(1 << 17, 1 << 40, calls)]
        both = columns_of([*[BUCKETS] * (calls // 4), *single])
        began_s = time.thread_time()
        assert find_pattern(both) is None
        spent_s.append(time.thread_time() - began_s)
    assert spent_s[1] < 25 * spent_s[0], "ten times as many calls"
