"""Simulated jobs of random shape through agent and Fleet: the slow rank, its class and the loss."""

from dataclasses import replace

import pytest
from tests.support.random_jobs import draw_job
from tests.support.simulated_job import Fault, simulate
from tests.support.simulated_live import watch

from ingero.contract.verdict import CauseClass

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
