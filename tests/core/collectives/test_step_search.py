"""When the step pattern of a live rank is looked for, confirmed, replaced and given up."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.live_steps import MAX_HELD, LiveSteps
from ingero.core.collectives.step_search import AWAITED_NS, GIVEN_UP_NS, LEARN_AFTER
from ingero.core.verdict.events.stepless import SAID_AFTER, SAID_AFTER_S

MS = 1_000_000
START = 10**18
OWN_MS = 30
ONE, OTHER = (25, 26, 27, 28, 29, 30), (40, 41, 42, 43, 44, 45, 46, 47)
FEW, MANY = [7] * 12, [7] * 17
OTHERS = np.random.default_rng(5).integers(1, 64, 14).tolist()
AWAITED = AWAITED_NS // (OWN_MS * MS)  # steps, at most


def job(
    *phases: Sequence[Sequence[int]], own_ms: int = OWN_MS
) -> tuple[Collectives, dict[int, int]]:
    """Return the calls of the steps of each phase, and the phase of each end of a step.

    A step has time of its own, then calls of 1 ms of so many MiB.
    """
    rows, ends, at = [], {}, START
    for phase, steps in enumerate(phases):
        for sizes in steps:
            at += own_ms * MS
            for size in sizes:
                rows.append((len(rows), size << 20, at - 5 * MS, at + MS))
                at += MS + MS // 10
            at -= MS // 10
            ends[at] = phase
    seq, size, start, end = (np.array(column) for column in zip(*rows, strict=True))
    nothing = np.zeros(len(seq), np.int64)
    columns = {
        "who": nothing, "comm": nothing + 9, "seq": seq, "op": nothing, "rank": nothing,
        "nranks": nothing + 8, "size_bytes": size, "start_ns": start, "end_ns": end,
        "source": nothing, "gpu_duration_ns": nothing + MS,
    }  # fmt: skip
    return from_columns(columns, ("AllReduce",), (Recorder("j", "n", 0),)), ends


def fed(stream: LiveSteps, rows: Collectives, ends: dict[int, int]) -> Counter[int]:
    """Return how many steps are found per phase; -1 where a step ends that does not."""
    found: Counter[int] = Counter()
    for at in range(0, len(rows), 50):
        batch = rows.take(np.arange(at, min(at + 50, len(rows))))
        found.update(ends.get(end, -1) for end in stream.take(batch).times.end_ns.tolist())
    return found


def fused(tensors: list[int], steps: int, seed: int = 3) -> list[list[int]]:
    """Return steps in which some tensors share a call with those before."""
    dice, found = np.random.default_rng(seed), []
    for _ in range(steps):
        cuts = np.flatnonzero(dice.random(len(tensors) - 1) < 0.4) + 1
        found.append([int(part.sum()) for part in np.split(np.array(tensors), cuts)])
    return found


def unlike(steps: int, seed: int = 3) -> list[list[int]]:
    """Return steps that repeat nothing."""
    return np.random.default_rng(seed).integers(100, 200, (steps, 6)).tolist()


@pytest.mark.parametrize("first", [500, 3000])  # before and after the first pattern is confirmed
@pytest.mark.parametrize(
    "after", [OTHER, (30, 50, 20, 40, 60), (25,) * 11 + (8,), (25, 26, 27, 28, 29)]
)
def test_other_messages_are_other_steps_half_a_minute_later(
    first: int, after: tuple[int, ...]
) -> None:
    """Sequences become longer, or batches larger."""
    rows, ends = job([ONE] * first, [after] * 1500)
    found = fed(LiveSteps(), rows, ends)
    assert found.keys() == {0, 1}
    assert found[0] >= first - LEARN_AFTER
    assert found[1] >= 1500 - AWAITED - 150


@pytest.mark.parametrize("tensors", [FEW, MANY, OTHERS])
@pytest.mark.parametrize("first", [400, 3500])
def test_other_gradients_that_are_fused_at_will_have_another_total(
    first: int, tensors: list[int]
) -> None:
    """Layers are unfrozen: steps of before still show by chance, or as a part of each step."""
    before = FEW if tensors is not FEW else MANY
    rows, ends = job(fused(before, first), fused(tensors, 1500))
    found = fed(LiveSteps(), rows, ends)
    assert found[0] >= first - 100
    assert found[1] >= 1500 - AWAITED - 200
    assert found[-1] < 100


def test_a_step_that_does_more_than_before_is_not_cut_short() -> None:
    rows, ends = job([ONE] * 3000, [(*ONE, 31, 32)] * 1500)
    stream = LiveSteps()
    found = fed(stream, rows, ends)
    assert found[1] >= 1500 - 200
    assert stream.search.pattern is not None
    assert len(stream.search.pattern) == 8


def test_other_calls_now_and_then_are_no_reason_to_give_a_pattern_up() -> None:
    is_evaluated = np.random.default_rng(3).random(4000) < 0.08
    rows, ends = job([(*ONE, 34) if each else ONE for each in is_evaluated])
    stream = LiveSteps()
    fed(stream, rows, ends)
    assert (stream.search.changes, len(stream.search.pattern or ())) == (0, 6)


def test_the_pattern_of_before_is_used_again_and_no_new_one_looked_for() -> None:
    rows, ends = job([ONE] * 3000, [OTHER] * 1500, [ONE] * 300)
    stream = LiveSteps()
    found = fed(stream, rows, ends)
    assert found[2] >= 300 - LEARN_AFTER
    assert stream.search.changes == 2


def test_a_pattern_without_steps_for_minutes_is_given_up_until_it_is_back() -> None:
    missed = GIVEN_UP_NS // (OWN_MS * MS)
    stream = LiveSteps()
    rows, ends = job([ONE] * 3000, unlike(missed // 2), unlike(missed // 2), [ONE] * 300)
    parts = np.split(np.arange(len(rows)), np.cumsum([3000, missed // 2, missed // 2]) * 6)
    has_pattern = []
    for part in parts:
        found = fed(stream, rows.take(part), ends)
        has_pattern.append(stream.search.pattern is not None)
    assert has_pattern == [True, True, False, True]
    assert found[3] >= 300 - LEARN_AFTER


def test_parts_of_a_step_that_last_for_long_are_not_taken_for_steps_for_long() -> None:
    """Both come again in every step, so each may seem to be back."""
    parts = [[1, 2]] * 50, [[3, 4, 5]] * 50
    rows, ends = job(*parts * 12, own_ms=900)
    stream = LiveSteps()
    fed(stream, rows, ends)
    assert stream.search.pattern is not None
    assert len(stream.search.pattern) == 250


@pytest.mark.parametrize(
    ("calls", "own_s"), [(1, 2), (1, 5), (6, 10), (6, 30), (20, 30), (500, 30), (300, 59)]
)
def test_ordinary_steps_are_found_before_it_is_said_that_there_are_none(
    calls: int, own_s: int
) -> None:
    rows, _ = job([range(25, 25 + calls)] * 60, own_ms=1000 * own_s)
    stream = LiveSteps()
    for at in range(0, len(rows), part := max(1, calls // 10)):
        stream.take(rows.take(np.arange(at, min(at + part, len(rows)))))
        if stream.search.pattern is not None:
            break
    seconds = (int(rows.end_ns[at]) - START) / 1e9
    assert at < SAID_AFTER or seconds < SAID_AFTER_S


def test_calls_that_repeat_nothing_are_searched_when_a_quarter_of_them_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    monkeypatch.setattr(
        "ingero.core.collectives.step_search._find", lambda rows: searched.append(len(rows))
    )
    rows, ends = job(unlike(2 * MAX_HELD // 6))
    fed(LiveSteps(), rows, ends)
    grown = [size for size in searched if size < MAX_HELD]
    assert all(later >= 1.25 * size - 1 for size, later in pairwise(grown))
    assert len(searched) - len(grown) in (4, 5)
