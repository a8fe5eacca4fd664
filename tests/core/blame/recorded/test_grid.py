"""The grid of a recorded job: steps of all ranks are lined up by the collectives they share."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.job_shapes import ddp
from tests.support.random_jobs import draw_job
from tests.support.shared_job import shared_job
from tests.support.simulated_job import Noise, simulate

from ingero.core.blame.record_steps import measure_steps
from ingero.core.blame.recorded.grid import RecordGrid, _are_two, _from_flags, build_grid
from ingero.core.collectives.columns import Collectives, concat
from ingero.core.collectives.matching import match_collectives
from ingero.core.collectives.step_kinds import LIGHT_BYTES
from ingero.core.collectives.step_pattern import find_pattern

RANKS = (0, 1, 2)


def grid(columns: Collectives, cohort: tuple[int, ...] = (0, 0, 0)) -> RecordGrid:
    groups = match_collectives(columns)
    return build_grid(columns, groups, RANKS, np.array(cohort, np.intp))


def job(steps: int = 12, places: int = 3) -> Collectives:
    return shared_job(np.zeros((3, steps, places)))


def test_every_record_has_its_step_and_place() -> None:
    columns = job()
    found = grid(columns)
    assert (found.step == columns.seq // 3).all()
    assert (found.place == columns.seq % 3).all()
    assert found.whole.shape == (3, 12)
    assert found.whole[:, 1:-1].all()
    assert found.last == (2, 2, 2)
    assert len(set(found.patterns)) == 1


@pytest.mark.parametrize("missing", [4, 7])
def test_a_rank_whose_records_begin_later_has_the_same_step_numbers(missing: int) -> None:
    columns = job(20)
    kept = ~((columns.who == 1) & (columns.seq < 3 * missing))
    part = columns.take(kept)
    found = grid(part)
    assert (found.step == part.seq // 3).all()
    assert not found.whole[1, :missing].any()
    assert found.whole[1, missing + 1 : -1].all()
    assert found.whole[0, 1:-1].all()


def test_a_rank_without_a_pattern_has_no_steps() -> None:
    columns = job(20)
    part = columns.take((columns.who != 2) | (columns.seq < 1))
    found = grid(part, (0, 0, 1))
    assert (found.step[part.who == 2] == -1).all()
    assert found.last == (2, 2, -1)
    assert found.patterns[2] is None
    assert not found.whole[2].any()


def test_a_step_that_lacks_a_call_is_not_whole() -> None:
    columns = job(20)
    lost = (columns.who == 0) & (columns.seq == 3 * 10 + 1)
    found = grid(columns.take(~lost))
    assert not found.whole[0, 10]
    assert found.whole[1, 10]


def test_the_member_with_most_records_shows_the_pattern_of_its_role() -> None:
    """Rank 2 left records of two steps only, too few to show what repeats."""
    columns = job(20)
    few = (columns.who == 2) & ((columns.seq < 30) | (columns.seq >= 36))
    found = grid(columns.take(~few))
    assert found.patterns[2] == found.patterns[0]
    part = columns.take(~few)
    mine = part.who == 2
    assert (found.step[mine] == part.seq[mine] // 3).all()


def test_ranks_that_share_no_collective_are_lined_up_by_time() -> None:
    columns = job(20)
    apart = np.where(columns.who == 2, 9, columns.comm).astype(np.uint64)
    moved = replace(columns, comm=apart)
    late = moved.take(~((moved.who == 2) & (moved.seq < 15)))
    found = grid(late, (0, 0, 1))
    mine = late.who == 2
    assert (found.step[mine] == late.seq[mine] // 3).all()


def test_an_empty_recording_has_an_empty_grid() -> None:
    columns = job().take(np.zeros(0, np.intp))
    found = grid(columns)
    assert found.whole.shape == (3, 0)
    assert found.last == (-1, -1, -1)


def test_steps_begin_where_all_ranks_exchange_flags() -> None:
    """Hosts that run ahead are silent for longest where they wait for their GPUs, in mid-step."""
    drawn = draw_job("groups", 33)
    columns = simulate(drawn.shape, 100, noise=drawn.noise).columns
    ranks = tuple(range(drawn.shape.ranks))
    measured = measure_steps(columns, exact_ends=True)
    for rank in ranks:
        mine = np.flatnonzero(columns.who == rank)
        mine = mine[np.argsort(columns.start_ns[mine], kind="stable")]
        is_flag = columns.size_bytes[mine] == 8
        assert is_flag.sum() == 5
        assert (measured.row_place[mine[1:][is_flag[:-1]]] == 0).all()


@pytest.mark.parametrize("before", [0, 1, 2])
def test_steps_begin_with_the_call_behind_the_flags(before: int) -> None:
    """Every third step has a flag before one of its three calls."""
    both, eight = job(24), job(8)
    calls, flags = both.take(both.who == 0), eight.take(eight.who == 0)
    pattern = find_pattern(calls)
    assert pattern is not None
    at = calls.start_ns[before::9] - 1000
    assert len(at) == 8
    flag = replace(
        flags.take(flags.seq % 3 == 0), start_ns=at, end_ns=at + 10, gpu_duration_ns=np.full(8, 10),
        size_bytes=np.full(8, LIGHT_BYTES),
    )  # fmt: skip
    columns = concat([calls, flag])
    found = _from_flags(columns, pattern)
    places = pattern.places
    assert found.places == places[before:] + places[:before]
    assert len(found.needed) == 3
    assert found.places[found.anchor] == places[pattern.anchor]
    few = concat([calls, flag.take(np.arange(3))])
    assert _from_flags(few, pattern) is pattern, "three flags may be by chance"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_lost_call_does_not_move_the_later_steps_of_its_rank(place: int) -> None:
    """Where it is the call that tells steps apart, two of them look like one."""
    columns = job(40)
    lost = (columns.who == 1) & np.isin(columns.seq, [3 * 8 + place, 3 * 21 + place])
    part = columns.take(~lost)
    found = grid(part)
    far = ~np.isin(part.seq // 3, [*range(5, 12), *range(18, 25)])
    assert (found.step[far] == part.seq[far] // 3).all()
    assert found.whole[1, 12:18].all()
    assert found.whole[1, 25:-1].all()


def test_a_call_that_the_first_rank_lost_makes_no_step_of_the_others_longer() -> None:
    """It counts one step fewer, so two steps of the others share a number."""
    drawn = simulate(ddp(8, 0.04), 121, noise=Noise(), flag_every=0)
    columns = drawn.columns
    anchors = np.flatnonzero((columns.who == 0) & (columns.size_bytes == columns.size_bytes.max()))
    part = columns.take(~np.isin(np.arange(len(columns)), anchors[[20, 50, 51, 80]]))
    found = measure_steps(part, True).workers
    assert found.period_s.max() <= 1.001 * drawn.step_s.max()
    assert len(found.steps) >= 120 - 4 - 4


def test_steps_of_a_rank_that_are_parts_of_those_of_others_add_up() -> None:
    """A stage that repeats its micro-batches alone: four of its steps are one of the others."""
    of_others = [np.repeat(np.arange(12), 4), np.arange(12)]
    assert [_are_two(number).any() for number in of_others] == [False, False]
    lost = np.array([0, 1, 2, 2, 3, 4, 5, 6])
    assert _are_two(lost).tolist() == [False, False, True, True, *[False] * 4]
