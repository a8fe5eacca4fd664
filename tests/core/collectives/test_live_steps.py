"""Own time of one rank from its collectives, batch by batch."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero.core.collectives.columns import Collectives, Recorder, concat, from_columns
from ingero.core.collectives.live_steps import NOTHING_FINISHED, LiveSteps, StepTimes
from ingero.core.collectives.step_search import LEARN_AFTER

MS = 1_000_000
START = 10**18
SIZES = (1 << 20, 2 << 20, 8 << 20)  # per step, on one communicator


def job(
    steps: int,
    own_ms: float = 30.0,
    *,
    timed: bool = True,
    first_seq: int = 0,
    sizes: tuple[int, ...] = SIZES,
) -> Collectives:
    """Return steps of own time, then all-reduces of 1 ms, 0.1 ms apart, enqueued 5 ms ahead."""
    rows, at = [], START
    for step in range(steps):
        at += int(own_ms * MS)
        for place, size in enumerate(sizes):
            rows.append((first_seq + len(sizes) * step + place, size, at - 5 * MS, at + MS))
            at += MS + MS // 10
        at -= MS // 10
    seq, size, start, end = (np.array(column) for column in zip(*rows, strict=True))
    columns = {
        "who": np.zeros(len(seq)), "comm": np.full(len(seq), 9, np.uint64), "seq": seq,
        "op": np.zeros(len(seq)), "rank": np.zeros(len(seq)), "nranks": np.full(len(seq), 8),
        "size_bytes": size, "start_ns": start, "end_ns": end, "source": np.zeros(len(seq)),
    }  # fmt: skip
    if timed:
        columns["gpu_duration_ns"] = np.full(len(seq), MS)
    return from_columns(columns, ("AllReduce",), (Recorder("j", "n", 0),))


def fed(rows: Collectives, sizes: list[int]) -> list[StepTimes]:
    stream, at, found = LiveSteps(), 0, []
    for size in [*sizes, len(rows)]:
        found.append(stream.take(rows.take(np.arange(at, min(at + size, len(rows))))).times)
        at += size
    return found


def joined(parts: list[StepTimes], name: str) -> list[float]:
    return np.concatenate([getattr(part, name) for part in parts]).round(6).tolist()


def test_steps_are_numbered_by_the_communicator_they_end_on() -> None:
    found = fed(job(40), [LEARN_AFTER])
    assert joined(found, "step") == list(range(16, 40))
    assert set(joined(found, "own_s")) == {0.0302}
    assert set(joined(found, "idle_s")) == {0.025}
    assert set(joined(found, "span_s")[1:]) == {0.0332}
    assert np.concatenate([part.follows for part in found]).tolist() == [False] + [True] * 23


@given(st.lists(st.integers(1, 40), max_size=20))
def test_how_the_records_are_batched_does_not_matter(sizes: list[int]) -> None:
    rows = job(60)
    whole = fed(rows, [LEARN_AFTER])
    parts = fed(rows, [LEARN_AFTER, *sizes])
    assert joined(parts, "step") == joined(whole, "step")
    assert joined(parts, "own_s") == joined(whole, "own_s")


def test_order_within_a_batch_does_not_matter() -> None:
    rows = job(60)
    shuffled = rows.take(
        np.concatenate((np.arange(60), np.random.default_rng(3).permutation(np.arange(60, 180))))
    )
    assert joined(fed(shuffled, [60]), "own_s") == joined(fed(rows, [60]), "own_s")


def test_a_clock_that_is_set_back_costs_a_few_steps_not_a_minute_of_them() -> None:
    rows = job(400)
    shift = np.where(np.arange(len(rows)) >= 600, 60 * 10**9, 0)
    rows = replace(rows, start_ns=rows.start_ns - shift, end_ns=rows.end_ns - shift)
    found = fed(rows, [30] * (len(rows) // 30))
    spans = np.array(joined(found, "span_s"))
    assert set(joined(found, "own_s")) == {0.0302}
    assert set(spans[np.isfinite(spans)]) == {0.0332}
    assert np.isnan(spans).sum() == 2  # of the first step, and of the first one after the gap
    assert len(joined(found, "step")) >= 375


def test_a_gap_makes_no_long_step() -> None:
    rows = job(60)
    stream = LiveSteps()
    stream.take(rows.take(np.arange(60)))
    assert len(stream.take(rows.take(np.arange(60, 90))).times) == 10
    stream.skip()
    after = stream.take(rows.take(np.arange(121, 180))).times
    assert after.step.tolist() == list(range(41, 60))
    assert after.own_s.max() < 0.031


def test_enqueue_times_alone_do_not_tell_busy_from_idle() -> None:
    assert np.isnan(joined(fed(job(40, timed=False), [LEARN_AFTER]), "idle_s")).all()


def test_a_communicator_that_did_something_else_first_numbers_steps_one_by_one() -> None:
    found = fed(job(40, first_seq=7, sizes=(1 << 20, 1 << 20, 8 << 20, 9 << 20)), [LEARN_AFTER])
    steps = joined(found, "step")
    assert np.diff(steps).tolist() == [1.0] * (len(steps) - 1)
    assert set(joined(found, "own_s")) == {0.0303}


def test_a_new_pattern_is_learned() -> None:
    stream = LiveSteps()
    stream.take(job(40))
    other = job(60)
    changed = replace(
        other,
        comm=other.comm + np.uint64(1),
        start_ns=other.start_ns + 10**10,
        end_ns=other.end_ns + 10**10,
    )
    assert (
        sum(
            len(stream.take(changed.take(np.arange(at, at + 30))).times) for at in range(0, 180, 30)
        )
        > 20
    )


def test_no_records_give_no_steps() -> None:
    assert LiveSteps().take(job(1).take(np.arange(0))) is NOTHING_FINISHED


def with_flags(rows: Collectives, every: int) -> Collectives:
    """The same job with an all-reduce of 8 bytes before every n-th step, 3 ms earlier."""
    first = np.flatnonzero(np.arange(len(rows)) % (len(SIZES) * every) == 0)
    flags = rows.take(first)
    flags = replace(
        flags,
        size_bytes=np.full(len(first), 8),
        start_ns=flags.start_ns - 3 * MS,
        end_ns=flags.end_ns - 3 * MS,
    )
    both = concat([rows, flags])
    both = both.take(np.argsort(both.start_ns, kind="stable"))
    return replace(both, seq=np.arange(len(both)))


def steps_of(rows: Collectives, begin: int, portion: int, lost: range) -> dict[int, int]:
    """What one reader finds: the end of each step by its number; it misses `lost` records."""
    stream, found, sent = LiveSteps(), {}, set[int]()
    numbers = []
    for at in range(begin, len(rows), portion):
        batch = np.arange(at, min(at + portion, len(rows)))
        if set(batch) & set(lost):
            stream.skip()
        finished = stream.take(rows.take(batch[~np.isin(batch, lost)]))
        found |= dict(
            zip(finished.times.step.tolist(), finished.times.end_ns.tolist(), strict=True)
        )
        numbers += finished.times.step.tolist()
        places = {(step, place) for step, place in zip(finished.step, finished.place, strict=True)}
        assert len(places) == len(finished.row)
        # Collectives come from anchor to anchor or not at all, each step in one portion.
        of_step = Counter(step for step, _ in places)
        assert set(of_step.values()) <= {len(SIZES)}
        assert not of_step.keys() & sent
        sent |= of_step.keys()
    assert numbers == sorted(set(numbers))
    return found


@given(
    every=st.sampled_from([2, 3, 7, 20, 1000]),
    begin=st.integers(0, 300),
    portion=st.integers(5, 200),
    lost_at=st.integers(0, 600),
    lost=st.integers(0, 60),
)
@settings(max_examples=40, deadline=None)
def test_all_ranks_give_a_step_the_same_number(
    every: int, begin: int, portion: int, lost_at: int, lost: int
) -> None:
    """Agents start at any time, read other portions and lose records; flags come in between."""
    rows = with_flags(job(250), every)
    one = steps_of(rows, 0, 30, range(0))
    other = steps_of(rows, begin, portion, range(lost_at, lost_at + lost))
    both = one.keys() & other.keys()
    assert all(one[number] == other[number] for number in both)
    assert len(both) >= 250 - (LEARN_AFTER + begin + lost + 3 * portion) / len(SIZES) - 4


def test_light_collectives_are_no_steps_and_do_not_change_their_length() -> None:
    found = fed(with_flags(job(200), 20), [LEARN_AFTER] * 14)
    spans = np.array(joined(found, "span_s"))[1:]
    assert set(spans) == {0.0332}


def test_heavy_collectives_between_steps_leave_own_time_and_span_alone() -> None:
    """A checkpoint gathers the weights after step 150."""
    rows = job(200)
    gathered = replace(
        rows.take(np.arange(5)),
        size_bytes=np.full(5, 99 << 20),
        start_ns=rows.end_ns[449] + np.arange(5) * 100 * MS + MS,
        end_ns=rows.end_ns[449] + np.arange(5) * 100 * MS + 20 * MS,
    )
    late = np.where(np.arange(600) >= 450, 600 * MS, 0)
    moved = replace(rows, start_ns=rows.start_ns + late, end_ns=rows.end_ns + late)
    both = concat([moved, gathered])
    both = both.take(np.argsort(both.start_ns, kind="stable"))
    found = fed(replace(both, seq=np.arange(len(both))), [LEARN_AFTER] * 14)
    spans = np.array(joined(found, "span_s"))[1:]
    assert np.isnan(spans).sum() == 1
    assert set(spans[np.isfinite(spans)]) == {0.0332}


def test_steps_of_a_minute_with_many_collectives_are_found() -> None:
    """Equal layers repeat within a step; after two pauses they are no longer taken for steps."""
    sizes = tuple([1 << 20] * 500 + [64 << 20])
    rows = job(12, 59_000.0, sizes=sizes)
    found = fed(rows, [501] * 12)
    later = [part for part in found[2:] if len(part)]
    assert len(joined(later, "step")) >= 7
    spans = np.array(joined(later, "span_s"))
    assert spans[np.isfinite(spans)] == pytest.approx(59.0 + 501 * 0.0011, rel=0.001)


def test_a_pattern_that_was_replaced_is_not_tried_while_steps_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The micro-batches of the first step repeat, and still do when the step is known."""
    monkeypatch.setattr("ingero.core.collectives.step_search.SEARCHED", 800)
    rows = job(60, sizes=(*(1 << 20, 2 << 20) * 30, 64 << 20))
    stream, ends = LiveSteps(), []
    for begin, end in pairwise([0, 50, *range(250, len(rows), 200), len(rows)]):
        ends += stream.take(rows.take(np.arange(begin, end))).times.end_ns.tolist()
    assert stream.search.pattern is not None
    assert stream.search.changes == 1  # they were taken for steps at first
    assert len(stream.search.pattern) == 61
    spans = np.diff(ends[-40:])
    assert ends[-1] == rows.end_ns.max()
    assert spans == pytest.approx(30 * MS + 60 * 1.1 * MS + MS)


