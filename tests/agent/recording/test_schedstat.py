"""Waits for a CPU by cgroup: rows of `cgroup_schedstat`."""

import numpy as np

from ingero.agent.recording.aggregator import CountedRow
from ingero.agent.recording.schedstat import WINDOW_NS, CgroupWaits

MS = 1_000_000
T0 = 1_700_000_000 * 1000 * MS
FLOORS = np.array([0, 1 * MS, 10 * MS], np.int64)
CGROUPS = {1: 77, 2: 77, 3: 88, 4: 0}


def waits(pid: int, buckets: list[int], sum_ns: int, source: int = 3) -> CountedRow:
    count = sum(buckets)
    return CountedRow(
        pid, source, 1, count, count, sum_ns, 0, np.array(buckets, np.int64), FLOORS, True
    )


def test_processes_of_a_cgroup_are_added_up_per_window() -> None:
    cgroups = CgroupWaits(T0, CGROUPS.__getitem__)
    cgroups.add(
        [
            waits(1, [10, 0, 0], 5 * MS),
            waits(3, [1, 0, 0], 1),
            waits(4, [9, 9, 9], 9),
            waits(1, [7, 0, 0], 7, 1),
        ]
    )
    assert cgroups.due(T0 + WINDOW_NS - 1) == []
    cgroups.add([waits(1, [40, 0, 1], 35 * MS), waits(2, [0, 10, 0], 20 * MS)])
    end = T0 + WINDOW_NS
    assert cgroups.due(end) == [
        (77, 11_250_000, 55 * MS, 51, T0, end),
        (88, MS // 2, 1, 1, T0, end),
    ]
    cgroups.add([waits(1, [41, 0, 1], 36 * MS), waits(2, [0, 10, 0], 20 * MS)])
    assert cgroups.due(end + 5, is_last=True) == [(77, MS // 2, MS, 1, end, end + 5)]
    assert cgroups.due(end + 9, is_last=True) == []


def test_a_number_used_again_begins_at_zero() -> None:
    cgroups = CgroupWaits(T0, CGROUPS.__getitem__)
    cgroups.add([waits(1, [100, 0, 0], 100 * MS)])
    cgroups.due(T0 + WINDOW_NS)
    cgroups.add([waits(1, [0, 3, 0], 9 * MS)])
    [row] = cgroups.due(T0 + 2 * WINDOW_NS)
    assert row[2:4] == (9 * MS, 3)
