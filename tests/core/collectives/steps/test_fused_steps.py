"""Live steps whose gradients are fused differently each time: own times, numbers and places."""

import numpy as np

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.live_steps import LiveSteps

MS = 1_000_000
START = 10**18
UNIT = 7 << 20
STEPS = 400


def job() -> tuple[Collectives, np.ndarray]:
    """Return steps of 30 ms of own time, then twelve tensors in calls of 1 ms, and their ends."""
    dice, rows, ends, at = np.random.default_rng(3), [], [], START
    for _ in range(STEPS):
        at += 30 * MS
        cuts = np.append(np.flatnonzero(dice.random(11) < 0.4) + 1, 12)
        for tensors in np.diff(cuts, prepend=0).tolist():
            rows.append((len(rows), tensors * UNIT, at - 5 * MS, at + MS))
            at += MS + MS // 10
        at -= MS // 10
        ends.append(at)
    seq, size, start, end = (np.array(column) for column in zip(*rows, strict=True))
    columns = {
        "who": np.zeros(len(seq)), "comm": np.full(len(seq), 9, np.uint64), "seq": seq,
        "op": np.zeros(len(seq)), "rank": np.zeros(len(seq)), "nranks": np.full(len(seq), 8),
        "size_bytes": size, "start_ns": start, "end_ns": end, "source": np.zeros(len(seq)),
        "gpu_duration_ns": np.full(len(seq), MS),
    }  # fmt: skip
    return from_columns(columns, ("AllReduce",), (Recorder("j", "n", 0),)), np.array(ends)


def taken(rows: Collectives, first: int) -> tuple[dict[int, int], dict[int, tuple[int, int]], set]:
    """Return the number of the step that ends at each time, step and place of rows, own times."""
    stream, numbers, named, own = LiveSteps(), {}, {}, set()
    for at in range(first, len(rows), 37):
        found = stream.take(rows.take(np.arange(at, min(at + 37, len(rows)))))
        own |= set(found.times.own_s.round(6).tolist())
        numbers |= dict(zip(found.times.end_ns.tolist(), found.times.step.tolist(), strict=True))
        placed = zip(found.step.tolist(), found.place.tolist(), strict=True)
        named |= dict(zip((found.row + first).tolist(), placed, strict=True))
    return numbers, named, own


def test_each_step_is_found_whole_and_numbered_like_the_one_before() -> None:
    rows, ends = job()
    numbers, _, own = taken(rows, 0)
    assert set(numbers) <= set(ends.tolist())
    assert len(numbers) >= STEPS - 150
    assert own <= {round(0.03 + 0.0001 * gaps, 6) for gaps in range(12)}
    apart = np.diff([numbers[end] for end in sorted(numbers)])
    assert (apart > 0).all()
    assert (apart == 1).mean() > 0.9


def test_an_agent_that_began_later_numbers_steps_and_places_alike() -> None:
    rows, _ = job()
    (numbers, named, _), (later, also, _) = taken(rows, 0), taken(rows, 301)
    common = numbers.keys() & later.keys()
    assert len(common) >= STEPS // 3
    assert {end: numbers[end] for end in common} == {end: later[end] for end in common}
    shared = named.keys() & also.keys()
    assert {row: named[row] for row in shared} == {row: also[row] for row in shared}
    assert min(place for _, place in named.values()) == 0
