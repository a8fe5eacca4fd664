"""The steps of simulated jobs of many shapes are found, as long as the job itself logs them."""

import numpy as np
import pytest
from tests.support.job_shapes import Shape, ddp, experts, fsdp, pipeline, tensor_parallel
from tests.support.simulated_job import simulate

from ingero.core.collectives.step_pattern import cut_steps, find_pattern

SHAPES = {
    "ddp": ddp(),
    "accumulation": ddp(micro_batches=4),
    "launch-bound": ddp(step_s=0.015, launch=1.2),
    "fsdp": fsdp(),
    "many layers": fsdp(layers=24),
    "long steps": fsdp(layers=16, layer_s=0.9),
    "tensor": tensor_parallel(),
    "experts": experts(uneven=0.5),
    "pipeline": pipeline(),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_step_times_are_those_of_the_job(shape: Shape) -> None:
    steps = 45
    job = simulate(shape, steps, flag_every=5, clock_s=3.0)
    for who in range(shape.ranks):
        rows = job.columns.take(job.columns.who == who)
        pattern = find_pattern(rows)
        assert pattern is not None
        found = cut_steps(rows, pattern)
        assert len(found) == steps
        ends = np.sort(rows.end_ns[found.place == len(pattern) - 1]) / 1e9
        assert np.diff(ends).mean() == pytest.approx(job.step_s[who].mean(), rel=0.01)
