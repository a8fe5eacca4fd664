"""Simulated jobs of random shape through agent and Fleet: the slow rank, its class and the loss."""

from dataclasses import replace

import pytest
from tests.support.job_shapes import (
    MB,
    WORLD,
    Call,
    Host,
    Item,
    Kernel,
    Shape,
    Sync,
    swapping_pipeline,
)
from tests.support.random_jobs import draw_job
from tests.support.simulated_job import Fault, Noise, simulate
from tests.support.simulated_live import watch

from ingero.contract.verdict import CauseClass, VerdictState

CALM_S, SLOW_S = 50.0, 13.0


@pytest.mark.parametrize(
    ("kind", "seed", "fault", "cause", "collective"),
    [
        ("experts", 5, Fault(3, gpu=0.08), CauseClass.COMPUTE, "62.9 MB"),
        ("accumulation", 5, Fault(1, host_s=0.012), CauseClass.HOST, "13.6 MB"),
    ],
)
def test_the_slow_rank_is_named_with_class_and_loss(
    kind: str, seed: int, fault: Fault, cause: CauseClass, collective: str
) -> None:
    """F067: nobody else is named, before or after, and the headline is what the job measures."""
    drawn = draw_job(kind, seed)
    pace_s = simulate(drawn.shape, 60, noise=drawn.noise, seed=seed).pace_s(20)
    first, steps = int(CALM_S / pace_s), int((CALM_S + SLOW_S) / pace_s)
    slow = Fault(fault.rank, gpu=fault.gpu, host_s=fault.host_s, first=first)
    job = simulate(drawn.shape, steps, [slow], noise=drawn.noise, seed=seed)
    run = watch(job, nodes=2)
    named = run.named()
    assert {verdict.rank for _, verdict in named} == {fault.rank}
    assert 0 < named[0][0] - job.seconds(first) <= 12
    assert {verdict.cause_class for _, verdict in named} == {cause}
    loss, truth = named[-1][1].loss, job.loss(first)
    assert loss is not None and loss == pytest.approx(truth, abs=max(0.015, 0.25 * truth))
    shown = [verdict for _, verdict in run.service.open_verdicts() if verdict.rank == fault.rank]
    assert [verdict.collective for verdict in shown] == [
        f"AllReduce of {collective} among all 4 ranks"
    ]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [(Fault(5, gpu=0.08), CauseClass.COMPUTE), (Fault(5, host_s=0.012), CauseClass.HOST)],
)
def test_a_rank_that_is_late_to_exchanges_is_named_and_not_its_group(
    fault: Fault, cause: CauseClass
) -> None:
    """Sends and receives of one kernel start together, and nobody notes when they are over."""
    drawn = draw_job("experts", 9)
    noise = replace(drawn.noise, one_kernel=True)
    pace_s = simulate(drawn.shape, 60, noise=noise, seed=9).pace_s(20)
    first, steps = int(CALM_S / pace_s), int((CALM_S + SLOW_S) / pace_s)
    job = simulate(drawn.shape, steps, [replace(fault, first=first)], noise=noise, seed=9)
    run = watch(job, nodes=2)
    assert {each.verdict.rank for each in run.said} == {5}
    named, truth = run.named(), job.loss(first)
    assert 0 < named[0][0] - job.seconds(first) <= 12
    assert {verdict.cause_class for _, verdict in named} == {cause}
    loss = named[-1][1].loss
    assert loss is not None and loss == pytest.approx(truth, abs=max(0.015, 0.25 * truth))


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault(5, gpu=0.25), CauseClass.COMPUTE),
        (Fault(3, host_s=0.25, every=5), CauseClass.STALL),
    ],
)
def test_stages_that_wait_in_a_swap_for_a_slow_one_are_not_named(
    fault: Fault, cause: CauseClass
) -> None:
    """Half of the ranks wait for it: that is neither their slowness nor an event of the job."""
    shape, first = swapping_pipeline(micro_batches=4, stage_s=0.008), 290
    noise = Noise(eager_sends=True, one_kernel=True)
    faults = [replace(fault, first=first)]
    job = simulate(shape, 410, faults, noise=noise, seed=3, flag_every=0)
    run = watch(job, nodes=2)
    said = [each.verdict for each in run.said]
    assert {(verdict.rank, verdict.cause_class) for verdict in said} == {(fault.rank, cause)}
    assert VerdictState.STRAGGLER in {verdict.state for verdict in said}
    means = job.step_s.mean(axis=0)
    truth = 1.0 - means[5:first].mean() / means[first + 1 :].mean()
    ((_, now),) = run.service.open_verdicts()  # three stalls name a rank, and show less of its loss
    assert now.loss == pytest.approx(truth, abs=max(0.01, 0.25 * truth))


@pytest.mark.parametrize(
    ("kind", "seed", "fault", "cause"),
    [
        ("hybrid", 1, Fault(2, host_s=0.022), CauseClass.HOST),
        ("ring", 3, Fault(6, gpu=0.1), CauseClass.COMPUTE),
    ],
)
def test_the_group_that_waits_for_a_slow_rank_is_not_blamed_with_it(
    kind: str, seed: int, fault: Fault, cause: CauseClass
) -> None:
    """Half of the job comes late with it: the shards of one replica, or the ranks of one ring."""
    drawn = draw_job(kind, seed, 0.15)
    first = int(45 / drawn.step_s)
    job = simulate(
        drawn.shape, first + 100, [replace(fault, first=first)], noise=drawn.noise, seed=seed
    )
    run = watch(job, nodes=2)
    assert {each.verdict.rank for each in run.said} == {fault.rank}
    named = run.named()
    assert 0 < named[0][0] - job.seconds(first) <= 12
    assert {verdict.cause_class for _, verdict in named} == {cause}


def two_stages(rank: int, step: int) -> list[Item]:
    """Two replicas of two stages, with two micro-batches over sends and receives."""
    stage, everybody, other = rank % 2, tuple(range(4)), rank + 1 - 2 * (rank % 2)
    forward, backward = Kernel(0.04, 0.008), Kernel(0.08, 0.016)
    get = Call("Recv", 2 * MB, WORLD, everybody, 2 + stage, other, False, True)
    give = Call("Send", 2 * MB, WORLD, everybody, 4 + stage, other)
    there = [get, forward] if stage else [forward, give]
    back = [backward, give] if stage else [get, backward]
    ends = Call("AllReduce", 40 * MB, 300 + stage, (stage, stage + 2), 6, feeds_compute=True)
    return [Host(0.005), *there, *there, *back, *back, ends, Sync()]


@pytest.mark.parametrize(("one", "other"), [(0, 1), (3, 2)])
def test_the_network_event_names_the_link_of_slow_sends_and_receives(one: int, other: int) -> None:
    slow = Fault(one, link=other, times=1500.0, first=200)
    run = watch(simulate(Shape(4, two_stages), 330, [slow]), nodes=2)
    events = [verdict for _, verdict in run.service.open_verdicts() if verdict.rank is None]
    assert [(verdict.cause_class, verdict.link) for verdict in events] == [
        (CauseClass.NETWORK, f"rank {min(one, other)} ↔ rank {max(one, other)}")
    ]
    assert "both ends" in events[0].next_step
