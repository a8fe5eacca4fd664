"""Faults in simulated jobs of many shapes: rank, class and loss follow from the simulation."""

from dataclasses import replace

import pytest
from tests.support.job_shapes import Shape, ddp, experts, fsdp
from tests.support.random_jobs import draw_job
from tests.support.simulated_job import Fault, simulate

from ingero.core.blame.answer import Answer
from ingero.core.blame.records import blame_records
from ingero.core.collectives.columns import Collectives

STEPS, ONSET = 340, 160
SHAPES = {"ddp": ddp(), "fsdp": fsdp(layers=4), "experts": experts(layers=2)}
FAULTS = {
    "compute": Fault(3, gpu=0.10, first=ONSET),
    "host": Fault(5, host_s=0.005, first=ONSET),
}


def _ask(columns: Collectives) -> Answer:
    return blame_records(columns, True, "test")


@pytest.mark.parametrize("cause", FAULTS)
@pytest.mark.parametrize("name", SHAPES)
def test_rank_class_and_loss_are_those_of_the_simulation(name: str, cause: str) -> None:
    job = simulate(SHAPES[name], STEPS, [FAULTS[cause]], clock_s=2.0)
    answer = _ask(job.columns)
    assert [(c.rank, str(c.cause)) for c in answer.culprits] == [(FAULTS[cause].rank, cause)]
    (culprit,) = answer.culprits
    truth = job.loss(ONSET)
    assert culprit.loss == pytest.approx(truth, abs=max(0.01, 0.2 * truth))
    assert culprit.steps is not None and culprit.steps[0] == pytest.approx(ONSET, abs=20)
    assert not culprit.at_most


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_nobody_is_blamed_in_a_healthy_simulation(shape: Shape) -> None:
    answer = _ask(simulate(shape, 150, clock_s=2.0).columns)
    assert (answer.culprits, answer.cause) == ((), None)


def test_two_at_once_are_both_named() -> None:
    faults = [Fault(2, gpu=0.09), Fault(5, gpu=0.10)]
    answer = _ask(simulate(ddp(), 200, faults).columns)
    assert {(c.rank, str(c.cause)) for c in answer.culprits} == {(2, "compute"), (5, "compute")}


def test_a_stall_is_named_with_its_period_in_steps() -> None:
    job = simulate(ddp(), STEPS, [Fault(5, host_s=0.06, every=10, first=ONSET)], flag_every=0)
    (culprit,) = _ask(job.columns).culprits
    assert (culprit.rank, str(culprit.cause), culprit.period) == (5, "host", 10)
    assert culprit.loss == pytest.approx(job.loss(ONSET), abs=0.02)


def test_a_slow_gpu_that_the_job_does_not_notice_is_no_culprit() -> None:
    # Launches take longer than compute, so ten percent more compute change nothing.
    shape = ddp(step_s=0.015, launch=1.4)
    assert _ask(simulate(shape, STEPS, [Fault(3, gpu=0.1, first=ONSET)]).columns).culprits == ()


RANDOM = [
    ("hybrid", 101, Fault(4, gpu=0.10), "compute"),  # gradients are scattered, then reduced across
    ("hybrid", 101, Fault(4, host_s=0.015), "host"),
    ("tensor", 102, Fault(0, host_s=0.017), "host"),  # its partner waits, and overlaps less
    ("accumulation", 102, Fault(0, host_s=0.143, every=12), "host"),  # hosts have hiccups, too
]


@pytest.mark.parametrize(("kind", "seed", "fault", "cause"), RANDOM)
def test_jobs_of_random_shape_are_told_right(
    kind: str, seed: int, fault: Fault, cause: str
) -> None:
    """Groups that overlap compute, victims in tensor groups, and stalls that flags hide."""
    drawn, first = draw_job(kind, seed), 240
    job = simulate(drawn.shape, 400, [replace(fault, first=first)], noise=drawn.noise, seed=seed)
    answer = _ask(job.columns)
    assert [(c.rank, str(c.cause)) for c in answer.culprits] == [(fault.rank, cause)]
    (culprit,) = answer.culprits
    truth = job.loss(first)
    assert culprit.loss == pytest.approx(truth, abs=max(0.015, 0.25 * truth))
    assert culprit.period == (fault.every if fault.every > 1 else None)
    assert answer.step_time_s == pytest.approx(float(job.step_s[:, 5:].mean()), rel=0.015)


@pytest.mark.parametrize(("kind", "seed"), [("hybrid", 102), ("pipeline", 101)])
def test_scatter_of_hosts_and_receives_posted_ahead_are_nobodys_fault(kind: str, seed: int) -> None:
    drawn = draw_job(kind, seed)
    answer = _ask(simulate(drawn.shape, 300, noise=drawn.noise, seed=seed).columns)
    assert (answer.culprits, answer.cause) == ((), None)


def test_stalls_that_show_at_a_flag_first_count() -> None:
    """Every second stall falls on a step that begins with a flag of all ranks."""
    job = simulate(ddp(), STEPS, [Fault(5, host_s=0.06, every=10, first=ONSET)], flag_every=20)
    (culprit,) = _ask(job.columns).culprits
    assert (culprit.rank, culprit.period) == (5, 10)


@pytest.mark.parametrize(
    ("kind", "seed", "ends", "times"),
    [("tensor", 101, (0, 1), 6.0), ("pipeline", 103, (1, 2), 60.0)],
)
def test_a_link_that_becomes_slow_is_named_with_the_loss(
    kind: str, seed: int, ends: tuple[int, int], times: float
) -> None:
    """A tensor group and a pipeline: neither the ends nor those who wait for them are slow."""
    drawn, first = draw_job(kind, seed), 260
    fault = Fault(ends[0], link=ends[1], times=times, first=first)
    job = simulate(drawn.shape, 400, [fault], noise=drawn.noise, seed=seed)
    answer = _ask(job.columns)
    assert {(c.rank, str(c.cause)) for c in answer.culprits} == {(r, "network") for r in ends}
    assert {c.link for c in answer.culprits} == {f"rank {ends[0]} ↔ rank {ends[1]}"}
    assert answer.culprits[0].loss == pytest.approx(job.loss(first), abs=0.03)
