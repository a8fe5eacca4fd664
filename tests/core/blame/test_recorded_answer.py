"""The whole answer about recorded collectives, on jobs in which every number is known."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.support.recorded_jobs import Job, record
from tests.support.shared_job import COMM, shared_job

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import NEXT_STEPS, Answer
from ingero.core.blame.records import blame_records
from ingero.core.collectives.columns import Collectives, from_records

MS = 1e-3
STEPS, ONSET = 350, 150
Late = Mapping[int, tuple[float, int, int]]  # milliseconds, first and last step by rank


def ask(
    late: Late, *, queue_ms: float = 2.0, longer_ms: float = 8.0,
) -> Answer:  # fmt: skip
    """Ask about six ranks with steps of 100 ms, which are longer from step 150 on.

    Ranks are late at the second of two places. Their hosts are as late as they are, unless
    `queue_ms` gives another queue to those that are late.
    """
    delay = np.zeros((6, STEPS, 2))
    queue = np.full(delay.shape, 2 * MS)
    for rank, (late_ms, first, last) in late.items():
        delay[rank, first:last, 1] += late_ms * MS
        queue[rank, first:last, 1] = queue_ms * MS
    step_s = np.where(np.arange(STEPS) < ONSET, 100 * MS, (100 + longer_ms) * MS)
    return blame_records(shared_job(delay, queue, step_s), True, "test")


SLOW: Late = {2: (8.0, ONSET, STEPS)}


def test_a_late_host_is_named_with_all_that_is_known() -> None:
    delay = np.zeros((4, STEPS, 2))
    delay[2, ONSET:, 1] = 8 * MS
    step_s = np.where(np.arange(STEPS) < ONSET, 100 * MS, 108 * MS)
    rows = shared_job(delay, 2 * MS, step_s, nodes=["a", "b", "c", "d"])
    answer = blame_records(rows, True, "a file", world=6, labels={COMM: "dp"})
    (culprit,) = answer.culprits
    assert (culprit.worker, culprit.rank, culprit.node) == ("rank 2", 2, "c")
    assert (culprit.cause, culprit.at_most, culprit.period) == (CauseClass.HOST, False, None)
    assert (culprit.loss, culprit.loss_error) == (pytest.approx(8 / 108), pytest.approx(0.003))
    assert (culprit.excess, culprit.excess_s) == (pytest.approx(8 / 108), pytest.approx(8 * MS))
    assert culprit.steps == (ONSET, STEPS - 1)
    # Collectives end after a quarter and a half of their step; the first step begins at 1 s.
    assert culprit.times == pytest.approx((1 + 15 + 0.027, 1 + 15 + 199 * 0.108 + 0.054))
    assert culprit.collective == "AllReduce of dp (ranks 0, 1, 2, 3)"
    assert culprit.detail == (
        "later than 3 peers in 100% of the steps; the GPU was idle until the host enqueued"
    )
    assert culprit.next_step == NEXT_STEPS[CauseClass.HOST]
    assert answer.evidence == (
        "rank 2: a step takes 108 ms while it is slow, and 100 ms in calm steps of this recording",
        "rank 2: its GPU starts 8 ms after the others where that matters most, its host "
        "enqueues 8 ms after theirs; it adds 8 ms a step",
        "time inside collectives a step: 2 ms here, 10 ms at the others, who wait",
        "lateness of the other 3 ranks: less than 0.1% from the median of their role",
    )
    assert (answer.source, answer.cause, answer.not_sure) == ("a file", CauseClass.HOST, None)
    assert answer.notes == ("partial set: 4 of 6 ranks; missing 4, 5",)
    assert (answer.gpus, answer.steps, answer.late) == (6, 349, ())


def test_the_loss_is_spread_over_the_recording() -> None:
    """200 of 349 whole steps are 8 ms longer; two steps of warm-up are left out of their mean."""
    answer = ask(SLOW)
    assert answer.loss_s == pytest.approx(8 * MS * 200 / 349)
    assert answer.step_time_s == pytest.approx((147 * 100 * MS + 200 * 108 * MS) / 347, rel=2e-4)
    assert answer.ideal_step_time_s == pytest.approx(answer.step_time_s - answer.loss_s)
    (fix,) = answer.fixes
    assert (fix.what, fix.saved_s) == ("rank 2", answer.loss_s)
    assert fix.step_time_s == pytest.approx(answer.ideal_step_time_s)
    assert answer.loss_gpu_hours == pytest.approx(6 * answer.loss_s * 349 / 3600)


def test_the_heat_map_shows_lateness_on_top_of_a_step() -> None:
    heat = ask(SLOW).heat
    assert heat is not None
    assert heat.rows == tuple(f"rank {rank}" for rank in range(6))
    assert heat.columns == tuple(range(1, STEPS))
    expected = np.ones((6, STEPS - 1))
    expected[2, ONSET - 1 :] = 1 + 8 / 108
    assert heat.values == pytest.approx(expected, abs=1e-6)


def test_a_gpu_that_was_given_its_work_in_time_is_late_itself() -> None:
    (culprit,) = ask(SLOW, queue_ms=10.0).culprits
    assert culprit.cause is CauseClass.COMPUTE
    assert culprit.next_step == NEXT_STEPS[CauseClass.COMPUTE]
    assert culprit.detail.endswith("; its collectives were enqueued in time, the GPU was late")
    assert culprit.collective == f"AllReduce of communicator {COMM:016x} (ranks 0, 1, 2, 3, 4, 5)"


def test_a_late_rank_that_costs_nothing_is_no_culprit() -> None:
    answer = ask(SLOW, longer_ms=0.0)
    assert (answer.culprits, answer.cause, answer.loss_s) == ((), None, 0.0)
    (late,) = answer.late
    assert (late.rank, late.loss) == (2, pytest.approx(0.0))
    assert answer.fixes == ()
    over = ask({2: (8.0, 100, 200)}, longer_ms=0.0)
    assert (over.culprits, over.late) == ((), ()), "it cost nothing, and it is over"


@pytest.mark.parametrize(("late_ms", "is_named"), [(1.55, False), (1.7, True)])
def test_a_rank_must_be_late_by_what_a_job_notices(late_ms: float, is_named: bool) -> None:
    """1.5 % of the median step, which is 108 ms long, are 1.62 ms."""
    answer = ask({2: (late_ms, ONSET, STEPS)})
    assert [c.rank for c in answer.culprits] == [2] * is_named


def test_ranks_that_are_slow_in_the_same_steps_share_the_loss_by_what_each_adds() -> None:
    answer = ask({1: (9.0, ONSET, STEPS), 2: (6.0, ONSET, STEPS)}, longer_ms=9.0)
    losses = {c.rank: c.loss for c in answer.culprits}
    assert list(losses) == [1, 2]  # the costliest first
    assert sum(loss or 0 for loss in losses.values()) == pytest.approx(9 / 109)
    assert losses[1] == pytest.approx(9 / 15 * 9 / 109)
    assert {fix.what for fix in answer.fixes} == {"rank 1", "rank 2", "all of them"}
    together, one, other = answer.fixes
    assert together.what == "all of them"
    assert together.saved_s == pytest.approx(one.saved_s + other.saved_s)
    assert answer.loss_s == together.saved_s


@pytest.mark.parametrize(("late_ms", "named"), [(3.8, [1]), (4.2, [1, 2])])
def test_a_small_delay_beside_a_large_one_is_its_consequence(
    late_ms: float, named: list[int]
) -> None:
    """A fifth of 20 ms is 4 ms."""
    answer = ask({1: (20.0, ONSET, STEPS), 2: (late_ms, ONSET, STEPS)}, longer_ms=20.0)
    assert [c.rank for c in answer.culprits] == named


def test_stalls_are_named_with_their_period() -> None:
    delay = np.zeros((6, STEPS, 2))
    delay[2, ONSET::10, 1] = 20 * MS
    step_s = np.where((np.arange(STEPS) >= ONSET) & (np.arange(STEPS) % 10 == 0), 0.12, 0.1)
    answer = blame_records(shared_job(delay, 2 * MS, step_s), True, "test")
    (culprit,) = answer.culprits
    assert (culprit.rank, culprit.cause, culprit.period) == (2, CauseClass.HOST, 10)
    assert culprit.detail.startswith("later than 5 peers every 10 steps")
    assert culprit.loss == pytest.approx(2 / 102, abs=0.005)


def test_irregular_stalls_are_counted() -> None:
    delay = np.zeros((6, 100, 2))
    at = [5, 6, 20, 41, 42, 60, 90]
    delay[2, at, 1] = 20 * MS
    answer = blame_records(shared_job(delay), True, "test")
    (culprit,) = [*answer.culprits, *answer.late]
    assert culprit.period is None
    assert culprit.detail.startswith("later than 5 peers in 4 steps")  # of its spell


def test_all_times_scaled_scale_the_answer() -> None:
    answer, rows = ask(SLOW), shared_job_rows()
    scaled = replace(
        rows, start_ns=3 * rows.start_ns, end_ns=3 * rows.end_ns,
        gpu_duration_ns=3 * rows.gpu_duration_ns,
    )  # fmt: skip
    again = blame_records(scaled, True, "test")
    assert again.loss_s == pytest.approx(3 * (answer.loss_s or 0))
    assert again.culprits[0].loss == pytest.approx(answer.culprits[0].loss)
    assert again.culprits[0].steps == answer.culprits[0].steps


def shared_job_rows() -> Collectives:
    delay = np.zeros((4, STEPS, 2))
    delay[2, ONSET:, 1] = 8 * MS
    step_s = np.where(np.arange(STEPS) < ONSET, 100 * MS, 108 * MS)
    return shared_job(delay, 2 * MS, step_s)


def test_a_recorder_without_rank_is_called_by_its_node_or_its_number() -> None:
    delay = np.zeros((4, 20, 1))
    rows = shared_job(delay, ranks=[None, None, 9, 12], nodes=["east", None, "west", None])
    answer = blame_records(rows, True, "test")
    assert answer.heat is not None
    assert answer.heat.rows == ("east", "recorder 1", "rank 9", "rank 12")


def test_missing_ranks_are_listed_up_to_sixteen() -> None:
    rows = shared_job(np.zeros((4, 20, 1)))
    shown = ", ".join(map(str, range(4, 20)))
    for world in (20, 21):
        notes = blame_records(rows, True, "test", world=world).notes
        assert notes == (f"partial set: 4 of {world} ranks; missing {shown}",)
    nobody = shared_job(np.zeros((4, 20, 1)), ranks=[None] * 4, nodes=list("abcd"))
    assert blame_records(nobody, True, "test", world=20).notes == ()


@pytest.mark.parametrize("ranks", [8, 9])
def test_a_communicator_is_named_with_its_first_eight_ranks(ranks: int) -> None:
    delay = np.zeros((ranks, 200, 1))
    delay[1] = 20 * MS
    (culprit,) = blame_records(shared_job(delay), True, "test").culprits
    assert culprit.collective is not None
    assert culprit.collective.endswith(
        "(ranks 0, 1, 2, 3, 4, 5, 6, 7" + (")" if ranks == 8 else ", …)")
    )


def quiet(**change: object) -> Job:
    return Job(**{"noise": 0.0, "chronic": 0.0, "steps": 30, **change})  # type: ignore[arg-type]


def recorded(job: Job, exact_ends: bool = True, without: Sequence[int] = ()) -> Answer:
    rows = [row for row in record(job) if row.global_rank not in without]
    return blame_records(from_records(rows), exact_ends, "test", job.world)


def test_a_slow_gpu_of_a_job_with_many_communicators_is_priced_by_a_replay() -> None:
    """Two micro-batches of 5 ms take a fifth longer: 2 ms a step, an upper bound."""
    answer = recorded(quiet(slow_gpu={6: 0.2}))
    (culprit,) = answer.culprits
    assert (culprit.rank, culprit.cause, culprit.at_most) == (6, CauseClass.COMPUTE, True)
    assert (culprit.loss_error, culprit.steps) == (None, (1, 29))
    assert 2 * MS <= answer.loss_s <= 2.05 * MS, "two standard errors above what it costs"
    assert answer.step_time_s is not None
    assert culprit.loss == pytest.approx(answer.loss_s / answer.step_time_s, rel=0.01)
    assert culprit.excess_s == pytest.approx(2 * MS, rel=0.01)
    assert culprit.detail.startswith("own time over 7 peers in 100% of the steps")
    assert answer.evidence == (
        "rank 6: own time 12.1 ms a step, +19.9% ±0.4% over 7 peers",
        "time inside collectives a step: 499.5 µs here, 2.5 ms at the others, who wait",
        "own times of the other 7 ranks: less than 0.1% from the median of their role",
    )
    assert answer.heat is not None
    assert answer.heat.values[6] == pytest.approx(1.2, abs=0.005)
    assert np.delete(answer.heat.values, 6, axis=0) == pytest.approx(1.0, abs=1e-3)


def test_two_slow_gpus_are_needed_both_and_their_shares_add_up() -> None:
    answer = recorded(quiet(slow_gpu={2: 0.3, 5: 0.2}))
    assert {c.rank for c in answer.culprits} == {2, 5}
    assert answer.loss_s == pytest.approx(3 * MS, rel=0.02)
    saved = {fix.what: fix.saved_s for fix in answer.fixes}
    assert saved["all of them"] == pytest.approx(3 * MS, rel=0.02)
    assert saved["rank 2"] + saved["rank 5"] == pytest.approx(saved["all of them"], rel=1e-6)
    assert saved["rank 2"] == pytest.approx(1.5 * saved["rank 5"], rel=0.02)


def test_a_rank_behind_a_much_slower_one_is_only_mentioned() -> None:
    answer = recorded(quiet(slow_gpu={2: 0.6, 5: 0.04}))
    assert [c.rank for c in answer.culprits] == [2]
    assert any(line.startswith("rank 5 also over its peers") for line in answer.evidence)


@pytest.mark.parametrize("exact_ends", [True, False])
def test_uneven_data_names_the_cost_and_the_fix(exact_ends: bool) -> None:
    answer = recorded(Job(tp=1, dp=6, imbalance=0.2, steps=80), exact_ends)
    assert (answer.culprits, answer.cause) == ((), CauseClass.DATA_IMBALANCE)
    (fix,) = answer.fixes
    assert (fix.what, fix.saved_s) == ("equal work for every rank", answer.loss_s)
    assert any(line.startswith("whoever comes last adds") for line in answer.evidence)


def test_a_big_stage_names_the_cost_and_the_fix() -> None:
    """Four stages of two micro-batches of 5 ms; the last takes 1.4 times as long."""
    answer = recorded(quiet(tp=1, pp=4, dp=4, stage_factor={3: 1.4}))
    assert (answer.culprits, answer.cause) == ((), CauseClass.STRUCTURAL)
    (fix,) = answer.fixes
    assert (fix.what, fix.saved_s) == ("stages balanced", answer.loss_s)
    assert answer.loss_s is not None and answer.loss_s > 2 * MS
    assert any(line.startswith("the slowest role takes") for line in answer.evidence)


def test_a_stage_with_one_rank_cannot_be_told_from_its_rank() -> None:
    answer = recorded(quiet(tp=1, pp=4, dp=1, stage_factor={3: 1.4}))
    assert answer.culprits == ()
    assert answer.not_sure is not None and answer.not_sure.startswith("every role has only one")


def test_a_slow_link_names_the_rank_that_its_communicators_share() -> None:
    answer = recorded(quiet(slow_link={3: 8}))
    (culprit,) = answer.culprits
    assert (culprit.rank, culprit.cause, culprit.confidence) == (3, CauseClass.NETWORK, 0.9)
    assert culprit.at_most, "it was never faster in this recording"
    assert culprit.excess == pytest.approx(7.0, rel=0.05)
    assert culprit.next_step == NEXT_STEPS[CauseClass.NETWORK]
    # Two tensor transfers of 0.1 ms and one data transfer of 0.3 ms take eight times as long.
    assert answer.loss_s == pytest.approx(7 * (2 * 0.1 + 0.3) * MS, rel=0.05)
    assert [fix.what for fix in answer.fixes] == ["link as fast as the others"]
    assert answer.not_sure is None


def test_a_slow_pair_is_one_link_with_two_ends() -> None:
    answer = recorded(quiet(slow_comm={("tp", 2): 8}))
    assert [(c.rank, c.confidence) for c in answer.culprits] == [(4, 0.8), (5, 0.8)]
    assert all((c.collective or "").endswith("among ranks 4, 5") for c in answer.culprits)
    assert {c.link for c in answer.culprits} == {"rank 4 ↔ rank 5"}
    assert answer.loss_s == pytest.approx(7 * 2 * 0.1 * MS, rel=0.05)


def test_the_ends_of_a_link_have_their_nodes_and_rank_zero_is_a_rank() -> None:
    answer = recorded(quiet(slow_comm={("tp", 0): 8}, node_of=lambda rank: f"n{rank}"))
    assert [(c.rank, c.node) for c in answer.culprits] == [(0, "n0"), (1, "n1")]


def test_three_ranks_are_no_link() -> None:
    answer = recorded(quiet(dp=3, slow_comm={("dp", 0): 6}))
    assert (answer.culprits, answer.cause) == ((), CauseClass.NETWORK)


def test_two_ranks_are_enough() -> None:
    assert recorded(quiet(tp=1, dp=2, steps=20)).step_time_s is not None


def test_a_slow_communicator_of_many_names_nobody() -> None:
    answer = recorded(quiet(slow_comm={("dp", 0): 6}))
    assert (answer.culprits, answer.cause) == ((), CauseClass.NETWORK)
    assert answer.not_sure is not None and "one of ranks 0, 2, 4, 6" in answer.not_sure


def test_ranks_that_wait_for_one_without_records_are_said_to() -> None:
    answer = recorded(quiet(slow_gpu={6: 0.1}), without=[6])
    assert answer.culprits == ()
    assert answer.not_sure is not None and answer.not_sure.startswith("all ranks wait")
    small = recorded(quiet(slow_gpu={6: 0.01}), without=[6])
    assert small.not_sure is None or not small.not_sure.startswith("all ranks wait")


def test_money_follows_from_the_loss_of_all_gpus() -> None:
    answer = ask(SLOW)
    assert answer.loss_s is not None and answer.step_time_s is not None
    expected = 6 * 3.0 * answer.loss_s / answer.step_time_s
    assert answer.usd_per_hour(3.0) == pytest.approx(expected)
    assert answer.usd_per_hour(None) is None
    assert replace(answer, loss_s=None).usd_per_hour(3.0) is None
    assert replace(answer, step_time_s=0.0).usd_per_hour(3.0) is None
    assert replace(answer, loss_s=None).loss_gpu_hours is None


def test_the_times_of_a_fault_that_is_over_end_with_its_last_step() -> None:
    """It is late from step 60 to step 299, and costs nothing: all steps last 100 ms."""
    (late,) = ask({2: (8.0, 60, 300)}, longer_ms=0.0).late
    assert late.steps == (60, 299)
    assert late.times == pytest.approx((1 + 6 + 0.025, 1 + 29.9 + 0.05))
