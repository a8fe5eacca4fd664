"""Causal chains: every published vector, and the overlap in time and process that we add."""

import pytest
from tests.support.chains import SECOND, find, names
from tests.support.trace_events import HEALTHY, MS, PID, SLOW, T0, US, events, join, summary

from ingero.contract.chain import Chain, Severity
from ingero.core.chains import recommendations
from ingero.core.chains.evidence import SystemSample
from ingero.core.chains.finder import CgroupWaitTimes, ChainFinder
from ingero.core.chains.neighbours import Host
from ingero.core.chains.replay import replay
from ingero.core.chains.rules import window_for
from ingero.core.chains.throughput import ThroughputWatch
from ingero.core.recording.event_columns import EventColumns
from ingero.core.recording.latency import OpSummary, TraceStats


def layers(chain: Chain) -> list[str]:
    return list(dict.fromkeys(str(entry.layer) for entry in chain.timeline))


def system(
    cpu: float = 0, mem: float = 0, avail: int = 9999, swap: int = 0, load: float = 0
) -> SystemSample:
    return SystemSample(T0, cpu, mem, avail, swap, load)


def test_preemption_explains_a_tail() -> None:
    """C1, F153, F142."""
    [chain] = find(events("sched_switch", 10, 5 * MS), [SLOW])
    assert (chain.name, chain.severity, chain.tail_ratio) == (
        "tail-medium-cudaStreamSync",
        Severity.MEDIUM,
        100.0,
    )
    assert chain.summary == "cudaStreamSync p99=100 ms (100.0x p50) — 10 sched_switch events"
    assert chain.root_cause == "10 sched_switch events"
    assert chain.timeline[0].detail.startswith("10 context switches (50 ms off-CPU)")
    assert chain.recommendations[0] == recommendations.pin(PID, Host(8))


@pytest.mark.parametrize(
    ("switches", "op"), [(3, SLOW), (20, HEALTHY)], ids=["C2 too few", "C3 no tail"]
)
def test_no_chain_without_enough_cause_or_symptom(switches: int, op: OpSummary) -> None:
    assert find(events("sched_switch", switches, 5 * MS), [op]) == []


def test_out_of_memory_needs_no_symptom() -> None:
    """C4."""
    [chain] = find(events("oom_kill", arg1=4242), [HEALTHY])
    assert (chain.name, chain.severity, chain.timeline[0].op) == ("oom", Severity.HIGH, "oom_kill")
    assert "4242" in chain.summary


def test_page_allocations_count_in_bytes() -> None:
    """C5: 100 × 16 MiB is above 1 GiB, 50 are not."""
    op = summary("cudaMalloc", 100, MS, 50 * MS)
    [chain] = find(events("mm_page_alloc", 100, arg0=16 * 2**20), [op])
    assert chain.root_cause == "large host memory allocations"
    assert chain.recommendations == (recommendations.PAGES,)
    assert find(events("mm_page_alloc", 50, arg0=16 * 2**20), [op]) == []


def test_a_host_under_pressure_in_table_order() -> None:
    """C6."""
    op = summary("cudaStreamSync", 100, 16 * MS, 142 * MS)
    [chain] = find(events("sched_switch", 20, 2 * MS), [op], system(94, 97, 512, 2100, 12.1))
    assert (chain.severity, chain.tail_ratio, layers(chain)) == (
        Severity.HIGH,
        8.9,
        ["SYSTEM", "HOST", "CUDA"],
    )
    assert chain.root_cause.split(" + ") == [
        "high CPU utilization", "memory pressure", "swap activity", "high system load",
        "20 sched_switch events",
    ]  # fmt: skip
    assert chain.recommendations == (
        recommendations.SWAP,
        recommendations.pin(PID, Host(8)),
        recommendations.lower_priority((), Host(8)),
    )


def test_a_host_without_pressure_is_not_blamed() -> None:
    """C7."""
    assert (
        find(ops=[summary("cudaLaunchKernel", 100, 10 * US, 20 * US)], system=system(30, 50)) == []
    )


