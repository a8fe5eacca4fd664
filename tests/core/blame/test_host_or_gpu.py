"""Host or GPU: the cause follows from what was queued, and from when hosts enqueued."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.shared_job import shared_job

from ingero.contract.verdict import CauseClass
from ingero.core.blame.host_or_gpu import classify
from ingero.core.blame.record_steps import measure_steps
from ingero.core.blame.suspects import Suspect

HOST, COMPUTE, UNKNOWN = CauseClass.HOST, CauseClass.COMPUTE, CauseClass.UNKNOWN
MS = 1e-3
SUSPECT = Suspect(1, 0.1, 0.01, 8 * MS, 0.9, 1.0, None, (), 3)


def timed(
    late_ms: tuple[float, float], queue_ms: tuple[float, float], spread_ms: float = 0.0,
    suspect: Suspect = SUSPECT, *, is_partial: bool = False,
) -> CauseClass:  # fmt: skip
    """Return the cause where rank 1 is late at two places, and has other queues than its peers.

    Peers have 10 ms of work queued; the queues of some of them differ by `spread_ms`.
    """
    late = np.zeros((6, 30, 2))
    late[1] = np.array(late_ms) * MS
    queue = np.full(late.shape, 10 * MS)
    queue[[2, 3], :, 0] += spread_ms * MS
    queue[[4, 5], :, 0] -= spread_ms * MS
    queue[1] = np.array(queue_ms) * MS
    columns = shared_job(late, queue)
    return classify(columns, measure_steps(columns, True), suspect, True, is_partial)


@pytest.mark.parametrize(
    ("queue_ms", "cause"), [(0.0, HOST), (1.15, HOST), (1.25, COMPUTE), (18.0, COMPUTE)]
)
def test_a_gpu_without_work_waited_for_its_host(queue_ms: float, cause: CauseClass) -> None:
    """A queue below 5 % of 24 ms of own time counts as none; peers have as little."""
    late = np.zeros((6, 30, 2))
    late[1, :, 1] = 8 * MS
    queue = np.full(late.shape, 10 * MS)
    queue[:, :, 1] = 2 * MS
    queue[1, :, 1] = queue_ms * MS
    # With a longer queue than its peers, its host came earlier than theirs by the difference.
    queue[1, :, 0] = 40 * MS
    columns = shared_job(late, queue)
    found = classify(columns, measure_steps(columns, True), SUSPECT, True)
    assert found is cause


@pytest.mark.parametrize(
    ("late_ms", "queue_ms", "cause"),
    [
        pytest.param((0, 8), (10, 10), HOST, id="its host is as late as its GPU"),
        pytest.param((0, 8), (10, 18), COMPUTE, id="its host is in time"),
        pytest.param((0, 8), (10, 13.9), HOST, id="just more than half is due to the host"),
        pytest.param((0, 8), (10, 14.1), COMPUTE, id="just less than half"),
        pytest.param((4, 4), (14, 11.9), HOST, id="it begins where half is due to the host"),
        pytest.param((4, 4), (14, 12.1), COMPUTE, id="nowhere half is due to the host"),
        pytest.param((1, 9), (10, 19), COMPUTE, id="too small a part of the excess"),
        pytest.param((3, 9), (10, 19), HOST, id="a fifth of the excess begins there"),
    ],
)
def test_the_host_is_the_cause_where_it_is_late_by_most_of_the_excess(
    late_ms: tuple[float, float], queue_ms: tuple[float, float], cause: CauseClass
) -> None:
    assert timed(late_ms, queue_ms) is cause


@pytest.mark.parametrize(("queue_ms", "cause"), [(11.5, HOST), (11.7, COMPUTE), (18.0, COMPUTE)])
def test_where_hosts_of_peers_are_as_late_without_harm_nearly_all_must_be_due_to_the_host(
    queue_ms: float, cause: CauseClass
) -> None:
    """Hosts differ by 3 ms: within three sigmas, four fifths of 8 ms are needed."""
    assert timed((0, 8), (10, queue_ms), spread_ms=3.0) is cause


@pytest.mark.parametrize(("spread_ms", "cause"), [(1.2, HOST), (1.4, COMPUTE)])
def test_a_host_is_clearly_late_beyond_three_sigmas_of_its_peers(
    spread_ms: float, cause: CauseClass
) -> None:
    """It is 6 ms late, three quarters of the excess; a sigma is 1.8 ms or 2.1 ms."""
    assert timed((0, 8), (10, 12), spread_ms) is cause


@pytest.mark.parametrize(
    ("late_ms", "queue_ms", "cause"),
    [
        pytest.param((3, 9), (10, 19), UNKNOWN, id="a fifth of the excess begins there"),
        pytest.param((0, 8), (10, 10), HOST, id="its host is as late as its GPU"),
        pytest.param((0, 8), (10, 18), COMPUTE, id="its host is in time"),
    ],
)
def test_without_records_of_some_a_delay_explains_no_longer_ones(
    late_ms: tuple[float, float], queue_ms: tuple[float, float], cause: CauseClass
) -> None:
    assert timed(late_ms, queue_ms, is_partial=True) is cause


def test_only_stalls_are_compared_where_a_rank_stalls() -> None:
    late = np.zeros((6, 30, 1))
    late[1, ::5] = 8 * MS
    queue = np.full(late.shape, 10 * MS)
    queue[1, ::5] = 18 * MS  # in time when it stalls
    queue[1, 1::5] = 0.0  # and late otherwise
    columns = shared_job(late, queue)
    steps = measure_steps(columns, True)
    at = tuple(i for i, number in enumerate(steps.workers.steps) if number % 5 == 0)
    assert classify(columns, steps, replace(SUSPECT, stalls=at), True) is COMPUTE


def test_a_rank_without_peers_or_without_excess_is_not_classified_as_host() -> None:
    late = np.zeros((2, 30, 1))
    columns = shared_job(late, 10 * MS)
    steps = measure_steps(columns, True)
    alone = replace(steps, workers=replace(steps.workers, cohort=np.array([0, 1])))
    assert classify(columns, alone, SUSPECT, True) is UNKNOWN
    assert classify(columns, steps, SUSPECT, True) is COMPUTE


def by_enqueue(
    offset_ms: float, excess_ms: float, other_ms: float = 0.0, **change: object
) -> CauseClass:
    """Return the cause where rank 1 enqueues later than the others by `offset_ms`."""
    queue = np.full((6, 30, 1), 20 * MS)
    queue[1] -= offset_ms * MS
    queue[3] -= other_ms * MS
    columns = shared_job(np.zeros((6, 30, 1)), queue)
    steps = measure_steps(columns, False)
    suspect = replace(SUSPECT, excess_s=excess_ms * MS, **change)  # type: ignore[arg-type]
    return classify(columns, steps, suspect, False)


@pytest.mark.parametrize(
    ("offset_ms", "excess_ms", "cause"),
    [
        (8, 8, HOST),
        (8, 15.9, HOST),
        (8, 16.1, COMPUTE),
        (8, 5.4, HOST),
        (8, 5.3, UNKNOWN),  # later by more than one and a half times the excess
        (0, 8, COMPUTE),
        (-4, 8.1, COMPUTE),
        (-4, 7.9, UNKNOWN),
        (8, 0, UNKNOWN),
    ],
)
def test_without_gpu_times_the_enqueue_decides_as_far_as_clocks_agree(
    offset_ms: float, excess_ms: float, cause: CauseClass
) -> None:
    assert by_enqueue(offset_ms, excess_ms) is cause


@pytest.mark.parametrize(("other_ms", "cause"), [(3.9, HOST), (4.1, UNKNOWN), (-4.1, UNKNOWN)])
def test_enqueue_times_of_the_others_must_agree_within_half_the_excess(
    other_ms: float, cause: CauseClass
) -> None:
    assert by_enqueue(8, 8, other_ms) is cause


def test_pairs_of_ranks_have_no_median_to_compare_with() -> None:
    columns = shared_job(np.zeros((2, 30, 1)), 20 * MS)
    steps = measure_steps(columns, False)
    assert classify(columns, steps, replace(SUSPECT, excess_s=8 * MS), False) is UNKNOWN


def test_the_enqueue_in_stalls_decides_where_a_rank_stalls() -> None:
    queue = np.full((4, 30, 1), 20 * MS)
    queue[1, ::5] -= 8 * MS
    columns = shared_job(np.zeros((4, 30, 1)), queue)
    steps = measure_steps(columns, False)
    at = tuple(i for i, number in enumerate(steps.workers.steps) if number % 5 == 0)
    suspect = replace(SUSPECT, excess_s=8 * MS)
    assert classify(columns, steps, replace(suspect, stalls=at), False) is HOST
    assert classify(columns, steps, suspect, False) is COMPUTE
