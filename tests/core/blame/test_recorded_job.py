"""Parts of an answer about a recorded job: its mean step, its stages and how uneven its work is."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.shared_job import shared_job

from ingero.core.blame.record_steps import measure_steps
from ingero.core.blame.recorded.uneven import measure_last
from ingero.core.blame.recorded_job import mean_period, structural_loss
from ingero.core.blame.records import blame_records
from ingero.core.blame.suspects import WorkerSteps
from ingero.core.collectives.arrivals import measure_arrivals
from ingero.core.collectives.matching import match_collectives


def workers(own_s: list[list[float]], cohort: list[int], period: list[float]) -> WorkerSteps:
    return WorkerSteps(
        np.array(own_s), np.array(period), np.array(cohort), tuple(range(len(period)))
    )


@pytest.mark.parametrize(("steps", "mean_s"), [(9, 1 + 16 / 9), (10, 1.0)])
def test_the_mean_step_leaves_out_the_warm_up_of_a_long_recording(
    steps: int, mean_s: float
) -> None:
    period = [9.0, 9.0] + [1.0] * (steps - 2)
    assert mean_period(workers([[1.0] * steps], [0], period)) == pytest.approx(mean_s)


def test_the_slowest_role_is_compared_with_the_mean_of_the_roles() -> None:
    own = [[1.0, 1.0], [1.0, 1.0], [4.0, 4.0], [2.0, 2.0], [2.0, 6.0]]
    given = workers(own, [0, 0, 1, 1, 1], [4.2, 4.2])
    assert structural_loss(given, set()) == pytest.approx(3.0 - 2.0)
    short = replace(given, period_s=np.array([2.8, 2.8]))
    assert structural_loss(short, {2}) == pytest.approx(2.0 - 1.5)  # named ones are left out
    # Where even the slowest role waits for most of the step, work is hidden in transfers.
    assert structural_loss(replace(given, period_s=np.array([4.4, 4.4])), set()) == 0.0
    assert structural_loss(given, {2, 3, 4}) == 0.0  # a single role is left
    nothing = workers([[1.0], [np.nan]], [0, 1], [9.0])
    assert structural_loss(nothing, set()) == 0.0


@pytest.mark.parametrize(("queue_us", "launched"), [(90, 1.0), (150, 0.0)])
def test_who_starts_a_tenth_of_a_millisecond_after_its_enqueue_was_launched_late(
    queue_us: int, launched: float
) -> None:
    """Rank 3 is the last one in every step; the others have nothing queued."""
    late, queue = np.zeros((4, 40, 1)), np.zeros((4, 40, 1))
    late[3], queue[3] = 5e-3, queue_us * 1e-6
    columns = shared_job(late, queue)
    arrivals = measure_arrivals(columns, match_collectives(columns))
    last = measure_last(columns, measure_steps(columns, True), arrivals, 0.1)
    assert last.launched == pytest.approx(launched)


def test_agreement_is_the_correlation_of_both_halves_of_the_steps() -> None:
    """Own time over the role is the delay itself; the first step has no own time."""
    rng = np.random.default_rng(8)
    first = rng.exponential(2e-3, (4, 40))
    late = np.stack([first, 0.5 * first + rng.exponential(2e-3, (4, 40))], axis=2)
    columns = shared_job(late)
    arrivals = measure_arrivals(columns, match_collectives(columns))
    last = measure_last(columns, measure_steps(columns, True), arrivals, 0.1)
    over = late[:, 1:] - np.median(late[:, 1:], axis=0)
    expected = np.corrcoef(over[:, :, 0].ravel(), over[:, :, 1].ravel())[0, 1]
    assert last.agreement == pytest.approx(expected, abs=1e-3)
    assert last.by_hosts == pytest.approx(1.0), "hosts are as late as their GPUs"
    order = np.sort(late[:, 1:], axis=0)
    assert last.added == pytest.approx((order[-1] - order[-2]).max(axis=1).mean() / 0.1, rel=1e-3)


def test_pictures_show_ranks_in_their_order_whatever_the_order_of_their_files() -> None:
    late = np.zeros((4, 40, 1))
    late[3] = 0.01
    columns = shared_job(late)
    files = tuple(r._replace(global_rank=3 - at) for at, r in enumerate(columns.recorders))
    heat = blame_records(replace(columns, recorders=files), True, "test").heat
    assert heat is not None
    assert heat.rows == ("rank 0", "rank 1", "rank 2", "rank 3")
    assert heat.values[0].min() > heat.values[1:].max(), "the file of rank 0 is the last one"