def test_training_goes_on_with_the_old_pattern_after_an_evaluation() -> None:
    train, other = job(120), job(100, 20.0, sizes=(3 << 20, 5 << 20))
    shift = int(train.end_ns.max()) - START
    middle = replace(other, start_ns=other.start_ns + shift, end_ns=other.end_ns + shift)
    shift = int(middle.end_ns.max()) - START
    again = replace(train, start_ns=train.start_ns + shift, end_ns=train.end_ns + shift)
    rows = concat([train, middle, again])
    rows = replace(rows, seq=np.arange(len(rows)))
    found = fed(rows, [30] * (len(rows) // 30))
    assert set(joined(found, "own_s")) == {0.0302}
    assert len(joined(found, "step")) >= 120 + 120 - LEARN_AFTER / 3 - 6


def test_ranks_that_disagree_where_a_step_begins_name_each_collective_alike() -> None:
    """One host waits before the first collective of a step, another one before the second."""
    rows = job(80)
    delayed = replace(rows, start_ns=rows.start_ns + np.where(rows.seq % 3 == 0, -28 * MS, 0))
    named = []
    for each in (rows, delayed):
        stream, found = LiveSteps(), {}
        for at in range(0, len(each), 30):
            finished = stream.take(each.take(np.arange(at, min(at + 30, len(each)))))
            found |= {
                row: (step, place)
                for row, step, place in zip(
                    finished.row.tolist(), finished.step.tolist(), finished.place.tolist(),
                    strict=True,
                )
            }  # fmt: skip
        assert stream.search.pattern is not None
        named.append((stream.search.pattern.anchor, found))
    (first, one), (second, other) = named
    assert first != second  # they do disagree
    both = one.keys() & other.keys()
    assert len(both) > 100
    assert {row: one[row] for row in both} == {row: other[row] for row in both}


@pytest.mark.parametrize("every", [1, 20])
def test_gradient_buckets_of_one_size_in_bursts_are_one_step_on_all_ranks(every: int) -> None:
    """Flags of some steps have sequence numbers, too; one host stops in the middle of a burst."""
    calm = with_flags(job(120, 100.0, sizes=(1 << 24,) * 3), every)
    is_bucket = calm.size_bytes == 1 << 24
    stops = is_bucket & (np.cumsum(is_bucket) % 30 == 2)
    late = replace(calm, end_ns=calm.end_ns + np.where(stops, 60 * MS, 0))
    one, other = (fed(each, [50] * 6) for each in (calm, late.take(np.arange(7, len(late)))))
    assert len(set(joined(one, "step")) & set(joined(other, "step"))) >= 100
    spans = np.array(joined(one, "span_s"))
    assert set(spans[np.isfinite(spans)]) == {0.1032}


@pytest.mark.parametrize("begin", [0, 1])
def test_bursts_of_two_are_steps_wherever_the_records_begin(begin: int) -> None:
    rows = job(80, 100.0, sizes=(1 << 24,) * 2)
    found = fed(rows.take(np.arange(begin, len(rows))), [49] * 3)
    spans = np.array(joined(found, "span_s"))
    assert set(spans[np.isfinite(spans)]) == {0.1021}


def test_bursts_of_unequal_length_are_no_steps() -> None:
    rows = [job(1, 100.0, sizes=(1 << 24,) * int(n)) for n in 2 + np.arange(60) % 5]
    ends, starts, at = [], [], 0
    for each in rows:
        starts.append(each.start_ns + at)
        ends.append(each.end_ns + at)
        at = int(ends[-1].max()) - START
    bursts = replace(
        concat(rows), start_ns=np.concatenate(starts), end_ns=np.concatenate(ends),
        seq=np.arange(sum(map(len, rows))),
    )  # fmt: skip
    assert not any(len(each) for each in fed(bursts, [48] * 4))
