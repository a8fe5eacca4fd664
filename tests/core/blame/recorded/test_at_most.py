"""What slow ranks cost at most: recordings that are slow from the first step to the last.

The truth is the same job without the fault. The figure is at least that, and at most twice that and
three points, whatever waits for what: gathers that run ahead, buckets that queue on one stream,
shards with replicas, ranks that serve others, and sends that end before their data are taken.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.job_shapes import Shape, ddp
from tests.support.more_shapes import draw_more
from tests.support.other_shapes import hybrid, zero3
from tests.support.random_jobs import DrawnJob, draw_job
from tests.support.simulated_job import Fault, Noise, simulate

from ingero.core.blame.records import blame_records

STEPS, WARM = 160, 5


def plain(shape: Shape) -> DrawnJob:
    return DrawnJob("plain", shape, Noise(), 0.1)


GPU, HOST = Fault(1, gpu=0.10), Fault(1, host_s=0.011)
STALL = Fault(1, host_s=0.13, every=7)
JOBS = {
    "gathers ahead": (plain(zero3(8, 8)), replace(GPU, gpu=0.15)),
    "buckets on one stream": (draw_job("ddp", 1), replace(GPU, gpu=0.15)),
    "shards with replicas": (plain(hybrid(16, 4, 4)), STALL),
    "tensor groups": (draw_job("tensor", 1), GPU),
    "sequences of all lengths": (draw_more("lengths", 1), replace(GPU, gpu=0.15)),
    "hosts a step ahead": (draw_more("no sync", 1), HOST),
    "a rank that serves": (draw_more("server", 1), HOST),
    "sends that do not wait": (draw_more("receives ahead", 22), STALL),
    "stalls that flags show": (draw_job("experts", 1), replace(STALL, every=10)),
}


@pytest.mark.parametrize(("drawn", "fault"), JOBS.values(), ids=JOBS)
def test_at_most_is_hardly_more_than_the_truth(drawn: DrawnJob, fault: Fault) -> None:
    calm, job = (
        simulate(drawn.shape, STEPS, faults, noise=drawn.noise, clock_s=2.0)
        for faults in ((), (fault,))
    )
    truth = 1.0 - float(np.mean(calm.step_s[:, WARM:]) / np.mean(job.step_s[:, WARM:]))
    (culprit,) = blame_records(job.columns, True, "test").culprits
    assert (culprit.rank, culprit.at_most) == (fault.rank, True)
    assert culprit.loss is not None
    assert truth - 0.005 <= culprit.loss <= 2 * truth + 0.03


def test_what_two_ranks_cost_together_is_split_between_them() -> None:
    faults = [Fault(2, gpu=0.09), Fault(5, gpu=0.10)]
    calm, job = (simulate(ddp(), STEPS, each) for each in ((), faults))
    truth = 1.0 - float(np.mean(calm.step_s[:, WARM:]) / np.mean(job.step_s[:, WARM:]))
    culprits = blame_records(job.columns, True, "test").culprits
    assert {c.rank for c in culprits} == {2, 5}
    total = sum(c.loss or 0.0 for c in culprits)
    assert truth - 0.005 <= total <= 2 * truth + 0.03
