"""What ranks wait for, by hand: queues of a stream, scatter, and gaps between calls."""

import numpy as np
import pytest
from tests.support.blame_tables import step_calls

from ingero.contract.verdict import CauseClass
from ingero.core.blame.recorded.at_most import _are_over, _excess
from ingero.core.blame.recorded.dependence import (
    MIN_SAMPLES,
    NEARLY_ALL,
    _scatter,
    are_queued,
    find_followed,
    measure_gaps,
)
from ingero.core.blame.recorded.step_calls import StepCalls

NAN = float("nan")


def test_spoilt_times_are_cut_and_unknown_ones_do_not_scatter() -> None:
    """99 % of the times are 9 and 11: what is further away by more than both differ is cut."""
    known = [9.0] * 100 + [11.0] * 100 + [-1000.0, 1000.0]
    table = np.array([[*known, 777.0]])
    is_known = np.array([[True] * len(known) + [False]])
    assert _scatter(table, is_known)[0].tolist() == [-1.0] * 100 + [1.0] * 100 + [-3.0, 3.0, 0.0]


@pytest.mark.parametrize(("queued", "is_mostly"), [(0, False), (2, False), (3, True), (4, True)])
def test_a_place_is_queued_where_most_of_its_calls_wait_for_their_stream(
    queued: int, is_mostly: bool
) -> None:
    """Four steps; the last place comes behind the one before it, and nobody calls at place 1."""
    start = np.tile([0.0, NAN, 1.0, 2.0], (1, 4, 1))
    end = start + 1.0
    enqueue = start.copy()
    enqueue[0, :queued, 3] = 1.5
    calls = step_calls(start, end, enqueue=enqueue, stream=np.array([[0, 2, 1, 1]]))
    assert are_queued(calls, [0]).tolist() == [False, False, False, is_mostly]
    assert are_queued(calls, [0], NEARLY_ALL)[3] == (queued == 4)
    apart = step_calls(start, end, enqueue=enqueue)
    assert not are_queued(apart, [0]).any(), "each call has a stream of its own"


def test_a_call_follows_its_queue_or_what_its_worker_waited_for() -> None:
    """Place 2 starts anew after place 1, place 3 worked meanwhile, and place 4 is queued behind."""
    steps = 2 * MIN_SAMPLES
    waited = np.zeros((1, steps, 5))
    waited[0, :, 1:4] = np.random.default_rng(5).uniform(0.1, 0.3, (steps, 3))
    start = np.zeros((1, steps, 5))
    end = start + 0.01
    start[0, :, 1] = 0.5
    end[0, :, 1] = 0.7 + waited[0, :, 1]
    start[0, :, 2] = end[0, :, 1] + 0.5
    end[0, :, 2] = start[0, :, 2] + waited[0, :, 2]
    start[0, :, 3] = end[0, :, 1] - waited[0, :, 1] + 2.0
    end[0, :, 3] = start[0, :, 3] + waited[0, :, 3]
    start[0, :, 4] = end[0, :, 3]
    end[0, :, 4] = start[0, :, 4] + 0.1
    enqueue = start.copy()
    enqueue[0, :, 4] -= 0.05
    end[0, 7, 1] = waited[0, 8, 2] = NAN  # one of the two is unknown there, so neither counts
    calls = step_calls(start, end, enqueue=enqueue, wait=waited, stream=np.array([[0, 1, 2, 3, 3]]))
    follows = find_followed(calls, [0], is_uneven=False)
    expected = np.zeros((5, 5))
    expected[2, 1] = expected[4, 3] = 1.0
    assert follows.tolist() == expected.tolist()
    assert find_followed(calls, [0], True, expected) is expected, "uneven steps show it together"


def test_gaps_are_unknown_where_what_a_place_follows_is_missing() -> None:
    """Place 2 follows place 1, and place 1 the flag; the first step has nothing before it."""
    start = np.array([[[1.0, 2.0, 4.0], [11.0, 12.0, 14.0]]])
    end = start + 0.5
    end[0, 1, 1] = NAN
    follows = np.zeros((3, 3))
    follows[2, 1] = 1.0
    gaps = measure_gaps(step_calls(start, end), follows, 0)
    np.testing.assert_allclose(gaps, [[NAN, 0.5, 1.5], [6.5, 0.5, NAN]])


def hidden_work(slow_s: float, peer_s: float, peer_before_s: float = 0.1) -> StepCalls:
    """Return two steps in which both come to place 1, and the last calls wait in their queue.

    The slow worker comes to place 1 after 0.2 s and to the last one after `slow_s`, its peer after
    `peer_before_s` and `peer_s`.
    """
    start = np.array([[[0.0, 0.2, slow_s]] * 2, [[0.0, peer_before_s, peer_s]] * 2])
    start += np.array([0.0, 10.0])[:, None]
    end = start + 0.05
    end[:, :, 0] = start[:, :, 0]  # flags take no time, and the next step begins at once
    end[:, :, 1] = start[:, :, 2]
    end[:, 0, 2] = 10.0
    enqueue = start.copy()
    enqueue[:, :, 2] -= 0.01
    return step_calls(start, end, enqueue=enqueue, stream=np.array([[0, 1, 1]] * 2))


@pytest.mark.parametrize(
    ("calls", "excess_s"),
    [
        pytest.param(hidden_work(0.5, 0.4), 0.1, id="what shows is less than was estimated"),
        pytest.param(hidden_work(0.5, 0.3), 0.15, id="half of the 0.3 s between its calls"),
        pytest.param(hidden_work(0.5, 0.4, 0.2), 0.0, id="it is not slower where that shows"),
        pytest.param(hidden_work(0.5, 0.3, 0.0), 0.0, id="peers take no time where that shows"),
    ],
)
def test_work_in_a_queue_is_as_much_slower_as_elsewhere(calls: StepCalls, excess_s: float) -> None:
    follows = np.zeros((3, 3))
    excess = _excess(calls, follows, 0, [1], CauseClass.COMPUTE)
    assert excess[:, 2].tolist() == pytest.approx([excess_s] * 2)
    by_host = _excess(calls, follows, 0, [1], CauseClass.HOST)
    assert by_host[:, 2].tolist() == [0.0] * 2, "its host was in time: the call waited"


def test_calls_that_took_no_time_of_the_others_are_over() -> None:
    """Of three steps, the other one takes time in the first, and left no record in the last."""
    start = np.zeros((2, 3, 2))
    end = start + 0.1
    end[1, :, 1] = [0.1, 0.0, NAN]
    over = _are_over(step_calls(start, end), 0)
    assert over.tolist() == [[False, False], [False, True], [False, True]]
