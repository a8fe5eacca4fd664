"""Throughput of an operation over time."""

import pytest
from tests.support.trace_events import MS, T0, summary

from ingero.core.chains.throughput import ThroughputWatch

SECOND = 1000 * MS


@pytest.mark.parametrize("set_back_s", [0, 3600])
def test_a_drop_is_found_also_after_the_clock_was_set_back(set_back_s: int) -> None:
    watch, count, drops = ThroughputWatch(), 0, []
    for second in range(20):
        count += 100 if second < 15 else 40
        shift = set_back_s * SECOND if second >= 10 else 0
        drop = watch.observe(
            T0 + second * SECOND - shift, summary("cudaLaunchKernel", count, MS, MS)
        )
        drops += [(second, round(drop.percent))] if drop else []
    assert drops == [(second, 60) for second in range(15, 20)]
