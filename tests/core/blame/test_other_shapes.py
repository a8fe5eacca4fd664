"""Simulated jobs of shapes that nothing was tuned on: who is slow, why, and what the job loses.

Twelve ranks (thirty-two with shards in groups): parameters gathered when needed, shards with
replicas, a ring of sends and receives, chunks of a pipeline, and experts whose sends and receives
are recorded without the wait for their data, as NCCL does.
"""

import pytest
from tests.support.job_shapes import Shape, ddp
from tests.support.more_shapes import MORE, draw_more
from tests.support.other_shapes import (
    context_ring,
    fused,
    hybrid,
    interleaved,
    sent_experts,
    sharded_batches,
    zero3,
)
from tests.support.random_jobs import draw_job
from tests.support.simulated_job import Fault, Noise, SimulatedJob, simulate

from ingero.core.blame.answer import Answer
from ingero.core.blame.records import blame_records

STEPS, ONSET = 224, 112
SHAPES = {
    "zero3": zero3(),
    "hybrid": hybrid(),
    "ring": context_ring(),
    "interleaved": interleaved(),
    "experts": sent_experts(),
}
GPU, HOST = Fault(5, gpu=0.10, first=ONSET), Fault(6, host_s=0.006, first=ONSET)
STALL = Fault(7, host_s=0.05, every=10, first=ONSET)


def _run(shape: Shape, *faults: Fault) -> tuple[SimulatedJob, Answer]:
    noise = Noise(early_ends=shape is SHAPES["experts"])
    job = simulate(shape, STEPS, faults, noise=noise, clock_s=2.0)
    return job, blame_records(job.columns, True, "test")


@pytest.mark.parametrize("name", SHAPES)
def test_nobody_is_blamed_in_a_healthy_job(name: str) -> None:
    job, answer = _run(SHAPES[name])
    assert (answer.culprits, answer.late, answer.cause) == ((), (), None)
    assert answer.step_time_s == pytest.approx(float(job.step_s[:, 5:].mean()), rel=0.01)


@pytest.mark.parametrize(
    ("name", "fault", "cause"),
    [(name, GPU, "compute") for name in SHAPES]
    + [("zero3", HOST, "host"), ("experts", HOST, "host"), ("ring", HOST, "host")]
    + [("hybrid", STALL, "host"), ("interleaved", STALL, "host")],
)
def test_the_slow_rank_is_named_with_class_and_loss(name: str, fault: Fault, cause: str) -> None:
    job, answer = _run(SHAPES[name], fault)
    assert [(c.rank, str(c.cause)) for c in answer.culprits] == [(fault.rank, cause)]
    (culprit,) = answer.culprits
    assert culprit.period == (fault.every if fault.every > 1 else None)
    assert not culprit.at_most
    assert culprit.loss == pytest.approx(job.loss(ONSET), abs=0.01)


def test_a_late_host_that_a_pipeline_hides_costs_nothing() -> None:
    job, answer = _run(SHAPES["interleaved"], HOST)
    assert abs(job.loss(ONSET)) < 0.005
    assert (answer.culprits, [c.rank for c in answer.late]) == ((), [6])


@pytest.mark.parametrize("buckets", [3, 6])
def test_buckets_of_one_size_do_not_shorten_the_step(buckets: int) -> None:
    """Only the silence of the host shows where a step begins."""
    job = simulate(ddp(one_size=True, buckets=buckets), STEPS, [GPU])
    answer = blame_records(job.columns, True, "test")
    assert answer.step_time_s == pytest.approx(float(job.step_s[:, 5:].mean()), rel=0.01)
    assert [(c.rank, str(c.cause)) for c in answer.culprits] == [(5, "compute")]
    assert answer.culprits[0].loss == pytest.approx(job.loss(ONSET), abs=0.01)


FEW = {
    "compiled": (fused(), Fault(2, host_s=0.06, every=7, first=ONSET), "host"),
    "two in a ring": (context_ring(2, 2, 1), Fault(1, gpu=0.12, first=ONSET), "compute"),
    "hosts ahead": (sharded_batches(), Fault(1, gpu=0.12, first=ONSET), "compute"),
    "hosts ahead, stalls": (
        sharded_batches(),
        Fault(1, host_s=0.05, every=7, first=ONSET),
        "host",
    ),
}


@pytest.mark.parametrize(("shape", "fault", "cause"), FEW.values(), ids=FEW)
def test_jobs_of_four_ranks_are_told_right(shape: Shape, fault: Fault, cause: str) -> None:
    """Stalls look like the first call of a step, a pair like stages, and gathers run ahead."""
    job, answer = _run(shape, fault)
    (culprit,) = answer.culprits
    assert (culprit.rank, str(culprit.cause)) == (fault.rank, cause)
    assert culprit.period == (fault.every if fault.every > 1 else None)
    assert culprit.loss == pytest.approx(job.loss(ONSET), abs=0.02)
    assert answer.step_time_s == pytest.approx(float(job.step_s[:, 5:].mean()), rel=0.01)


@pytest.mark.parametrize(
    ("kind", "seed", "fault", "cause"),
    [
        ("tensor", 9002, Fault(0, gpu=0.10, first=ONSET), "compute"),  # half of the ranks wait
        ("tensor", 9002, Fault(1, host_s=0.15, every=7, first=ONSET), "host"),
        ("tensor", 9001, Fault(6, gpu=0.12, first=ONSET), "compute"),  # groups add up their delays
        ("hybrid", 9001, Fault(2, host_s=0.0117, first=ONSET), "host"),  # calls are in flight
        ("hybrid", 44, Fault(4, host_s=0.14, every=10, first=ONSET), "host"),  # flags hide stalls
        ("tensor", 501, Fault(11, host_s=0.0104, first=ONSET), "host"),  # its group of four waits
        ("context gather", 22, Fault(5, gpu=0.10, first=ONSET), "compute"),  # one of two overlaps
        ("context gather", 22, Fault(1, host_s=0.0082, first=ONSET), "host"),
        ("ring", 502, Fault(0, host_s=0.016, first=ONSET), "host"),  # two tensors travel at once
    ],
)
def test_the_rank_is_named_and_not_its_group(
    kind: str, seed: int, fault: Fault, cause: str
) -> None:
    """The others hide compute while they wait, so that own time grows in the whole group."""
    drawn = (draw_more if kind in MORE else draw_job)(kind, seed)
    job = simulate(drawn.shape, 260, [fault], noise=drawn.noise, seed=seed)
    (culprit,) = blame_records(job.columns, True, "test").culprits
    assert (culprit.rank, str(culprit.cause)) == (fault.rank, cause)
    assert culprit.period == (fault.every if fault.every > 1 else None)
    assert culprit.loss == pytest.approx(job.loss(ONSET), abs=0.02)


def test_stalls_that_never_began_have_no_calm_steps() -> None:
    """Steps outside the stretch with the longest stalls stall, too; they are not calm."""
    drawn, fault = draw_job("tensor", 9300), Fault(2, host_s=0.15, every=11)
    job = simulate(drawn.shape, 420, [fault], noise=drawn.noise, seed=9300, flag_every=50)
    (culprit,) = blame_records(job.columns, True, "test").culprits
    assert (culprit.rank, culprit.period, culprit.at_most) == (2, 11, True)
