"""Whether a late GPU or its host is the reason, from how late both are and how far ahead it is."""

import numpy as np
import pytest
from tests.support.verdict_tables import world

from ingero.contract.verdict import CauseClass
from ingero.core.verdict.cause_class import _class_by_lateness
from ingero.core.verdict.loss import Loss
from ingero.core.verdict.table import MemberRows

COMPUTE, HOST = CauseClass.COMPUTE, CauseClass.HOST
MS = 1e-3
PEERS = np.array([1, 2])
LOSS = Loss(0.1, 0.01, is_late=False, usd_per_hour=None)


def late(
    start: float, enqueue: float, near: float, far: float, *,
    queue: tuple[float, float] = (10.0, 10.0), queue_noise: float = 0.5, noise: float = 0.1,
    idle: float = 0.5, steps: int = 16, slow: int = 16,
) -> MemberRows:  # fmt: skip
    """Return rows whose first member is late by so many ms; `queue` is the usual and present one.

    Its GPU was `idle` for a part of the delay. Hosts differ by nature: this one always is a
    millisecond late. Only the last `slow` steps are slow.
    """
    rows = world().rows
    rows.late_frames[0] = steps
    usual = (0.0, 1.0, 1.0, 1.0)
    columns = (rows.start_late_s, rows.enqueue_late_s, rows.near_late_s, rows.far_late_s)
    for column, before, more in zip(columns, usual, (start, enqueue, near, far), strict=True):
        column[0, :steps] = before * MS
        column[0, steps - slow : steps] = (before + more) * MS
    rows.usual_late_s[0, :4], rows.late_noise_s[0] = np.array(usual) * MS, noise * MS
    rows.baseline_queue_s[0], rows.queue_s[0, :steps] = queue[0] * MS, queue[1] * MS
    rows.queue_noise_s[0] = queue_noise * MS
    rows.idle_s[PEERS], rows.idle_s[0] = MS, (1.0 + idle * start) * MS
    rows.span_s[0] = 40 * MS
    return rows


def test_a_host_that_sleeps_is_as_late_as_its_gpu_wherever_it_is() -> None:
    assert _class_by_lateness(late(4.0, 4.0, 4.0, 4.0), 0, PEERS, LOSS) is HOST


def test_a_host_that_is_usually_late_by_as_much_is_no_reason() -> None:
    rows = late(1.0, 0.0, 0.0, 0.0)
    assert _class_by_lateness(rows, 0, PEERS, LOSS) is COMPUTE
    rows.usual_late_s[0, 1:] = 0.0
    assert _class_by_lateness(rows, 0, PEERS, LOSS) is HOST


@pytest.mark.parametrize(("queue", "cause"), [(100.0, COMPUTE), (60.0, HOST)])
def test_a_host_a_step_ahead_is_a_reason_only_if_it_loses_its_lead(
    queue: float, cause: CauseClass
) -> None:
    rows = late(4.0, 40.0, 40.0, 40.0, queue=(100.0, queue))
    assert _class_by_lateness(rows, 0, PEERS, LOSS) is cause


@pytest.mark.parametrize(("enqueue", "cause"), [(2.39, COMPUTE), (2.41, HOST)])
def test_a_host_that_is_late_by_much_less_than_its_gpu_is_no_reason(
    enqueue: float, cause: CauseClass
) -> None:
    assert _class_by_lateness(late(4.0, enqueue, 4.0, 4.0), 0, PEERS, LOSS) is cause


@pytest.mark.parametrize(
    ("enqueue", "near", "cause"),
    [
        (4.5, 2.5, COMPUTE), (4.5, 2.7, HOST),  # late where it is far ahead, hardly where it is not
        (4.0, 2.0, HOST), (4.0, 0.5, COMPUTE),  # it waits for its GPU elsewhere in the step
    ],
)  # fmt: skip
def test_what_counts_is_the_host_where_it_is_least_ahead(
    enqueue: float, near: float, cause: CauseClass
) -> None:
    assert _class_by_lateness(late(4.0, enqueue, near, near), 0, PEERS, LOSS) is cause


@pytest.mark.parametrize(
    ("enqueue", "queue", "noise", "cause"),
    [
        (2.1, 9.5, 0.1, COMPUTE),  # it launches the work that makes its GPU slow
        (2.1, 7.4, 0.1, HOST),  # that was all it was ahead by
        (2.1, 9.5, 1.2, None),  # within the noise
        (1.8, 9.5, 1.2, HOST),  # ... and about as late as its GPU
        (1.4, 9.5, 1.6, None),  # how late the host is, is not known
        (1.5, 9.5, 0.1, HOST),
    ],
)
def test_a_host_far_ahead_that_is_later_than_its_gpu_launches_more(
    enqueue: float, queue: float, noise: float, cause: CauseClass | None
) -> None:
    rows = late(1.4, enqueue, enqueue, enqueue, queue=(10.0, queue))
    rows.late_noise_s[0, 1] = noise * MS
    assert _class_by_lateness(rows, 0, PEERS, LOSS) is cause


