"""Causal chains about CUDA graphs: published vectors, and processes kept apart."""

import pytest
from tests.support.chains import SECOND, find, names
from tests.support.trace_events import MS, PID, T0, US, events, join

from ingero.core.recording.event_columns import EventColumns


def captures(end_ret: int, end_duration: int) -> EventColumns:
    return join(
        events("graphBeginCapture", at=T0),
        events("graphEndCapture", duration=end_duration, ret=end_ret, at=T0 + MS),
    )


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        (captures(1, 5 * MS), ["graph-capture-oom"]),
        (captures(1, MS // 2), ["graph-capture-oom", "graph-capture-warmup"]),
        (captures(0, MS // 2), []),
        (events("graphBeginCapture", at=T0 - 9 * SECOND), ["graph-capture-warmup"]),
        (
            join(
                events("graphLaunch", duration=MS // 2, at=T0 + 10 * MS),
                events("sched_switch", 10, US, at=T0 + MS, step=MS),
            ),
            ["graph-launch-cpu-contention"],
        ),
        (
            join(
                events("graphLaunch", 100, at=T0 - 8 * SECOND, step=10 * MS, arg1=0xE),
                events("graphLaunch", 10, at=T0 - 3 * SECOND, step=200 * MS, arg1=0xE),
            ),
            ["graph-freq-anomaly-0xe"],
        ),
        (events("graphLaunch", 50, at=T0 - SECOND, step=20 * MS, arg1=0xE), []),
        (events("graphInstantiate", at=T0 - 40 * SECOND, arg1=0xE), ["graph-never-launched-0xe"]),
        (
            join(
                events("graphInstantiate", at=T0 - 40 * SECOND, arg1=0xE),
                events("graphLaunch", at=T0 - 39 * SECOND, arg1=0xE),
            ),
            [],
        ),
    ],
    ids=["C27", "C28", "C29", "C30", "C31", "C32", "C33", "never launched", "launched once"],
)  # fmt: skip
def test_graphs(evidence: EventColumns, found: list[str]) -> None:
    assert names(find(evidence)) == found
    assert find(evidence, pid=PID + 1) == [], "C34: another process has no findings"


OTHER = PID + 1


@pytest.mark.parametrize(
    "evidence",
    [
        join(
            events("graphBeginCapture", at=T0),
            events("graphEndCapture", duration=5 * MS, ret=1, at=T0, pid=OTHER),
        ),
        join(
            events("graphLaunch", duration=MS // 2, at=T0 + 10 * MS),
            events("sched_switch", 10, US, at=T0 + MS, step=MS, pid=OTHER),
        ),
        join(  # two forks of one program have the same handles: one fast and one slow, both steady
            events("graphLaunch", 300, at=T0 - 8 * SECOND, step=10 * MS, arg1=0xE),
            events("graphLaunch", 20, at=T0 - 4 * SECOND, step=200 * MS, arg1=0xE, pid=OTHER),
        ),
    ],
    ids=["begin here, end there", "switches of the other", "same handle"],
)
def test_graph_rules_keep_processes_apart_must_39(evidence: EventColumns) -> None:
    assert find(evidence) == []
    assert find(evidence, pid=PID) == find(evidence, pid=OTHER) == []


def test_a_launch_in_another_process_is_no_launch_of_this_graph_must_39() -> None:
    evidence = join(
        events("graphInstantiate", at=T0 - 40 * SECOND, arg1=0xE),
        events("graphLaunch", at=T0 - 39 * SECOND, arg1=0xE, pid=OTHER),
    )
    assert [(chain.name, chain.pid) for chain in find(evidence)] == [
        ("graph-never-launched-0xe", PID)
    ]
