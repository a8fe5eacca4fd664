"""Work that is uneven: whoever comes last changes from step to step."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.shared_job import measured, shared_job

from ingero.core.blame.recorded.uneven import LastArrivers, measure_last
from ingero.core.collectives.columns import Collectives

MS = 1e-3


def last_of(columns: Collectives, step_s: float = 0.1) -> LastArrivers:
    steps, arrivals = measured(columns)
    return measure_last(columns, steps, arrivals, step_s)


def test_whoever_comes_last_adds_the_largest_advance_of_a_step() -> None:
    """In each step a rank in turn is 4 ms late at the first place, 2 ms at the second."""
    late = np.zeros((4, 24, 2))
    for step in range(24):
        late[step % 4, step] = [4 * MS, 2 * MS]
    last = last_of(shared_job(late))
    assert last.added == pytest.approx(0.04, rel=1e-3)


def test_what_hosts_launched_late_is_not_uneven_work() -> None:
    """A kernel that starts right after its enqueue waited for its host."""
    late = np.zeros((4, 40, 2))
    late[np.arange(40) % 4, np.arange(40)] = 4 * MS
    queue = np.where(late > 0, 0.0, 3 * MS)
    launched = last_of(shared_job(late, queue))
    assert launched.launched == pytest.approx(1.0)
    assert not launched.is_uneven
    queued = last_of(shared_job(late, np.where(late == 0, 0.0, 3 * MS)))
    assert queued.launched == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("launched", "agreement", "is_uneven"),
    [(0.49, 0.3, True), (0.5, 0.9, False), (0.0, 0.29, False), (0.0, np.nan, True)],
)
def test_work_is_uneven_if_both_halves_of_a_step_agree(
    launched: float, agreement: float, is_uneven: bool
) -> None:
    assert LastArrivers(0.1, launched, agreement).is_uneven == is_uneven


def test_the_halves_of_a_step_agree_where_the_work_is_uneven() -> None:
    rng = np.random.default_rng(2)
    uneven = np.repeat(rng.exponential(3 * MS, (4, 60, 1)), 4, axis=2)
    apart = rng.exponential(MS, (4, 60, 4))
    assert last_of(shared_job(uneven)).agreement == pytest.approx(1.0, abs=0.05)
    assert abs(last_of(shared_job(apart)).agreement) < 0.3
    assert np.isnan(last_of(shared_job(uneven[:, :, :1])).agreement)


def test_without_arrivals_nobody_is_last() -> None:
    columns = shared_job(np.zeros((4, 12, 1)))
    untimed = replace(columns, gpu_duration_ns=np.full_like(columns.gpu_duration_ns, -1))
    last = last_of(untimed)
    assert (last.added, last.launched) == (0.0, 0.0)
    assert np.isnan(last.agreement)


def test_steps_that_a_rank_did_not_record_do_not_make_its_halves_agree() -> None:
    """Two of six ranks left records of the last steps only."""
    rng = np.random.default_rng(5)
    rows = shared_job(rng.exponential(2 * MS, (6, 120, 4)))
    part = rows.take((rows.who > 1) | (rows.end_ns > np.quantile(rows.end_ns, 0.7)))
    steps, arrivals = measured(part)
    for exact_ends in (True, False):
        last = measure_last(part, steps, arrivals, 0.1, exact_ends)
        assert abs(last.agreement) < 0.3
