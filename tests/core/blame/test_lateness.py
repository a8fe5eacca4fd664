"""Lateness where all ranks share every collective: who comes late, why, and what it adds."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.shared_job import TRANSFER_S, shared_job

from ingero.contract.verdict import CauseClass
from ingero.core.blame.record_steps import RecordSteps, measure_steps
from ingero.core.blame.recorded.charges import charge_of, classify_lateness
from ingero.core.blame.recorded.gpu_bound import find_gpu_bound
from ingero.core.blame.recorded.lateness import (
    Lateness,
    PlaceTables,
    as_own_time,
    measure_lateness,
    measure_places,
)
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.recorded.uneven import LastArrivers, measure_last
from ingero.core.blame.suspects import Suspect, WorkerSteps
from ingero.core.collectives.arrivals import Arrivals, measure_arrivals
from ingero.core.collectives.columns import Collectives
from ingero.core.collectives.matching import match_collectives

Floats = NDArray[np.float64]
MS = 1e-3
SUSPECT = Suspect(1, 0.1, 0.01, 0.2, 0.9, 1.0, None, (), 3)


def measured(columns: Collectives) -> tuple[RecordSteps, Arrivals]:
    arrivals = measure_arrivals(columns, match_collectives(columns))
    return measure_steps(columns, exact_ends=True), arrivals


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
    assert lateness.start_s[0, :, 0] == pytest.approx(-1 * MS, abs=1e-8)  # of 5, 1 and 0
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


def lateness(start: Floats, enqueue: Floats | None = None, carried: float = 0.0) -> Lateness:
    """Return the lateness of [rank, step, place]."""
    hosts = np.zeros_like(start) if enqueue is None else enqueue
    order = np.sort(start, axis=0)
    advance = np.where(start == order[-1], order[-1] - order[-2], 0.0)
    return Lateness(
        start,
        hosts,
        advance,
        np.ones_like(start),
        no_pairs(start),
        groups(start),
        start.sum(axis=2),
        carried,
    )


def no_pairs(start: Floats) -> NDArray[np.bool_]:
    return np.zeros((len(start), start.shape[2]), bool)


def groups(start: Floats) -> NDArray[np.int64]:
    """Each place has a communicator of its own."""
    return np.tile(np.arange(start.shape[2]), (len(start), 1))


def spell(begin: int = 0, end: int = 10, worker: int = 1) -> Spell:
    return Spell(replace(SUSPECT, worker=worker), begin, end)


def test_a_rank_is_charged_with_what_it_adds_beyond_the_last_of_the_others() -> None:
    """5 and 3 ms late at two places; another one is 1 ms late at the first."""
    start = np.zeros((4, 10, 2))
    start[1] = [5 * MS, 3 * MS]
    start[2, :, 0] = 1 * MS
    late = lateness(start)
    assert charge_of(late, spell(), {1}, CauseClass.COMPUTE) == pytest.approx(np.full(10, 7 * MS))
    assert charge_of(late, spell(), {1, 2}, CauseClass.COMPUTE) == pytest.approx(
        np.full(10, 8 * MS)
    )
    assert charge_of(late, spell(2, 5), {1}, CauseClass.COMPUTE).shape == (3,)
    assert charge_of(late, spell(), {1}, CauseClass.HOST) == pytest.approx(np.full(10, 4 * MS))
    for carried, expected in ((0.149, 7 * MS), (0.15, 4 * MS)):
        part = replace(late, carried=carried)
        assert charge_of(part, spell(), {1}, CauseClass.COMPUTE) == pytest.approx(
            np.full(10, expected)
        )


def test_who_is_not_the_last_is_charged_with_nothing() -> None:
    start = np.zeros((4, 10, 1))
    start[1], start[2] = 5 * MS, 6 * MS
    assert charge_of(lateness(start), spell(), {1}, CauseClass.COMPUTE).tolist() == [0.0] * 10


def test_unknown_arrivals_are_charged_with_nothing() -> None:
    start = np.zeros((4, 10, 1))
    start[1] = 5 * MS
    start[1, 3] = np.nan
    start[[0, 2, 3], 6] = np.nan  # nobody else is known
    charge = charge_of(lateness(start), spell(), {1}, CauseClass.COMPUTE)
    assert charge[3] == 0.0
    assert charge[[0, 1, 2]] == pytest.approx(5 * MS)
    everyone = charge_of(lateness(start), spell(), {0, 1, 2, 3}, CauseClass.COMPUTE)
    assert everyone[0] == pytest.approx(5 * MS)


def why(
    start: Floats, enqueue: Floats, when: Spell | None = None
) -> tuple[CauseClass, int, float, float]:
    others = [rank for rank in range(len(start)) if rank != 1]
    found = classify_lateness(lateness(start, enqueue), when or spell(), others)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("host_ms", "cause"),
    [
        (6, CauseClass.HOST),
        (4.6, CauseClass.HOST),
        (4.4, CauseClass.COMPUTE),  # a quarter of 6 ms is left unexplained
        (0, CauseClass.COMPUTE),
    ],
)
def test_a_gpu_that_is_later_than_its_host_made_it_is_slow(
    host_ms: float, cause: CauseClass
) -> None:
    start, enqueue = np.zeros((4, 10, 2)), np.zeros((4, 10, 2))
    start[1], enqueue[1] = [1 * MS, 6 * MS], [1 * MS, host_ms * MS]
    found = why(start, enqueue)
    assert found == (cause, 1, pytest.approx(host_ms * MS), pytest.approx(6 * MS))


def test_a_host_that_waits_for_its_slow_gpu_is_late_only_later_in_the_step() -> None:
    """At the end both are equally late; in the middle the GPU was ahead in being late."""
    start, enqueue = np.zeros((4, 10, 4)), np.zeros((4, 10, 4))
    start[1], enqueue[1] = [2 * MS, 4 * MS, 6 * MS, 6 * MS], [0, 2 * MS, 4 * MS, 6 * MS]
    assert why(start, enqueue)[0] is CauseClass.COMPUTE
    enqueue[1] = [2 * MS, 4 * MS, 6 * MS, 6 * MS]
    assert why(start, enqueue)[0] is CauseClass.HOST


def test_lateness_of_hosts_that_harms_nobody_proves_nothing() -> None:
    """Hosts of the others are as late without consequence, because their GPUs have work queued."""
    start, enqueue = np.zeros((5, 10, 1)), np.zeros((5, 10, 1))
    start[1], enqueue[1] = 6 * MS, 6 * MS
    enqueue[[0, 2, 3, 4]] = 7 * MS
    assert why(start, enqueue)[0] is CauseClass.COMPUTE
    start[[0, 2, 3, 4]] = 7 * MS  # their GPUs are late as well: it has consequences
    assert why(start, enqueue)[0] is CauseClass.HOST


def test_where_stages_follow_each_other_the_usual_waiting_of_a_role_is_taken_off() -> None:
    """Ranks 0 and 1 have one role: their receivers always wait for 5 ms."""
    start, enqueue = np.zeros((4, 10, 1)), np.zeros((4, 10, 1))
    start[:2], enqueue[:2] = 5 * MS, 5 * MS
    start[1] += 2 * MS  # beyond its role, and not because of its host
    tables = replace(lateness(start, enqueue), is_pair=np.ones((4, 1), bool))
    found = classify_lateness(tables, spell(), [0])
    assert found is not None and found[0] is CauseClass.COMPUTE
    assert found[3] == pytest.approx(2 * MS)
    alone = classify_lateness(replace(tables, is_pair=np.zeros((4, 1), bool)), spell(), [0])
    assert alone is not None and alone[3] == pytest.approx(7 * MS)


def test_without_arrivals_nothing_is_said() -> None:
    unknown = np.full((4, 10, 1), np.nan)
    assert classify_lateness(lateness(unknown, unknown), spell(), [0, 2, 3]) is None


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


def test_only_steps_in_which_the_rank_is_late_tell_why() -> None:
    """It stalls in a quarter of the steps; its host is late in those."""
    start, enqueue = np.zeros((4, 20, 1)), np.zeros((4, 20, 1))
    start[1, ::4], enqueue[1, ::4] = 8 * MS, 7 * MS
    found = why(start, enqueue, spell(0, 20))
    assert found == (CauseClass.HOST, 0, pytest.approx(7 * MS), pytest.approx(8 * MS))
    outside = why(start, enqueue, spell(1, 4))
    assert outside[2:] == (0.0, 0.0)


def bound(
    late_ms: float = 3.0, queue_ms: float = 3.0, steps: int = 120, ranks: int = 5,
    others_ms: float = 1.0,
) -> tuple[Lateness, Floats]:  # fmt: skip
    """Return a job of 100 ms steps: rank 2 is late with a queue, one of the others in turn."""
    start, enqueue = np.zeros((ranks, steps, 1)), np.zeros((ranks, steps, 1))
    start[2], enqueue[2] = late_ms * MS, (late_ms - queue_ms) * MS
    others = [rank for rank in range(ranks) if rank != 2]
    turn = np.resize(others, steps)
    advance = np.zeros_like(start)
    advance[turn, np.arange(steps), 0] = others_ms * MS
    advance[2] = late_ms * MS
    late = Lateness(
        start,
        enqueue,
        advance,
        np.ones_like(start),
        no_pairs(start),
        groups(start),
        start.sum(axis=2),
        0.0,
    )
    return late, np.full(steps, 100 * MS)


def test_the_only_rank_with_a_queue_is_found() -> None:
    found = find_gpu_bound(*bound())
    assert found is not None
    assert (found.worker, found.begin, found.end) == (2, 0, 120)
    suspect = found.suspect
    assert (suspect.excess, suspect.excess_s) == (pytest.approx(0.03), pytest.approx(3 * MS))
    assert suspect.error == pytest.approx(0.0005)
    assert (suspect.confidence, suspect.named_share, suspect.peers) == (0.7, 1.0, 4)
    assert (suspect.stall_period, suspect.stalls) == (None, ())


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ({"late_ms": 1.49}, False),  # 1.5 % of the step
        ({"late_ms": 1.51}, True),
        ({"queue_ms": 0.29}, False),  # six times the least spread of 0.05 ms
        ({"queue_ms": 0.31}, True),
        ({"steps": 99}, False),
        ({"steps": 100}, True),
        ({"ranks": 3}, False),
        ({"ranks": 4}, True),
        ({"others_ms": 6.1}, False),  # four take turns: each adds a quarter of that a step
        ({"others_ms": 5.9}, True),
    ],
)
def test_a_rank_with_a_queue_must_stand_out(change: dict[str, float], is_found: bool) -> None:
    assert (find_gpu_bound(*bound(**change)) is not None) == is_found  # type: ignore[arg-type]


def test_a_queue_must_stand_out_from_the_queues_of_the_others() -> None:
    late, period = bound(queue_ms=3.0, ranks=7)
    for spread, is_found in ((0.3, True), (0.35, False)):  # six sigmas: 2.7 ms and 3.1 ms
        start = late.start_s.copy()
        start[[0, 1, 3]] += spread * MS
        start[[4, 5, 6]] -= spread * MS
        assert (find_gpu_bound(replace(late, start_s=start), period) is not None) == is_found


def test_a_gpu_bound_rank_is_judged_since_the_job_became_slower() -> None:
    late, _ = bound(steps=300)
    period = np.where(np.arange(300) < 120, 90 * MS, 100 * MS)
    found = find_gpu_bound(late, period)
    assert found is not None and (found.begin, found.end) == (120, 300)


def last_of(columns: Collectives, step_s: float = 0.1) -> LastArrivers:
    steps, arrivals = measured(columns)
    return measure_last(columns, steps, arrivals, step_s)


def test_whoever_comes_last_adds_the_largest_advance_of_a_step() -> None:
    """In each step a rank in turn is 4 ms late at the first place, 2 ms at the second."""
    late = np.zeros((4, 24, 2))
    for step in range(24):
        late[step % 4, step] = [4 * MS, 2 * MS]
    last = last_of(shared_job(late))
    assert last.added == pytest.approx(0.04, rel=1e-3)


def test_what_hosts_launched_late_is_not_uneven_work() -> None:
    """A kernel that starts right after its enqueue waited for its host."""
    late = np.zeros((4, 40, 2))
    late[np.arange(40) % 4, np.arange(40)] = 4 * MS
    queue = np.where(late > 0, 0.0, 3 * MS)
    launched = last_of(shared_job(late, queue))
    assert launched.launched == pytest.approx(1.0)
    assert not launched.is_uneven
    queued = last_of(shared_job(late, np.where(late == 0, 0.0, 3 * MS)))
    assert queued.launched == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("launched", "agreement", "is_uneven"),
    [(0.49, 0.3, True), (0.5, 0.9, False), (0.0, 0.29, False), (0.0, np.nan, True)],
)
def test_work_is_uneven_if_both_halves_of_a_step_agree(
    launched: float, agreement: float, is_uneven: bool
) -> None:
    assert LastArrivers(0.1, launched, agreement).is_uneven == is_uneven


def test_the_halves_of_a_step_agree_where_the_work_is_uneven() -> None:
    rng = np.random.default_rng(2)
    uneven = np.repeat(rng.exponential(3 * MS, (4, 60, 1)), 4, axis=2)
    apart = rng.exponential(MS, (4, 60, 4))
    assert last_of(shared_job(uneven)).agreement == pytest.approx(1.0, abs=0.05)
    assert abs(last_of(shared_job(apart)).agreement) < 0.3
    assert np.isnan(last_of(shared_job(uneven[:, :, :1])).agreement)


def test_without_arrivals_nobody_is_last() -> None:
    columns = shared_job(np.zeros((4, 12, 1)))
    untimed = replace(columns, gpu_duration_ns=np.full_like(columns.gpu_duration_ns, -1))
    last = last_of(untimed)
    assert (last.added, last.launched) == (0.0, 0.0)
    assert np.isnan(last.agreement)


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


def test_without_overlap_a_late_host_explains_only_what_the_gpu_waited_for() -> None:
    """Two places: the host is late by 3 ms at both, the GPU by 2.5 ms at the second alone."""
    start, enqueue = np.zeros((4, 20, 2)), np.zeros((4, 20, 2))
    start[1, :, 1], enqueue[1] = 2.5 * MS, 3 * MS
    for idle, cause in ((4 * MS, CauseClass.HOST), (0.0, CauseClass.COMPUTE)):
        places = PlaceTables(
            start, enqueue, start, np.full_like(start, idle), no_pairs(start), groups(start)
        )
        assert classify_lateness(places, spell(0, 20), [0, 2, 3])[0] is cause  # type: ignore[index]


def test_without_overlap_lateness_is_brought_along_to_the_next_group() -> None:
    """The host makes the GPU late at the first place; at the second, the GPU had work to do."""
    start, enqueue = np.zeros((4, 20, 2)), np.zeros((4, 20, 2))
    start[1], enqueue[1, :, 0] = 2.5 * MS, 3 * MS
    idle = np.zeros_like(start)
    idle[:, :, 0] = 4 * MS
    places = PlaceTables(start, enqueue, start, idle, no_pairs(start), groups(start))
    found = classify_lateness(places, spell(0, 20), [0, 2, 3])
    assert found is not None and found[0] is CauseClass.HOST
    start[1, :, 1] = 5 * MS  # twice as late as its host made it
    found = classify_lateness(places, spell(0, 20), [0, 2, 3])
    assert found is not None and found[0] is CauseClass.COMPUTE
