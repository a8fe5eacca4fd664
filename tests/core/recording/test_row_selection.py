"""Row selection: the published cases and our own."""

import numpy as np
import pytest
from tests.support.trace_events import MS, T0, US, events, join

from ingero.core.recording.event_columns import EventColumns
from ingero.core.recording.row_selection import BOOTSTRAP_NS, CallSampler, KeepPolicy, choose_rows

LATER = T0 + BOOTSTRAP_NS + 1
POLICY = KeepPolicy(T0)
FIRST = events("cudaLaunchKernel", duration=10 * US, at=LATER)  # the sample of this second


def kept(
    event: EventColumns,
    unusual: bool = False,
    active: frozenset[int] = frozenset({1000}),
    familiar: bool = False,
    policy: KeepPolicy = POLICY,
) -> bool:
    batch = join(FIRST, event)
    flags = np.array([False, unusual])
    sampled = CallSampler().choose(batch)
    return bool(choose_rows(batch, flags, sampled, np.array([False, familiar]), active, policy)[1])


@pytest.mark.parametrize(
    ("event", "unusual", "is_kept"),
    [
        (events("cudaLaunchKernel", duration=10 * US, at=LATER), False, False),
        (events("cudaLaunchKernel", duration=MS, at=LATER), True, True),
        (events("sched_wakeup", at=LATER), False, False),
        (events("sched_switch", at=LATER), False, True),
        (events("sched_switch", at=LATER, pid=9999), False, False),
        (events("mm_page_alloc", at=LATER), False, False),
        (events("mm_page_alloc", at=T0), True, False),
        (events("cudaStreamSync", at=LATER), False, True),
        (events("process_exec", at=LATER), False, True),
        (events("process_exit", at=LATER), False, True),
        (events("process_fork", at=LATER), False, True),
        (events("oom_kill", at=LATER), False, True),
        (events("sched_wakeup", at=T0 + 1), False, True),
        (events("block_read", duration=MS, at=LATER), False, False),
        (events("block_read", duration=11 * MS, at=LATER), False, True),
        (events("tcp_retransmit", at=LATER), False, True),
        (events("cudaLaunchKernel", duration=10 * US, at=LATER, ret=719), False, True),
    ],
)
def test_what_is_kept(event: EventColumns, unusual: bool, is_kept: bool) -> None:
    assert kept(event, unusual) is is_kept


def test_all_switches_count_while_no_process_uses_the_gpu() -> None:
    assert kept(events("sched_switch", at=LATER, pid=9999), active=frozenset())


def test_familiar_stacks_are_not_kept_again_unless_slow_or_failed() -> None:
    sync = events("cudaStreamSync", at=LATER)
    assert not kept(sync, familiar=True)
    assert kept(sync, unusual=True, familiar=True)
    assert kept(events("cudaStreamSync", at=LATER, ret=1), familiar=True)


def test_record_all_keeps_all_but_page_allocations() -> None:
    everything = KeepPolicy(T0, record_all=True)
    assert kept(events("sched_wakeup", at=LATER), policy=everything)
    assert not kept(events("mm_page_alloc", at=LATER), policy=everything)


def test_one_call_of_each_kind_and_second_is_a_sample() -> None:
    batch = join(
        events("cudaLaunchKernel", 5, 10 * US, at=LATER, step=300 * MS),
        events("cudaLaunchKernel", 2, US, at=LATER, pid=7),
    )
    sampler = CallSampler()
    assert sampler.choose(batch).tolist() == [True, False, False, False, True, True, False]
    assert not sampler.choose(events("cudaLaunchKernel", 3, US, at=LATER + 1, step=1)).any(), (
        "also across batches"
    )


def test_a_clock_that_is_set_back_neither_keeps_everything_nor_stops_the_samples() -> None:
    earlier = LATER - 3600 * 1000 * MS
    calls = events("cudaLaunchKernel", 5, 10 * US, at=earlier, step=US)
    sampler, none = CallSampler(), np.zeros(5, bool)
    assert sampler.choose(FIRST).tolist() == [True]
    sampled = sampler.choose(calls)
    assert sampled.tolist() == [True, False, False, False, False]
    assert (
        choose_rows(calls, none, sampled, none, frozenset({1000}), POLICY).tolist()
        == sampled.tolist()
    )
