"""Blame of records of simulated jobs whose culprit is known by construction (F108, F109, F072)."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from tests.support.recorded_jobs import Job, record

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import Answer
from ingero.core.blame.records import blame_records
from ingero.core.collectives.columns import from_records


def _ask(
    job: Job, *, exact_ends: bool = True, without: Collection[int] = (), shuffled: bool = False
) -> Answer:
    records = [r for r in record(job) if r.global_rank not in without]
    if shuffled:
        np.random.default_rng(0).shuffle(records)  # type: ignore[arg-type]  # shuffles any mutable sequence
    return blame_records(from_records(records), exact_ends, "test", job.world)


def _named(answer: Answer) -> set[tuple[int | None, str]]:
    return {(culprit.rank, str(culprit.cause)) for culprit in answer.culprits}


@pytest.mark.parametrize(
    ("job", "truth"),
    [
        pytest.param(Job(slow_gpu={6: 0.03}), {(6, "compute")}, id="3-percent"),
        pytest.param(Job(slow_gpu={6: 0.03}, seed=7), {(6, "compute")}, id="3-percent-other-seed"),
        pytest.param(Job(dp=8, slow_gpu={11: 0.034}), {(11, "compute")}, id="16-ranks"),
        pytest.param(Job(slow_host={1: 0.002}), {(1, "host")}, id="host"),
        pytest.param(Job(slow_host={1: 0.001}, skew_s=5), {(1, "host")}, id="host-skewed-clocks"),
        pytest.param(Job(slow_gpu={7: 0.05}, skew_s=5), {(7, "compute")}, id="gpu-skewed-clocks"),
        pytest.param(Job(slow_gpu={2: 0.1, 5: 0.1}), {(2, "compute"), (5, "compute")}, id="two"),
        pytest.param(
            Job(slow_gpu={2: 0.2}, slow_host={5: 0.003}),
            {(2, "compute"), (5, "host")},
            id="one-of-each",
        ),
        pytest.param(Job(tp=1, pp=4, dp=4, slow_gpu={9: 0.05}), {(9, "compute")}, id="pipeline"),
        pytest.param(Job(tp=2, pp=2, dp=4, slow_gpu={13: 0.1}), {(13, "compute")}, id="three-ways"),
        pytest.param(
            Job(tp=2, pp=2, dp=4, slow_gpu={13: 0.1}, unnumbered=True),
            {(13, "compute")},
            id="sends-without-numbers",
        ),
        pytest.param(
            Job(tp=2, pp=2, dp=4, slow_gpu={13: 0.3}, stage_factor={0: 1.2}),
            {(13, "compute")},
            id="beside-a-big-stage",
        ),
        pytest.param(Job(tp=1, dp=3, slow_gpu={1: 0.05}), {(1, "compute")}, id="three-ranks"),
        pytest.param(
            Job(slow_gpu={6: 0.05}, run_ahead=True), {(6, "compute")}, id="host-runs-ahead-gpu"
        ),
        pytest.param(
            Job(slow_host={6: 0.02}, run_ahead=True), {(6, "host")}, id="host-runs-ahead-host"
        ),
        pytest.param(Job(slow_link={3: 6}), {(3, "network")}, id="one-slow-link"),
    ],
)
def test_the_culprit_is_named_with_its_class_and_nobody_else(
    job: Job, truth: set[tuple[int, str]]
) -> None:
    assert _named(_ask(job)) == truth


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        pytest.param(Job(), None, id="healthy"),
        pytest.param(Job(noise=0.03, chronic=0.005, steps=30, seed=11), None, id="healthy-noisy"),
        pytest.param(Job(tp=1, pp=4, dp=4), None, id="healthy-pipeline"),
        pytest.param(Job(imbalance=0.15), CauseClass.DATA_IMBALANCE, id="uneven-data"),
        pytest.param(
            Job(imbalance=0.1, pp=2, tp=1, steps=30, seed=5),
            CauseClass.DATA_IMBALANCE,
            id="uneven-data-pipeline",
        ),
        pytest.param(
            Job(tp=1, pp=4, dp=4, stage_factor={3: 1.3}), CauseClass.STRUCTURAL, id="big-last-stage"
        ),
        pytest.param(Job(slow_comm={("dp", 0): 6}), CauseClass.NETWORK, id="slow-communicator"),
    ],
)
def test_nobody_is_blamed_where_no_node_is_at_fault(job: Job, cause: CauseClass | None) -> None:
    answer = _ask(job)
    assert (answer.culprits, answer.cause) == ((), cause)


def test_a_slow_pair_is_named_as_a_link() -> None:
    answer = _ask(Job(slow_comm={("tp", 2): 8}))
    assert _named(answer) == {(4, "network"), (5, "network")}
    assert {culprit.link for culprit in answer.culprits} == {"rank 4 ↔ rank 5"}
    assert answer.not_sure is None


def test_who_waits_for_a_slow_pair_comes_last_elsewhere_and_that_is_no_uneven_work() -> None:
    """All that the last arrivers add is what the pair loses, and a little noise on top of it."""
    answer = _ask(Job(steps=40, compute_s=0.002, seed=11, slow_comm={("tp", 1): 6}))
    assert _named(answer) == {(2, "network"), (3, "network")}


@pytest.mark.parametrize("period", [7, 14])
def test_stalls_name_rank_class_and_period(period: int) -> None:
    answer = _ask(Job(slow_host={5: 0.29}, every=period, steps=150))
    assert [(c.rank, c.cause, c.period) for c in answer.culprits] == [(5, CauseClass.HOST, period)]


@pytest.mark.parametrize("without", [(2, 3), (7,), (0,)])
def test_missing_ranks_do_not_hide_the_culprit(without: tuple[int, ...]) -> None:
    answer = _ask(Job(slow_gpu={6: 0.05}), without=without)
    assert _named(answer) == {(6, "compute")}
    assert answer.notes == (
        f"partial set: {8 - len(without)} of 8 ranks; missing {', '.join(map(str, without))}",
    )


def test_a_culprit_without_records_is_not_replaced_by_its_victim() -> None:
    answer = _ask(Job(slow_gpu={6: 0.05}), without=(6,))
    assert answer.culprits == ()
    assert answer.not_sure is not None and answer.not_sure.startswith("all ranks wait")


def test_order_of_records_does_not_matter() -> None:
    job = Job(slow_gpu={6: 0.05})
    assert _named(_ask(job, shuffled=True)) == _named(_ask(job))


def test_half_the_ranks_slow_together_is_no_matter_of_single_ranks() -> None:
    answer = _ask(Job(tp=1, dp=8, slow_gpu=dict.fromkeys((1, 2, 3, 4), 0.1)))
    assert answer.culprits == ()
    assert answer.not_sure is not None and answer.not_sure.startswith("too many ranks")


@pytest.mark.parametrize(
    ("job", "truth"),
    [
        (Job(slow_gpu={6: 0.05}), {(6, "compute")}),
        (Job(slow_host={6: 0.005}), {(6, "host")}),
        (Job(slow_gpu={6: 0.05}, skew_s=5), {(6, "unknown")}),
        (Job(), set()),
    ],
)
def test_durations_alone_name_the_rank_and_the_class_only_if_clocks_agree(
    job: Job, truth: set[tuple[int, str]]
) -> None:
    assert _named(_ask(job, exact_ends=False)) == truth


@pytest.mark.parametrize(
    ("job", "lost_s"),
    [
        (Job(slow_gpu={6: 0.2}), 2 * 0.005 * 0.2),  # two micro-batches a step
        (Job(slow_host={6: 0.004}), 0.004),
        (
            Job(slow_gpu={2: 0.2, 5: 0.2}),
            2 * 0.005 * 0.2,
        ),  # both at once cost what one costs: waits are not summed
    ],
)
def test_the_price_is_the_injected_loss_within_five_percent(job: Job, lost_s: float) -> None:
    assert _ask(job).loss_s == pytest.approx(lost_s, rel=0.05)


def test_excess_is_the_injected_share() -> None:
    (culprit,) = _ask(Job(slow_gpu={3: 0.1}, chronic=0.0)).culprits
    assert culprit.excess == pytest.approx(0.1, abs=0.005)
    assert culprit.error is not None and culprit.error < 0.01


def test_one_rank_is_too_little_to_compare() -> None:
    answer = _ask(Job(), without=range(1, 8))
    assert answer.culprits == ()
    assert (
        answer.not_sure
        == "1 rank recorded: a comparison needs records of at least two ranks over some steps"
    )


def test_two_candidates_within_the_error_bar_are_both_named_with_what_would_separate_them() -> None:
    answer = _ask(Job(slow_gpu={2: 0.0175, 5: 0.0135}, chronic=0.0, noise=0.002))
    assert [c.rank for c in answer.culprits] == [2]
    assert answer.not_sure is not None
    assert answer.not_sure.startswith(
        "rank 2 and rank 5 lie within one error bar of each other: more steps"
    )


def test_the_collective_is_named_with_its_ranks() -> None:
    (culprit,) = _ask(Job(slow_gpu={6: 0.1})).culprits
    assert culprit.collective is not None
    assert culprit.collective.startswith("AllReduce of communicator a5a5")
    assert culprit.collective.endswith(("(ranks 6, 7)", "(ranks 0, 2, 4, 6)"))


@pytest.mark.parametrize("exact_ends", [True, False])
def test_records_read_twice_count_once(exact_ends: bool) -> None:
    """A file given twice halved the price and, without exact ends, also blamed the neighbour."""
    rows = from_records(record(Job(slow_host={2: 0.004})))
    once = blame_records(rows, exact_ends, "test")
    again = blame_records(rows.take(np.repeat(np.arange(len(rows)), 2)), exact_ends, "test")
    assert [c.rank for c in again.culprits] == [2]
    assert (again.culprits, again.loss_s) == (once.culprits, once.loss_s)
    assert again.notes == (
        f"{len(rows)} records are repeated, in one file or several, and count once",
    )


@pytest.mark.parametrize("exact_ends", [True, False])
def test_times_that_do_not_move_compare_nothing(exact_ends: bool) -> None:
    rows = from_records(record(Job(steps=5)))
    still = np.full(len(rows), rows.end_ns[0])
    frozen = replace(rows, start_ns=still, end_ns=still, gpu_duration_ns=np.zeros_like(still))
    answer = blame_records(frozen, exact_ends, "test")
    assert answer.culprits == ()
    assert answer.not_sure is not None


def test_transfers_below_the_clock_resolution_are_not_slow_links() -> None:
    rows = from_records(record(Job(steps=12)))
    tensor = rows.nranks == 2
    first = rows.comm == rows.comm[np.flatnonzero(tensor)[0]]
    instant = replace(rows, gpu_duration_ns=np.where(tensor & ~first, 0, rows.gpu_duration_ns))
    assert blame_records(instant, True, "test").cause is not CauseClass.NETWORK


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("exact_ends", [True, False])
@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 2, 2)])
def test_a_rank_with_few_records_is_not_blamed_for_that(
    shape: tuple[int, int, int], exact_ends: bool, is_late: bool
) -> None:
    """In the first few records of a rank, the rarest collective is not the last of a step."""
    tp, pp, dp = shape
    rows = from_records(record(Job(tp=tp, pp=pp, dp=dp, steps=20, slow_gpu={5: 0.3})))
    own = np.flatnonzero(rows.who == 3)
    for kept in range(2, 20):
        left_out = own[:-kept] if is_late else own[kept:]
        answer = blame_records(
            rows.take(np.delete(np.arange(len(rows)), left_out)), exact_ends, "test"
        )
        assert {c.rank for c in answer.culprits} <= {5}, kept


def test_where_collectives_overlap_compute_the_bound_is_not_far_off() -> None:
    """Ten gradient buckets: while ranks wait for rank 3 in one bucket, they compute the next."""
    rng, began_s, records = np.random.default_rng(1), 1.0, []
    base = record(Job(tp=1, dp=8, steps=1))[0]
    for step in range(30):
        work_s = 0.02 * np.exp(rng.normal(0, 0.004, (10, 8)))
        work_s[0] += 0.1
        work_s[:, 3] *= 1.3
        free_s = np.full(8, began_s)
        for bucket, ready_s in enumerate(began_s + np.cumsum(work_s, axis=0)):
            entry_s = np.maximum(ready_s, free_s)
            end_s = entry_s.max() + 0.01
            records += [
                replace(
                    base, global_rank=rank, rank=rank, comm=7, seq=10 * step + bucket,
                    size_bytes=1000 + bucket, end_ns=int(end_s * 1e9),
                    start_ns=int((began_s + 0.3 * (entry_s[rank] - began_s)) * 1e9),
                    gpu_duration_ns=int((end_s - entry_s[rank]) * 1e9),
                )
                for rank in range(8)
            ]  # fmt: skip
            free_s[:] = end_s
        began_s = float(free_s[0])
    answer = blame_records(from_records(records), True, "test")
    assert [(c.rank, c.cause) for c in answer.culprits] == [(3, CauseClass.COMPUTE)]
    (culprit,) = answer.culprits
    true = 0.3 * (0.1 + 10 * 0.02) / 0.4  # of a slow step
    assert culprit.at_most and culprit.loss is not None
    assert true <= culprit.loss <= 2 * true + 0.03
