"""Own time of one rank from its collectives, batch by batch."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.live_steps import LEARN_AFTER, NO_STEPS, LiveSteps, StepTimes

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
        found.append(stream.take(rows.take(np.arange(at, min(at + size, len(rows))))))
        at += size
    return found


def joined(parts: list[StepTimes], name: str) -> list[float]:
    return np.concatenate([getattr(part, name) for part in parts]).round(6).tolist()


def test_steps_are_numbered_by_the_communicator_they_end_on() -> None:
    found = fed(job(40), [LEARN_AFTER])
    assert joined(found, "step") == list(range(17, 40))
    assert set(joined(found, "own_s")) == {0.0302}
    assert set(joined(found, "idle_s")) == {0.025}
    assert set(joined(found, "span_s")) == {0.0332}


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
    assert set(joined(found, "own_s")) == {0.0302}
    assert set(joined(found, "span_s")) == {0.0332}
    assert len(joined(found, "step")) >= 375


def test_a_gap_makes_no_long_step() -> None:
    rows = job(60)
    stream = LiveSteps()
    stream.take(rows.take(np.arange(60)))
    assert len(stream.take(rows.take(np.arange(60, 90)))) == 9
    stream.skip()
    after = stream.take(rows.take(np.arange(121, 180)))
    assert after.step.tolist() == list(range(41, 60))
    assert after.own_s.max() < 0.031


def test_enqueue_times_alone_do_not_tell_busy_from_idle() -> None:
    assert np.isnan(joined(fed(job(40, timed=False), [LEARN_AFTER]), "idle_s")).all()


def test_where_the_last_collective_comes_twice_the_second_closes_the_step() -> None:
    """Also when the communicator did something else first."""
    found = fed(job(40, first_seq=7, sizes=(1 << 20, 1 << 20, 8 << 20, 8 << 20)), [LEARN_AFTER])
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
        sum(len(stream.take(changed.take(np.arange(at, at + 30)))) for at in range(0, 180, 30)) > 20
    )


def test_no_records_give_no_steps() -> None:
    assert LiveSteps().take(job(1).take(np.arange(0))) is NO_STEPS
