"""Own time along the calls that ranks wait for: others are alike, also those who wait for one."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.blame_tables import step_calls
from tests.support.more_shapes import draw_more
from tests.support.simulated_job import Fault, simulate

from ingero.core.blame.record_steps import RecordSteps, measure_steps
from ingero.core.blame.recorded.chained import _longest_chain, measure_chained
from ingero.core.collectives.columns import Collectives, Floats

SLOW = 5


@pytest.fixture(scope="module")
def slow() -> Collectives:
    """Return records of two groups that gather keys while gradients are reduced between them."""
    drawn = draw_more("context gather", 22)
    return simulate(drawn.shape, 150, [Fault(SLOW, gpu=0.10)], noise=drawn.noise).columns


def chained(columns: Collectives) -> tuple[RecordSteps, Floats]:
    measured = measure_steps(columns, exact_ends=True)
    found = measure_chained(columns, measured)
    assert found is not None
    return measured, found.own_s


def test_only_the_slow_rank_works_for_longer(slow: Collectives) -> None:
    measured, own_s = chained(slow)
    others = np.arange(len(own_s)) != SLOW
    levels = np.nanmedian(own_s, axis=1) / np.nanmedian(measured.workers.period_s)
    assert np.ptp(levels[others]) < 0.01
    assert levels[others].mean() == pytest.approx(1.0, abs=0.01), "a role takes the usual step"
    assert levels[SLOW] - levels[others].mean() == pytest.approx(0.09, abs=0.02)
    gaps = np.nanmedian(measured.workers.own_s, axis=1)
    assert np.ptp(gaps[others]) > 0.05 * gaps.mean(), "the sum of gaps is longer in the group"


def test_spoilt_times_spoil_their_own_steps_only(slow: Collectives) -> None:
    before = chained(slow)[1]
    rows = np.flatnonzero(slow.who == 2)[200:1200:200]
    end_ns, length = slow.end_ns.copy(), slow.gpu_duration_ns.copy()
    end_ns[rows] += 1_000_000_000
    length[rows] = 50_000_000
    after = chained(replace(slow, end_ns=end_ns, gpu_duration_ns=length))[1]
    differs = np.abs(after - before) > 0.02 * np.nanmedian(before)
    assert np.count_nonzero(differs[2]) <= 2 * len(rows)
    assert np.nanmax(after[2]) < 2 * np.nanmedian(before)


@pytest.mark.parametrize(("times", "is_known"), [(1.7, True), (2.6, False)])
def test_own_times_of_more_than_two_steps_are_spoilt(
    slow: Collectives, times: float, is_known: bool
) -> None:
    measured = measure_steps(slow, exact_ends=True)
    period_s = measured.workers.period_s.copy()
    period_s[70] /= times
    found = measure_chained(
        slow, replace(measured, workers=replace(measured.workers, period_s=period_s))
    )
    assert found is not None
    known = np.isfinite(found.own_s)
    assert known[:, 70].all() == known[:, 70].any() == is_known
    assert known[:, 69].all()


def test_a_chain_goes_along_what_is_followed_and_is_unknown_without_calls() -> None:
    """Place 1 follows the flag, which ends 0.1 s after the step before; place 2 follows place 1."""
    start = np.array([[[0.0, 0.4, 1.0], [2.1, 2.6, 3.5]]])
    end = start + np.array([0.0, 0.2, 1.0])
    follows = np.zeros((3, 3))
    follows[2, 1] = 1.0
    chain = _longest_chain(step_calls(start, end), follows, 0)
    assert chain.tolist() == pytest.approx([0.4 + 0.4, 0.1 + 0.5 + 0.7])
    alone = step_calls(start, end, slot=np.full((1, 3), -1))
    assert np.isnan(_longest_chain(alone, follows, 0)).tolist() == [True, True]
