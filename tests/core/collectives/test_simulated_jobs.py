"""The steps of simulated jobs of many shapes are found, as long as the job itself logs them."""

import numpy as np
import pytest
from tests.support.job_shapes import Shape, ddp, experts, fsdp, pipeline, tensor_parallel
from tests.support.random_jobs import draw_job
from tests.support.simulated_job import simulate

from ingero.core.collectives.live_steps import LiveSteps
from ingero.core.collectives.step_pattern import cut_steps, find_pattern

SHAPES = {
    "ddp": ddp(),
    "accumulation": ddp(micro_batches=4),
    "launch-bound": ddp(step_s=0.015, launch=1.2),
    "fsdp": fsdp(),
    "equal layers": fsdp(root=False),
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
        assert len(found) in (steps - 1, steps)  # an anchor may be told by the step after it
        ends = np.sort(rows.end_ns[found.place == len(pattern) - 1]) / 1e9
        assert np.diff(ends).mean() == pytest.approx(job.step_s[who].mean(), rel=0.01)


@pytest.mark.parametrize(("kind", "seed"), [("fsdp", 1), ("hybrid", 0), ("tensor", 2)])
def test_steps_without_a_call_that_comes_once_are_numbered_alike_on_all_ranks(
    kind: str, seed: int
) -> None:
    """Each rank is read from another moment on, as agents do that start at different times."""
    drawn, steps = draw_job(kind, seed), 40
    job = simulate(drawn.shape, steps, noise=drawn.noise, seed=seed)
    numbers = []
    for who in range(drawn.shape.ranks):
        rows = job.columns.take(job.columns.who == who)
        rows = rows.take(np.arange(7 * who, len(rows)))
        live = LiveSteps()
        found = [live.take(rows.take(part)) for part in np.array_split(np.arange(len(rows)), 9)]
        times = [each.times for each in found if len(each.times)]
        spans = np.concatenate([each.span_s for each in times])
        assert np.nanmean(spans) == pytest.approx(job.pace_s(0), rel=0.1)
        numbers.append(np.concatenate([each.step for each in times]))
    assert all(len(each) >= steps // 3 for each in numbers)
    last = min(int(each.max()) for each in numbers)
    assert {int(each.max()) for each in numbers} <= {last, last + 1}
    assert all((np.diff(each) == 1).all() for each in numbers)
