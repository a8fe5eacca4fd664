"""One incident, one finding; its severity follows the time lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.trace_events import MS, PID, T0, US, events, join

from ingero.contract.chain import Chain, Severity
from ingero.core.chains.evidence import SystemSample
from ingero.core.chains.finder import ChainFinder
from ingero.core.chains.incidents import (
    INCIDENT_GAP_NS,
    _advice,
    lost_ms_per_s,
    severity_of,
)
from ingero.core.chains.neighbours import Host
from ingero.core.recording.event_columns import EventColumns
from ingero.core.recording.latency import SlowCalls, TraceStats

SECOND = 1000 * MS
CALLS = ("cudaLaunchKernel", "cuLaunchKernel", "cuMemAlloc", "cudaMemcpyAsync", "cudaStreamSync")


def storm(at: int, pid: int = PID, off_ns: int = 50 * MS) -> EventColumns:
    """Five operations become slow while another process has the CPU."""
    slow = [
        join(
            events(op, 60, 20 * US, at=at + number * US, step=5 * MS, pid=pid),
            events(op, 6, off_ns, at=at + 400 * MS + number * MS, step=60 * MS, pid=pid),
        )
        for number, op in enumerate(CALLS)
    ]
    switches = events(
        "sched_switch", 6, off_ns, at=at + 400 * MS + off_ns, step=60 * MS, pid=pid, arg1=812, ret=1
    )
    return join(*slow, switches)


class Trace:
    def __init__(self) -> None:
        self.finder, self.stats = ChainFinder(host=Host(8)), TraceStats()

    def second(self, at: int, *parts: EventColumns, cpu: float = 99.0) -> list[Chain]:
        happened = join(*parts)
        self.stats.add(happened)
        self.finder.add(happened)
        self.finder.add_sample(SystemSample(at + SECOND, cpu, 40.0, 9000, 0, 12.0))
        return self.finder.find(at + SECOND, self.stats.summaries())


def test_the_same_advice_about_the_same_processes_is_given_once() -> None:
    def advised(*lines: str) -> Chain:
        return Chain(
            name="x", severity=Severity.LOW, summary="", root_cause="", explanation="",
            recommendations=lines, timeline=(),
        )  # fmt: skip

    first, other = "lower a (pid 1), b (pid 2): renice -p 1 2", "lower a (pid 1): renice -p 1"
    turned = "lower b (pid 2), a (pid 1): renice -p 2 1"
    assert _advice([advised(first, "pin"), advised(turned, "pin", other)]) == (first, "pin", other)


def test_a_storm_on_the_cpu_is_one_finding_with_its_symptoms() -> None:
    [chain] = Trace().second(T0, storm(T0))
    assert "high CPU utilization" in chain.root_cause
    shown = {entry.op for entry in chain.timeline}
    assert shown >= set(CALLS), "every slow call is a symptom"
    others = set(CALLS) - {chain.cuda_op}
    assert all(op in chain.summary.split("; also slow: ")[1] for op in others)
    assert len(chain.recommendations) == len(set(chain.recommendations))


def test_another_process_is_another_finding() -> None:
    found = Trace().second(T0, storm(T0), storm(T0, pid=2000, off_ns=30 * MS))
    assert len({chain.pid for chain in found}) == len(found)


def test_an_incident_keeps_its_name_while_it_lasts() -> None:
    trace = Trace()
    names = {
        chain.name
        for second in range(3)
        for chain in trace.second(T0 + second * SECOND, storm(T0 + second * SECOND))
    }
    assert len(names) == 1
    [later] = trace.second(
        T0 + INCIDENT_GAP_NS + 10 * SECOND,
        storm(T0 + INCIDENT_GAP_NS + 10 * SECOND, off_ns=2 * MS),
    )
    assert later.severity.lower() in later.name, "another incident has a name of its own"


@pytest.mark.parametrize(
    ("off_ns", "severity"),
    [(120 * MS, Severity.HIGH), (20 * MS, Severity.MEDIUM), (2 * MS, Severity.LOW)],
)
def test_severity_follows_the_time_lost(off_ns: int, severity: Severity) -> None:
    [chain] = Trace().second(T0, storm(T0, off_ns=off_ns))
    assert chain.severity is severity
    assert "This cost the process" in chain.explanation


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 2000)), max_size=30),
    st.integers(0, 30),
)
def test_time_lost_counts_each_moment_once(calls: list[tuple[int, int]], split: int) -> None:
    """Compared with counting every millisecond by itself."""
    spans = [(T0 + start * MS, T0 + (start + length) * MS) for start, length in calls]
    parts = [spans[:split], spans[split:]]
    slow = [
        SlowCalls(
            np.array([a for a, _ in part], np.int64), np.array([b for _, b in part], np.int64)
        )
        for part in parts
    ]
    busy = {at for start, length in calls for at in range(start, start + length) if at < 10_000}
    lost = lost_ms_per_s(slow, T0 + 10 * SECOND, 10 * SECOND)
    assert lost == pytest.approx(len(busy) / 10)
    assert severity_of(lost) is severity_of(len(busy) / 10)