def io(op: str, count: int, duration: int, sectors: int = 8) -> EventColumns:
    return events(op, count, duration, arg0=sectors)


@pytest.mark.parametrize(
    ("evidence", "severity", "advice"),
    [
        (io("block_read", 60, 10 * MS, 256), "MEDIUM", (recommendations.READS,)),
        (
            io("block_write", 5, 200 * MS),
            "HIGH",
            (recommendations.SLOW_DISK, recommendations.WRITES),
        ),
        (
            join(io("block_read", 15, 10 * MS), io("block_write", 40, 10 * MS)),
            "MEDIUM",
            (recommendations.WRITES,),
        ),
        (
            join(io("block_read", 59, 5 * MS), io("block_read", 1, 30 * MS)),
            "MEDIUM",
            (recommendations.SLOW_DISK, recommendations.READS),
        ),
        (
            join(io("block_read", 55, 10 * MS), io("block_read", 1, 80 * MS)),
            "HIGH",
            (recommendations.SLOW_DISK, recommendations.READS),
        ),
    ],
    ids=["C8", "C11", "C12", "C13", "C14"],
)
def test_disk_explains_a_tail(
    evidence: EventColumns, severity: str, advice: tuple[str, ...]
) -> None:
    [chain] = find(evidence, [SLOW])
    assert (chain.severity, chain.root_cause, chain.recommendations) == (
        severity,
        "heavy block I/O",
        advice,
    )
    assert layers(chain) == ["IO", "CUDA"]


def test_disk_detail_counts_and_measures() -> None:
    [chain] = find(io("block_read", 60, 10 * MS, 256), [SLOW])
    assert (
        chain.timeline[0].detail
        == "60 I/O ops (60 reads, 0 writes), 600 ms total, 7.5 MB, peak 10 ms"
    )


@pytest.mark.parametrize(
    ("evidence", "op"),
    [(io("block_read", 100, 50 * MS), HEALTHY), (io("block_read", 10, 100 * US), SLOW)],
    ids=["C9 no symptom", "C10 too little"],
)
def test_disk_is_not_blamed(evidence: EventColumns, op: OpSummary) -> None:
    assert find(evidence, [op]) == []


def test_retransmissions_stand_alone_and_explain() -> None:
    """C15, C16."""
    assert names(find(events("tcp_retransmit", 20), [HEALTHY])) == ["tcp-retransmit-medium"]
    both = find(events("tcp_retransmit", 120), [SLOW])
    assert names(both) == ["tail-high-cudaStreamSync"], "one incident, one finding"


def test_sockets_need_calls_and_bytes() -> None:
    """C17, C18."""
    [chain] = find(events("net_send", 120, arg1=20 * 1024), [SLOW])
    assert (chain.timeline[0].op, chain.timeline[0].detail) == (
        "socket_io",
        "120 socket ops (2.3 MB)",
    )
    assert chain.recommendations == (recommendations.SOCKETS,)
    assert find(events("net_recv", 50, arg1=20 * 1024), [SLOW]) == []


def test_without_a_symptom_only_the_burst_is_reported() -> None:
    """C19."""
    evidence = join(
        events("sched_switch", 25, MS), io("block_write", 70, 35 * MS), events("tcp_retransmit", 60)
    )  # fmt: skip
    assert names(find(evidence, [HEALTHY], system(95, 98, swap=2048))) == ["tcp-retransmit-medium"]


