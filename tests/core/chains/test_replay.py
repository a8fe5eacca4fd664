"""Chains derived from a recording, in event time."""

from tests.support.trace_events import MS, T0, US, events, join

from ingero.core.chains.evidence import SystemSample
from ingero.core.chains.neighbours import Host
from ingero.core.chains.replay import replay

SECOND = 1000 * MS


def test_a_long_recording_is_explained_by_the_samples_of_its_first_minutes_too() -> None:
    """Two hours of samples: more than a live finder keeps at a time."""
    calls = join(
        events("cudaLaunchKernel", 200, 10 * US, step=5 * MS),
        events("cudaLaunchKernel", 10, 5 * MS, at=T0 + SECOND, step=20 * MS),
    )
    busy = [SystemSample(T0 + SECOND, 99.0, 10.0, 9999, 0, 1.0)]
    calm = [
        SystemSample(T0 + second * SECOND, 5.0, 10.0, 9999, 0, 1.0) for second in range(10, 7200)
    ]
    causes = [chain.root_cause for _, chain in replay(calls, busy + calm, Host())]
    assert causes == ["high CPU utilization"]
    assert causes == [chain.root_cause for _, chain in replay(calls, calm + busy, Host())]