@pytest.mark.parametrize(
    ("far", "usual_queue", "cause"),
    [(6.0, 10.0, COMPUTE), (4.5, 10.0, HOST), (6.0, 3.0, HOST)],
)
def test_a_host_that_falls_behind_along_the_step_launches_more(
    far: float, usual_queue: float, cause: CauseClass
) -> None:
    """Without a queue, that is a slow host."""
    assert (
        _class_by_lateness(late(4.0, 4.0, 4.0, far, queue=(usual_queue,) * 2), 0, PEERS, LOSS)
        is cause
    )


@pytest.mark.parametrize(("queue", "cause"), [(70.0, COMPUTE), (40.0, HOST)])
def test_a_long_queue_that_wanders_must_run_empty_before_a_gpu_waits(
    queue: float, cause: CauseClass
) -> None:
    rows = late(6.0, 30.0, 30.0, 30.0, queue=(80.0, queue), queue_noise=20.0)
    assert _class_by_lateness(rows, 0, PEERS, LOSS) is cause


def test_a_gpu_that_never_waits_for_its_host_is_late_by_itself() -> None:
    assert _class_by_lateness(late(4.0, 4.0, 4.0, 4.0, idle=0.19), 0, PEERS, LOSS) is COMPUTE
    assert _class_by_lateness(late(4.0, 4.0, 4.0, 4.0, idle=0.21), 0, PEERS, LOSS) is HOST
    assert _class_by_lateness(late(4.0, 4.0, 4.0, 4.0, idle=float("nan")), 0, PEERS, LOSS) is HOST


@pytest.mark.parametrize(("idle", "cause"), [(0.74, COMPUTE), (0.76, HOST)])
def test_a_gpu_that_waits_for_its_host_all_the_time_is_not_late_by_itself(
    idle: float, cause: CauseClass
) -> None:
    rows = late(4.0, 6.0, 6.0, 6.0, idle=idle)
    assert _class_by_lateness(rows, 0, PEERS, LOSS) is cause
    rows = late(6.0, 30.0, 30.0, 30.0, queue=(80.0, 70.0), queue_noise=20.0, idle=idle)
    rows.span_s[0] = 0.1
    assert _class_by_lateness(rows, 0, PEERS, LOSS) is cause


@pytest.mark.parametrize(("queue", "cause"), [(41.0, COMPUTE), (39.0, HOST)])
def test_a_host_that_is_a_whole_step_ahead_of_its_gpu_is_no_reason(
    queue: float, cause: CauseClass
) -> None:
    rows = late(2.3, 2.3, 2.3, 2.3, queue=(40.0, queue))
    assert _class_by_lateness(rows, 0, PEERS, LOSS) is cause


def test_steps_before_the_fault_do_not_decide() -> None:
    assert _class_by_lateness(late(4.0, 4.0, 4.0, 4.0, steps=24, slow=5), 0, PEERS, LOSS) is HOST
    assert _class_by_lateness(late(4.0, 0.0, 0.0, 0.0, steps=24, slow=5), 0, PEERS, LOSS) is COMPUTE


def test_few_steps_and_small_delays_say_nothing() -> None:
    assert _class_by_lateness(late(4.0, 4.0, 4.0, 4.0, steps=3, slow=3), 0, PEERS, LOSS) is None
    assert _class_by_lateness(late(4.0, 4.0, 4.0, 4.0, steps=4, slow=4), 0, PEERS, LOSS) is HOST
    assert _class_by_lateness(late(4.0, 4.0, 4.0, 4.0, steps=30, slow=3), 0, PEERS, LOSS) is None
    assert _class_by_lateness(late(0.05, 0.05, 0.05, 0.05), 0, PEERS, LOSS) is None
    assert _class_by_lateness(late(-4.0, -4.0, -4.0, -4.0), 0, PEERS, LOSS) is None
    rows = late(4.0, 4.0, 4.0, 4.0)
    rows.span_s[0] = 0.201  # the job loses 20 ms of its steps, and waits for it elsewhere
    assert _class_by_lateness(rows, 0, PEERS, LOSS) is None
    rows.span_s[0] = 0.199
    assert _class_by_lateness(rows, 0, PEERS, LOSS) is HOST
    rows.usual_late_s[0] = np.nan
    assert _class_by_lateness(rows, 0, PEERS, LOSS) is None
