"""Steps of recorded jobs: what counts as one, what is part of it, and how ranks are lined up."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.shared_job import TRANSFER_S, measured, shared_job

from ingero.core.blame.record_steps import _steadiest, measure_steps
from ingero.core.blame.recorded.grid import build_grid
from ingero.core.blame.recorded.lateness import measure_places
from ingero.core.blame.recorded.rhythm import _are_same, mark_first_calls
from ingero.core.blame.suspects import WorkerSteps
from ingero.core.collectives.arrivals import measure_arrivals
from ingero.core.collectives.columns import Collectives
from ingero.core.collectives.matching import match_collectives

MS = 1e-3


@pytest.mark.parametrize(("without", "is_kept"), [((0, 1), True), ((0, 1, 2), False)])
def test_a_step_needs_half_of_the_ranks(without: tuple[int, ...], is_kept: bool) -> None:
    columns = shared_job(np.zeros((4, 20, 3)))
    lost = np.isin(columns.who, without) & (columns.seq == 3 * 10 + 1)
    measured = measure_steps(columns.take(~lost), True)
    assert (10 in measured.workers.steps) == is_kept
    assert 9 in measured.workers.steps


@pytest.mark.parametrize(("scatter_s", "chosen"), [(0.49, 0), (0.51, 2)])
def test_steps_are_timed_by_another_call_where_that_scatters_far_less(
    scatter_s: float, chosen: int
) -> None:
    """The last call times them, and one that half of the steps lack does not, however steady."""
    turns = np.resize([0.5, -0.5], 40)
    lengths = 1.0 + np.outer([scatter_s, 0.0, 1.0], turns)
    lengths[1, ::2] = np.nan
    assert [each.tolist() for each in _steadiest(lengths, 2)] == lengths[[chosen, 0]].tolist()
    assert [each.tolist() for each in _steadiest(lengths[2:], 0)] == lengths[[2, 2]].tolist()


def test_own_time_before_a_flag_belongs_to_the_step_behind_it() -> None:
    """Every fifth step begins with a light call, 25 ms behind the step before it."""
    columns = shared_job(np.zeros((3, 30, 4)))
    step, place = columns.seq // 4, columns.seq % 4
    light = replace(columns, size_bytes=np.where(place == 0, 8, columns.size_bytes))
    measured = measure_steps(light.take((place > 0) | (step % 5 == 0)), True)
    own = dict(zip(measured.workers.steps, measured.workers.own_s[0].tolist(), strict=True))
    assert own[9] == pytest.approx(0.1 - 3 * TRANSFER_S)
    assert own[10] == pytest.approx(0.1 - 4 * TRANSFER_S), "a flag takes time itself"


def test_ranks_are_lined_up_without_clocks() -> None:
    """Rank 0 began late and rank 2 ended early: they meet only by rank 1, and clocks differ."""
    columns = shared_job(np.zeros((3, 24, 3)))
    step = columns.seq // 3
    kept = (columns.who == 1) | np.where(columns.who == 0, step >= 12, step < 12)
    part = columns.take(kept)
    ahead = np.where(part.who == 2, 777_000_000, 0)
    part = replace(part, start_ns=part.start_ns + ahead, end_ns=part.end_ns + ahead)
    found = build_grid(part, match_collectives(part), (0, 1, 2), np.zeros(3, np.intp))
    assert (found.step == part.seq // 3).all()


def test_a_rank_without_steps_gives_no_time_to_line_up_with() -> None:
    """Rank 0 left one record, and the other two share no collective."""
    columns = shared_job(np.zeros((3, 20, 3)))
    apart = np.where(columns.who == 2, 9, columns.comm).astype(np.uint64)
    moved = replace(columns, comm=apart)
    kept = np.where(moved.who == 0, moved.seq < 1, (moved.who == 1) | (moved.seq >= 15))
    part = moved.take(kept)
    found = build_grid(part, match_collectives(part), (0, 1, 2), np.arange(3))
    mine = part.who > 0
    assert (found.step[mine] == part.seq[mine] // 3).all()


def test_rank_zero_is_a_peer_too() -> None:
    columns = shared_job(np.zeros((2, 12, 2)))
    step_ends = columns.seq % 2 == 1
    pairs = replace(columns, peer=np.where(step_ends, -1, 1 - columns.rank))
    arrivals = measure_arrivals(pairs, match_collectives(pairs))
    places = measure_places(pairs, measure_steps(pairs, True), arrivals)
    assert places.is_pair.tolist() == [[True, False]] * 2


def alike(steps: int, pause: float = 3.0, irregular: int = 0) -> Collectives:
    """Return a job of three equal calls a step; the host pauses before the first one."""
    columns = shared_job(np.zeros((2, steps, 3)))
    step, place = np.divmod(columns.seq, 3)
    late = np.where(step < irregular, step % 2, 0)  # some pauses come one call later
    start = 1e9 * (3 * step + place + (pause - 1) * (step + (place >= late)))
    return replace(
        columns, start_ns=start.astype(np.int64), size_bytes=np.full(len(columns), 1 << 20)
    )


@pytest.mark.parametrize(
    ("given", "is_marked"),
    [
        ({"steps": 12}, True),
        ({"steps": 9}, True),
        ({"steps": 8}, False),  # seven pauses are too few
        ({"steps": 12, "pause": 2.4}, False),
        ({"steps": 40, "irregular": 3}, True),
        ({"steps": 40, "irregular": 8}, False),
    ],
)
def test_equal_calls_after_a_pause_of_the_host_begin_a_step(
    given: dict[str, float], is_marked: bool
) -> None:
    columns = alike(**given)  # type: ignore[arg-type]
    marked = mark_first_calls(columns, (0, 1)).size_bytes - columns.size_bytes
    assert set(marked[columns.seq == 0].tolist()) == {0}, "nothing is known before the first call"
    if not given.get("irregular"):
        first = (columns.seq % 3 == 0) & (columns.seq > 0)
        assert (marked == (first & is_marked)).all()
    else:
        assert marked.any() == is_marked


def test_ranks_that_pause_at_different_calls_have_no_common_first_call() -> None:
    """Who stops delays the next call of the others, not the same one."""
    columns = alike(12)
    assert (mark_first_calls(columns, (0, 1)).size_bytes != columns.size_bytes).any()
    paused = 2_000_000_000 * ((columns.who == 1) & (columns.seq % 3 == 0))
    apart = replace(columns, start_ns=columns.start_ns - paused)
    assert mark_first_calls(apart, (1,)) is not apart, "each has its rhythm"
    assert mark_first_calls(apart, (0, 1)) is apart


@pytest.mark.parametrize(("common", "are_same"), [(9, True), (8, False)])
def test_most_first_calls_of_the_shorter_recording_are_in_both(common: int, are_same: bool) -> None:
    one, other = np.arange(0, 90, 3), np.arange(0, 30, 3)
    other[common:] += 1
    assert _are_same(one, other) == _are_same(other, one) == are_same


def test_own_time_lies_between_the_collectives() -> None:
    """A step of 100 ms has two collectives that end at 25 and 50 ms."""
    late = np.zeros((4, 12, 2))
    late[1, :, 0] = 5 * MS
    steps, _ = measured(shared_job(late))
    workers: WorkerSteps = steps.workers
    assert workers.period_s == pytest.approx(np.full(11, 0.1))
    own = 100 * MS - 2 * TRANSFER_S
    assert workers.own_s[1] == pytest.approx(np.full(11, own), abs=1e-7)
    assert workers.own_s[0] == pytest.approx(np.full(11, own - 5 * MS), abs=1e-7)
    assert steps.waiting_s[0] == pytest.approx(np.full(11, 2 * TRANSFER_S + 5 * MS), abs=1e-7)
    assert steps.waiting_s[1] == pytest.approx(np.full(11, 2 * TRANSFER_S), abs=1e-7)
    assert steps.ranks == (0, 1, 2, 3)


def test_without_ends_the_difference_between_ranks_is_exact() -> None:
    late = np.zeros((4, 30, 2))
    late[1, :, 0] = 5 * MS
    columns = shared_job(late)
    workers = measure_steps(columns, exact_ends=False).workers
    difference = workers.own_s[1] - workers.own_s[0]
    assert difference == pytest.approx(np.full(len(difference), 5 * MS), abs=1e-7)
    assert workers.own_s[0] == pytest.approx(100 * MS - 2 * TRANSFER_S - 5 * MS, abs=1e-6)


@pytest.mark.parametrize(("more_s", "is_marked"), [(0.0, False), (0.006, True)])
def test_a_host_that_looks_at_a_loss_begins_no_step(more_s: float, is_marked: bool) -> None:
    """Of four calls, the first one comes after a pause, and sometimes after more work as well."""
    late = np.zeros((2, 40, 4))
    columns = shared_job(late)
    step, place = np.divmod(columns.seq, 4)
    begin = 0.1 * columns.seq + 5 * more_s * step
    end = ((begin + 0.05) * 1e9).astype(np.int64)
    start = end - 20_000_000 - np.where(place == 0, 0, 75_000_000 * place).astype(np.int64)
    length = np.full(len(columns), 1_000_000)
    equal = replace(
        columns, start_ns=start, end_ns=end, gpu_duration_ns=length,
        size_bytes=np.full(len(columns), 1 << 20),
    )  # fmt: skip
    marked = mark_first_calls(equal, (0, 1)).size_bytes != equal.size_bytes
    assert bool(marked.any()) == is_marked
