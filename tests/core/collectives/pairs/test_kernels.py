"""Own times of stages that send and receive in one kernel, whose end is noted too early."""

import numpy as np
import pytest
from tests.support.job_shapes import swapping_pipeline
from tests.support.simulated_job import Fault, Noise, SimulatedJob, simulate

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.live_steps import LiveSteps
from ingero.core.collectives.pairs.kernels import is_in_swap

US = 1_000
START = 10**18
NOISE = Noise(gpu=0.005, hiccups=0.0, eager_sends=True, one_kernel=True)
STEPS, CALM = 120, 60


def own_times(job: SimulatedJob, rank: int) -> tuple[float, float]:
    """Return the usual own time of a rank before and since the fault."""
    rows = job.columns.take(job.columns.who == rank)
    rows = rows.take(np.argsort(rows.end_ns, kind="stable"))
    stream, third = LiveSteps(), len(rows) // 3
    stream.take(rows.take(np.arange(third)))  # the pattern is found in these
    own = stream.take(rows.take(np.arange(third, len(rows)))).times.own_s
    slow = STEPS - CALM - 5
    return float(np.median(own[:-slow])), float(np.median(own[-slow:]))


@pytest.mark.parametrize("slow", [1, 6])
@pytest.mark.parametrize("in_pairs", [False, True])
def test_own_time_of_a_stage_has_nothing_of_the_wait_for_a_slow_neighbour(
    slow: int, in_pairs: bool
) -> None:
    shape = swapping_pipeline(in_pairs=in_pairs)
    fault = Fault(slow, gpu=0.3, first=CALM)
    job = simulate(shape, STEPS, [fault], noise=NOISE, seed=slow, flag_every=0)
    assert job.loss(CALM) > 0.1
    for rank in range(shape.ranks):
        before, since = own_times(job, rank)
        if rank == slow:
            assert since > 1.15 * before
        else:
            assert since == pytest.approx(before, rel=0.03)


def calls(*rows: tuple[str, int, int, int, int]) -> Collectives:
    """Return calls of rank 1: operation, peer, communicator, enqueue, start (-1: untimed)."""
    op, peer, comm, enqueued, started = zip(*rows, strict=True)
    start = START + np.array(enqueued) * US
    is_timed = np.array(started) >= 0
    end = np.where(is_timed, START + np.array(started) * US + 50 * US, start)
    return from_columns(
        {
            "who": np.zeros(len(rows)), "comm": np.array(comm, np.uint64),
            "seq": np.full(len(rows), -1), "op": [("Recv", "Send").index(each) for each in op],
            "rank": np.ones(len(rows)), "nranks": np.full(len(rows), 8), "peer": peer,
            "size_bytes": np.full(len(rows), 1 << 20), "start_ns": start, "end_ns": end,
            "gpu_duration_ns": np.where(is_timed, 50 * US, -1),
        },
        ("Recv", "Send"),
        (Recorder("j", "n", 1),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "is_swap"),
    [
        ([("Send", 2, 7, 0, 900), ("Recv", 2, 7, 2, 900)], True),
        ([("Recv", 0, 7, 0, 900), ("Send", 2, 7, 2, 901)], True),  # from one stage to the next
        ([("Send", 2, 7, 0, 900), ("Recv", 2, 7, 2, -1)], True),  # one of them was not timed
        ([("Send", 2, 7, 0, 900), ("Recv", 2, 7, 120, 960)], False),  # two launches
        ([("Send", 2, 7, 0, 900), ("Recv", 2, 7, 12, 960)], False),  # two kernels
        ([("Send", 2, 7, 0, 900), ("Recv", 2, 8, 2, 900)], False),  # two communicators
        ([("Send", 2, 7, 0, 900), ("Send", 0, 7, 2, 900)], False),  # nothing to wait for
        ([("Send", 1, 7, 0, 900), ("Recv", 1, 7, 2, 900)], False),  # to itself
        ([("Send", 2, 7, 0, 900)], False),
    ],
)
def test_a_swap_is_one_kernel_that_sends_and_receives(
    rows: list[tuple[str, int, int, int, int]], is_swap: bool
) -> None:
    assert is_in_swap(calls(*rows)).tolist() == [is_swap] * len(rows)
