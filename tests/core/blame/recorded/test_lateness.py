"""Lateness where all ranks share every collective: who comes late, why, and what it adds."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.lateness_tables import Floats, spell
from tests.support.shared_job import measured, shared_job

from ingero.contract.verdict import CauseClass
from ingero.core.blame.recorded.charges import charge_of
from ingero.core.blame.recorded.lateness import (
    Lateness,
    as_own_time,
    measure_lateness,
    measure_places,
)
from ingero.core.collectives.columns import Collectives

MS = 1e-3


def lateness_of(columns: Collectives) -> Lateness | None:
    steps, arrivals = measured(columns)
    return measure_lateness(columns, steps, measure_places(columns, steps, arrivals))


def known(columns: Collectives) -> Lateness:
    found = lateness_of(columns)
    assert found is not None
    return found


def scatter(
    shape: tuple[int, int, int], carried: float = 0.0, seed: int = 3, size_s: float = MS
) -> Floats:
    """Return random delays; a share of each is found again at the next place."""
    rng = np.random.default_rng(seed)
    late = rng.exponential(size_s, shape)
    for place in range(1, shape[2]):
        late[:, :, place] += carried * late[:, :, place - 1]
    return late


def test_lateness_is_measured_against_the_median_of_the_others() -> None:
    late = np.zeros((4, 12, 2))
    late[1, :, 0] = 5 * MS
    late[2, :, 0] = 1 * MS
    lateness = known(shared_job(late))
    assert lateness.start_s.shape[0] == 4 and lateness.start_s.shape[2] == 2
    assert lateness.start_s[1] == pytest.approx(np.tile([5 * MS, 0], (11, 1)), abs=1e-8)
    assert lateness.start_s[2, :, 0] == pytest.approx(1 * MS, abs=1e-8)
    assert lateness.start_s[0, :, 0] == pytest.approx(0, abs=1e-8)  # of two late ranks of four
    assert lateness.advance_s[1, :, 0] == pytest.approx(4 * MS, abs=1e-8)
    assert lateness.advance_s[2] == pytest.approx(0.0)


def test_the_enqueue_is_compared_as_well() -> None:
    late, queue = np.zeros((4, 12, 1)), np.full((4, 12, 1), 3 * MS)
    late[1] = 5 * MS
    queue[1] = 1 * MS  # its host enqueued it 5 + 2 ms later than the others
    lateness = known(shared_job(late, queue))
    assert lateness.enqueue_s[1] == pytest.approx(7 * MS, abs=1e-8)
    assert lateness.start_s[1] == pytest.approx(5 * MS, abs=1e-8)


def test_independent_delays_of_a_step_add_up_and_carried_ones_count_once() -> None:
    apart = known(shared_job(scatter((6, 60, 4))))
    assert apart.carried < 0.15
    assert apart.new_s == pytest.approx(apart.start_s.sum(axis=2))
    again = known(shared_job(scatter((6, 60, 4), carried=0.9)))
    assert again.carried > 0.5
    assert again.new_s == pytest.approx(again.start_s.max(axis=2))


def test_what_is_carried_is_measured_between_steps_not_between_ranks() -> None:
    """A rank that is late everywhere for ever says nothing about overlap; nor do few steps."""
    late = scatter((6, 60, 4))
    late[2] += 20 * MS
    assert known(shared_job(late)).carried < 0.15
    assert known(shared_job(scatter((2, 9, 4), carried=0.9))).carried == 0.0
    assert known(shared_job(np.zeros((4, 60, 3)))).carried == 0.0


def test_single_hiccups_do_not_decide_what_is_carried() -> None:
    late = scatter((6, 60, 4))
    late[3, 30] += 500 * MS  # at all places of one step
    assert known(shared_job(late)).carried < 0.3


def test_lateness_needs_one_communicator_of_all_ranks() -> None:
    columns = shared_job(np.zeros((4, 12, 2)))
    assert lateness_of(columns) is not None
    apart = replace(columns, comm=np.where(columns.who < 2, 1, 2).astype(np.uint64),
                    nranks=np.full_like(columns.nranks, 2))  # fmt: skip
    assert lateness_of(apart) is None
    pairs = replace(columns, peer=np.where(columns.seq == 4, 1, -1).astype(np.int32))
    assert lateness_of(pairs) is None


def test_lateness_needs_arrivals_of_at_least_half_of_the_cells() -> None:
    """Where a rank was not timed, the collective says nothing about anybody."""
    columns = shared_job(np.zeros((4, 21, 1)))
    for untimed, is_known in ((range(11), True), (range(12), False)):
        unknown = np.isin(columns.seq, list(untimed)) & (columns.who == 2)
        part = replace(columns, gpu_duration_ns=np.where(unknown, -1, columns.gpu_duration_ns))
        found = lateness_of(part)
        assert (found is not None) == is_known


def test_own_time_of_a_late_rank_is_the_usual_step_plus_its_lateness() -> None:
    late = np.zeros((4, 12, 1))
    late[1] = 5 * MS
    columns = shared_job(late)
    steps, _ = measured(columns)
    own = as_own_time(known(columns), steps.workers).own_s
    assert own[1, 1:] == pytest.approx(105 * MS, abs=1e-7)
    assert own[0, 1:] == pytest.approx(100 * MS, abs=1e-7)
    early = replace(known(columns), new_s=np.full((4, 11), -1.0))
    assert as_own_time(early, steps.workers).own_s[0, 1:] == pytest.approx(10 * MS, abs=1e-7)
    hole = replace(steps.workers, own_s=np.where(np.arange(11) == 4, np.nan, 1.0) * np.ones((4, 1)))
    assert np.isnan(as_own_time(known(columns), hole).own_s[:, 4]).all()


def grouped(late: Floats) -> Lateness | None:
    """Return the lateness of four ranks that meet in two groups of two, and then across them.

    `late` is [rank, step, place]; the first half of the places is inside the groups.
    """
    columns = shared_job(late)
    half = late.shape[2] // 2
    inside = columns.seq % late.shape[2] < half
    comm = np.where(inside, 10 + columns.who // 2, 20 + columns.who % 2)
    rank = np.where(inside, columns.who % 2, columns.who // 2)
    return lateness_of(
        replace(
            columns,
            comm=comm.astype(np.uint64),
            rank=rank.astype(np.int32),
            nranks=np.full_like(columns.nranks, 2),
            size_bytes=np.where(inside, 1 << 20, 2 << 20),
        )
    )


def test_only_the_slow_rank_is_late_in_all_of_its_groups() -> None:
    """Rank 0 is late in its group; then both members are late across groups."""
    late = scatter((4, 80, 6), carried=0.9, size_s=0.1 * MS)
    late[0] += 5 * MS
    late[1, :, 3:] += 5 * MS
    found = grouped(late)
    assert found is not None and found.group is not None
    usual = np.median(found.new_s, axis=1)
    assert usual[0] > 4 * MS
    assert (usual[1:] < 1 * MS).all()
    assert (found.new_s >= 0).all()
    charge = charge_of(found, spell(5, 60, worker=0), {0}, CauseClass.HOST)
    assert float(np.median(charge)) > 4 * MS
    victim = charge_of(found, spell(5, 60, worker=1), {1}, CauseClass.HOST)
    assert float(np.median(victim)) < 1 * MS


def test_groups_without_overlap_are_left_to_own_time() -> None:
    assert grouped(scatter((4, 80, 6), size_s=0.1 * MS)) is None