def test_noisy_neighbour() -> None:
    """C20, C21."""
    own = events("sched_switch", 20, 10 * MS, cgroup=7)
    peer = events("sched_switch", 20, MS // 2, pid=5, cgroup=8)
    [chain] = find(join(own, peer), pid=PID)
    assert chain.name == "noisy-neighbor-high"
    assert "20.0x" in chain.summary
    assert find(own, pid=PID) == []


@pytest.mark.parametrize(
    ("waits", "names_found"),
    [
        ({7: (10 * MS, 20), 8: (MS // 2, 20)}, ["noisy-neighbor-high"]),
        ({7: (3 * MS, 20), 8: (MS, 20), 9: (MS, 20)}, ["noisy-neighbor-medium"]),
        ({7: (MS // 2, 20), 8: (MS // 100, 20)}, []),
        ({7: (10 * MS, 9), 8: (MS // 2, 20)}, []),
        ({7: (10 * MS, 20), 8: (MS // 2, 9)}, []),
        ({7: (MS, 20), 8: (10 * MS, 20)}, []),
    ],
    ids=[
        "C20",
        "three times",
        "too short to matter",
        "few of its own",
        "few of others",
        "the neighbour waits",
    ],
)
def test_noisy_neighbour_from_waits_of_all_cgroups_must_37(
    waits: dict[int, tuple[int, int]], names_found: list[str]
) -> None:
    finder = ChainFinder(0, Host(8))
    assert names(finder.find(T0, [], waits=CgroupWaitTimes(waits, frozenset({7})))) == names_found


def snapshots(counts: list[int], switches: int, op: OpSummary) -> list[list[str]]:
    """Return the names found at each snapshot, one second apart; the last two have switches."""
    finder = ChainFinder(0, Host())
    found = []
    for second, count in enumerate(counts):
        now = T0 + second * SECOND
        if switches and second >= 5:
            finder.add(events("sched_switch", switches, MS, at=now))
        seen = OpSummary(op.key, count, op.p50_ns, op.p99_ns, pid=op.pid)
        found.append(
            [
                f"{chain.name} {chain.summary.split(' — ')[0].split()[-1]}"
                for chain in finder.find(now, [seen])
            ]
        )
    return found


LAUNCH = summary("cudaLaunchKernel", 0, 10 * US, 20 * US)
RISING = [100, 200, 300, 400, 500]


def test_falling_throughput() -> None:
    """C22–C25: allowed from the sixth snapshot on, and only with a cause."""
    half = ["drop-medium-cudaLaunchKernel 50%"]
    assert snapshots([*RISING, 550, 600], 10, LAUNCH) == [[], [], [], [], [], half, half]
    most = ["drop-high-cudaLaunchKernel 70%"]
    assert snapshots([*RISING, 530, 560], 10, LAUNCH)[5:] == [most, most]
    assert snapshots([*RISING, 550, 600], 0, LAUNCH) == [[]] * 7
    assert snapshots([5, 10, 15, 20, 25, 27, 29], 10, LAUNCH) == [[]] * 7


def test_an_operation_with_a_tail_has_no_second_chain() -> None:
    """C26."""
    assert [name.split()[0] for name in snapshots([*RISING, 550, 600], 10, SLOW)[-1]] == [
        "tail-medium-cudaStreamSync"
    ]


def test_evidence_of_the_whole_window_counts_for_a_drop() -> None:
    watch = ThroughputWatch()
    for second, count in enumerate([*RISING, 550]):
        drop = watch.observe(T0 + second * SECOND, OpSummary((1, 3), count, 1, 1, pid=PID))
    assert drop is not None
    assert (drop.peak_per_s, drop.current_per_s, drop.percent) == (100, 50, 50)


@pytest.mark.parametrize(
    ("workload", "window_s"),
    [("training", 10), ("inference", 0.5), ("unknown", 10), ("", 10), ("bogus", 10)],
)
def test_window_follows_the_workload(workload: str, window_s: float) -> None:
    """C35."""
    assert window_for(workload) == window_s * 1e9


# Not published: the cause must overlap the slow calls and belong to the same process.


def slow_calls(at: int, pid: int = PID) -> EventColumns:
    fast = events("cudaStreamSync", 200, MS, at=T0, step=5 * MS, pid=pid)
    return join(fast, events("cudaStreamSync", 6, 60 * MS, at=at, step=70 * MS, pid=pid))


def switches_during(at: int, pid: int = PID, ret: int = 1) -> EventColumns:
    """Return switches that each end inside a slow call that begins at `at`."""
    return events(
        "sched_switch", 6, 55 * MS, at=at + 57 * MS, step=70 * MS, pid=pid, arg1=812, ret=ret
    )


def chains_of(*parts: EventColumns) -> list[Chain]:
    return [chain for _, chain in replay(join(*parts), [], Host(4, {812: "rsync"}))]


def test_preemption_during_the_slow_calls_is_the_cause_and_names_the_preemptor() -> None:
    [chain] = chains_of(slow_calls(T0 + 2 * SECOND), switches_during(T0 + 2 * SECOND))
    assert chain.name == "tail-medium-cudaStreamSync"
    assert chain.confidence == 1.0
    assert chain.recommendations[1].startswith(
        "Lower the priority of rsync (pid 812): renice -n 19 -p 812 ("
    )


def test_preemption_at_another_time_is_no_cause() -> None:
    assert chains_of(slow_calls(T0 + 5 * SECOND), switches_during(T0 + 2 * SECOND)) == []


def test_preemption_of_another_process_is_no_cause() -> None:
    assert chains_of(slow_calls(T0 + 2 * SECOND), switches_during(T0 + 2 * SECOND, pid=77)) == []


def test_sleeping_is_not_contention() -> None:
    assert chains_of(slow_calls(T0 + 2 * SECOND), switches_during(T0 + 2 * SECOND, ret=2)) == []


def test_disk_traffic_of_another_process_is_named_as_such() -> None:
    at = T0 + 2 * SECOND
    writes = events("block_write", 300, 4 * MS, at=at + 5 * MS, step=MS, pid=812, arg0=8)
    [chain] = chains_of(slow_calls(at), writes)
    assert chain.root_cause == "heavy block I/O by rsync (pid 812)"
    assert chain.recommendations[-1].startswith(
        "Let the disk traffic of rsync (pid 812) wait: ionice -c 3 -p 812 ("
    )


def test_system_pressure_counts_only_near_the_slow_calls() -> None:
    calls = slow_calls(T0 + 5 * SECOND)
    busy_then = SystemSample(T0 + SECOND, 99.0, 10.0, 9999, 0, 1.0)
    busy_now = SystemSample(T0 + 5 * SECOND + 100 * MS, 99.0, 10.0, 9999, 0, 1.0)
    assert replay(calls, [busy_then], Host()) == []
    [(_, chain)] = replay(calls, [busy_then, busy_now], Host())
    assert (chain.name, chain.root_cause) == ("tail-medium-cudaStreamSync", "high CPU utilization")


def test_old_evidence_leaves_the_window() -> None:
    finder = ChainFinder()
    finder.add(events("sched_switch", 10, MS))
    assert names(finder.find(T0 + 5 * SECOND, [SLOW])) == ["tail-medium-cudaStreamSync"]
    assert finder.find(T0 + 11 * SECOND, [SLOW]) == []


def test_same_input_same_output() -> None:
    parts = (slow_calls(T0 + 2 * SECOND), switches_during(T0 + 2 * SECOND))
    assert chains_of(*parts) == chains_of(*parts)


def test_stats_and_finder_agree_on_threads() -> None:
    """Published recorders store the thread id in the pid column of a context switch."""
    calls = events("cudaStreamSync", 200, MS, step=5 * MS, tid=1001)
    slow = events("cudaStreamSync", 6, 60 * MS, at=T0 + 2 * SECOND, step=70 * MS, tid=1001)
    switched = events(
        "sched_switch", 6, 55 * MS, at=T0 + 2 * SECOND + 57 * MS, step=70 * MS, pid=1001, arg1=812
    )
    stats, finder = TraceStats(), ChainFinder()
    for part in (calls, slow, switched):
        stats.add(part)
        finder.add(part)
    assert names(finder.find(T0 + 3 * SECOND, stats.summaries())) == ["tail-medium-cudaStreamSync"]
