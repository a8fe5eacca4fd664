"""Ends of kernels that send and receive: nobody has left one before its partners came."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.other_shapes import context_ring
from tests.support.simulated_job import Fault, Noise, simulate

from ingero.contract.verdict import CauseClass
from ingero.core.blame.record_steps import measure_steps
from ingero.core.blame.records import blame_records
from ingero.core.collectives.columns import Collectives
from ingero.core.collectives.pairs.kernels import is_in_swap
from ingero.core.collectives.pairs.swap_ends import end_with_peers

ONE_KERNEL = Noise(one_kernel=True)
SHAPE = context_ring(4, 2, 2, ahead=False)
STEPS, ONSET = 360, 240


def ring(*faults: Fault, steps: int = 40, clock_s: float = 3.0) -> Collectives:
    return simulate(SHAPE, steps, faults, noise=ONE_KERNEL, clock_s=clock_s).columns


def own_times(columns: Collectives) -> np.ndarray:
    return np.asarray(np.nanmedian(measure_steps(columns, True).workers.own_s, axis=1))


def test_who_waits_for_a_slow_partner_does_not_work_for_longer() -> None:
    slow = ring(Fault(1, gpu=0.2))
    recorded, known = own_times(slow), own_times(end_with_peers(slow))
    assert recorded[0] > 1.04 * recorded[5], "the records alone blame the neighbour, too"
    others = np.delete(known, 1)
    assert others.max() < 1.03 * others.min()
    assert known[1] > 1.1 * others.max()


@pytest.mark.parametrize("later_ns", [0, 100_000_000])
def test_ends_never_move_forward_nor_into_the_next_kernel(later_ns: int) -> None:
    """Also where the sends and receives of a rank seem to be later than they can have been."""
    before = ring(Fault(2, host_s=0.01))
    shift_ns = np.where(is_in_swap(before) & (before.who == 2), later_ns, 0)
    before = replace(before, start_ns=before.start_ns + shift_ns, end_ns=before.end_ns + shift_ns)
    after = end_with_peers(before)
    assert (after.end_ns >= before.end_ns).all()
    assert (after.end_ns > before.end_ns).any()
    assert np.abs(after.entry_ns - before.entry_ns).max() <= 2  # rounded nanoseconds
    assert np.array_equal(
        after.end_ns != before.end_ns, (after.end_ns != before.end_ns) & is_in_swap(before)
    )
    for who in range(8):
        calls = np.flatnonzero((before.who == who) & is_in_swap(before))
        calls = calls[np.argsort(before.start_ns[calls])]
        kernel_ends, next_begins = after.end_ns[calls[:-2:2]], after.entry_ns[calls[2::2]]
        assert (kernel_ends <= next_begins).all()


def test_clocks_that_lie_apart_change_nothing() -> None:
    one, other = (ring(Fault(1, gpu=0.2), clock_s=clock_s) for clock_s in (0.0, 40.0))
    lengths = [end_with_peers(each).gpu_duration_ns for each in (one, other)]
    assert np.abs(lengths[0] - lengths[1]).max() < 50_000


def test_without_partners_a_kernel_ends_with_its_longest_call() -> None:
    columns = ring(Fault(1, gpu=0.2))
    alone = columns.take((columns.who == 0) & (columns.peer >= 0))
    kernel = np.repeat(np.arange(len(alone) // 2), 2)
    ends = np.zeros(len(alone) // 2, np.int64)
    np.maximum.at(ends, kernel, alone.end_ns)
    assert np.abs(end_with_peers(alone).end_ns - ends[kernel]).max() <= 2  # rounded nanoseconds


def test_sends_that_run_alone_are_no_swaps() -> None:
    columns = ring()
    assert is_in_swap(columns).sum() == (columns.peer >= 0).sum()
    assert not is_in_swap(columns.take(~columns.has_op({"Recv"}))).any()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault(5, gpu=0.12, first=ONSET), CauseClass.COMPUTE),
        (Fault(2, host_s=0.006, first=ONSET), CauseClass.HOST),
        (Fault(7, host_s=0.06, every=10, first=ONSET), CauseClass.HOST),
    ],
)
def test_the_slow_rank_of_a_ring_is_blamed_and_nobody_who_waits_for_it(
    fault: Fault, cause: CauseClass
) -> None:
    job = simulate(SHAPE, STEPS, [fault], noise=ONE_KERNEL, clock_s=3.0)
    answer = blame_records(job.columns, True, "test")
    assert [(each.rank, each.cause) for each in answer.culprits] == [(fault.rank, cause)]
    if fault.every == 1:
        assert answer.culprits[0].loss == pytest.approx(job.loss(ONSET), abs=0.01)
