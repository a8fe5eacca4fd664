"""Where a replica becomes slow, and what is compared with what."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.engine_reports import BUSY, engine

from ingero.contract.measurements.engines import EngineReport
from ingero.core.inference.baseline import Baselines, Quantile, StepBaseline, batch_bucket
from ingero.core.inference.replicas import Replica, SlowReplica, find_slow

NOW_S = 100.0


def replica(number: int, reports: Sequence[EngineReport], baselines: Baselines) -> Replica:
    """A replica that reported once per second until now."""
    made = Replica(f"n{number}", engine(number), None)
    for back_s, report in zip(reversed(range(len(reports))), reports, strict=True):
        made.take(report, NOW_S - back_s, baselines)
    return made


def steps(*of_each: float, samples: int = 3, now_s: float = NOW_S) -> list[SlowReplica]:
    """Replicas whose steps take that long; return those that are slow."""
    baselines = Baselines()
    made = [
        replica(number, [replace(BUSY, step_s=step_s)] * samples, baselines)
        for number, step_s in enumerate(of_each)
    ]
    return find_slow(made, baselines, now_s)


def test_a_quarter_more_than_the_median_of_the_others_is_slow() -> None:
    (slow,) = steps(0.02, 0.02, 0.02, 0.025)
    assert (slow.key, slow.step_s, slow.others_s, slow.peers, slow.doubt) == (
        ("n3", 8003, None), 0.025, 0.02, 3, "",
    )  # fmt: skip
    assert slow.loss == pytest.approx(0.2)
    assert not slow.against_itself
    assert steps(0.02, 0.02, 0.02, 0.0249) == []


def test_a_slow_replica_is_far_from_the_others_for_their_own_spread() -> None:
    """With a spread of 10 %, 1.4826 x 4 of it must be passed: about 1.76 times."""
    assert steps(0.018, 0.02, 0.022, 0.034) == []
    assert len(steps(0.018, 0.02, 0.022, 0.0365)) == 1


def test_two_of_five_may_be_slow_and_two_of_four_are_not_named() -> None:
    assert len(steps(0.02, 0.02, 0.02, 0.04, 0.04)) == 2
    assert steps(0.02, 0.02, 0.04, 0.04) == []


def test_three_samples_of_the_last_twenty_seconds_are_compared() -> None:
    assert steps(0.02, 0.02, 0.02, 0.04, samples=2) == []
    assert len(steps(0.02, 0.02, 0.02, 0.04, now_s=NOW_S + 18)) == 1
    assert steps(0.02, 0.02, 0.02, 0.04, now_s=NOW_S + 19) == []


def test_only_equal_batches_are_compared_and_tokens_count_before_requests() -> None:
    baselines = Baselines()
    by_requests = replace(BUSY, step_tokens=None)
    others = [replica(number, [by_requests] * 3, baselines) for number in range(3)]
    slow = replica(3, [replace(by_requests, step_s=0.04)] * 3, baselines)
    assert [each.key for each in find_slow([*others, slow], baselines, NOW_S)] == [slow.key]
    large = replica(3, [replace(by_requests, running=64.0, step_s=0.04)] * 3, baselines)
    assert find_slow([*others, large], baselines, NOW_S) == []
    told = replica(3, [replace(BUSY, running=64.0, step_s=0.04)] * 3, baselines)
    assert [each.key for each in find_slow([*others, told], baselines, NOW_S)] == [told.key]


def test_the_size_that_most_others_have_decides() -> None:
    """At the rare size it is slow against one, at the common size it is as fast as all."""
    baselines = Baselines()
    small, large = BUSY, replace(BUSY, step_tokens=64.0, step_s=0.05)
    others = [replica(number, [small] * 3, baselines) for number in range(3)]
    others.append(replica(4, [large] * 3, baselines))
    mixed = [*[replace(large, step_s=0.2)] * 3, *[small] * 3]
    assert find_slow([*others, replica(3, mixed, baselines)], baselines, NOW_S) == []


def test_a_cache_that_is_a_fifth_fuller_is_a_doubt() -> None:
    baselines = Baselines()
    others = [replica(number, [replace(BUSY, kv_usage=0.25)] * 3, baselines) for number in range(3)]
    for usage, doubt in (
        (0.45, "its KV cache is 45% full, those of the others 25%: longer contexts may explain "
               "longer steps"),
        (0.44, ""),
        (None, ""),
    ):  # fmt: skip
        slow = replica(3, [replace(BUSY, kv_usage=usage, step_s=0.04)] * 3, baselines)
        assert [each.doubt for each in find_slow([*others, slow], baselines, NOW_S)] == [doubt]


def pair(before_s: float, now_s: float, other_s: float, warm: int = 30) -> list[SlowReplica]:
    """Two replicas; the first took `before_s` for a step until lately."""
    baselines = Baselines()
    known = baselines.of((("n0", 8000, None), 100, batch_bucket(8.0)))
    for _ in range(warm):
        known.judge(before_s)
    mine = replica(0, [replace(BUSY, step_s=now_s)] * 3, baselines)
    other = replica(1, [replace(BUSY, step_s=other_s)] * 3, baselines)
    return find_slow([mine, other], baselines, NOW_S)


def test_of_two_replicas_the_own_past_decides() -> None:
    (slow,) = pair(0.02, 0.04, 0.02)
    assert (slow.key[0], slow.others_s, slow.peers, slow.against_itself) == (
        "n0", pytest.approx(0.02), 1, True,
    )  # fmt: skip
    assert slow.loss == pytest.approx(0.5)
    assert pair(0.02, 0.04, 0.022) != []
    assert pair(0.02, 0.04, 0.0221) == []  # the other is no longer what this one was
    assert pair(0.02, 0.04, 0.02, warm=26) == []  # three of its own samples are learned, too


def test_a_quantile_is_unknown_before_five_samples_and_then_the_middle() -> None:
    estimate = Quantile(0.5)
    for sample in (5.0, 1.0, 4.0, 2.0):
        estimate.add(sample)
        assert estimate.value != estimate.value
    estimate.add(3.0)
    assert estimate.value == 3.0


def test_the_published_example_of_the_algorithm() -> None:
    """Twenty observations and the median that Jain and Chlamtac computed from them, 1985."""
    estimate = Quantile(0.5)
    for sample in (0.02, 0.15, 0.74, 3.39, 0.83, 22.37, 10.15, 15.43, 38.62, 15.92, 34.60, 10.28,
                   1.47, 0.40, 0.05, 11.39, 0.27, 0.42, 0.09, 11.37):  # fmt: skip
        estimate.add(sample)
    assert estimate.value == pytest.approx(4.44, abs=0.005)


@pytest.mark.parametrize("p", [0.25, 0.5, 0.75, 0.9])
def test_a_quantile_of_a_walk_through_all_ranks_is_that_rank(p: float) -> None:
    estimate = Quantile(p)
    for sample in range(1000):
        estimate.add(float((sample * 617) % 1000))
    assert estimate.value == pytest.approx(1000 * p, abs=12)


def test_the_mean_forgets_at_one_twentieth_per_sample() -> None:
    baseline = StepBaseline()
    baseline.judge(1.0)
    assert (baseline.count, baseline.mean_s) == (1, 1.0)
    baseline.judge(2.0)
    assert baseline.mean_s == pytest.approx((0.95 * 1 + 2) / 1.95)
    for _ in range(200):
        baseline.judge(2.0)
    assert baseline.mean_s == pytest.approx(2.0, abs=1e-3)


def test_an_outlier_is_half_more_than_the_percentile() -> None:
    baseline = StepBaseline()
    assert [baseline.judge(1.0) for _ in range(30)] == [None] * 30
    assert baseline.judge(1.49) == pytest.approx(1.49)
    assert baseline.count == 31
    assert baseline.judge(3.0) is not None
    assert baseline.count == 31


def test_batches_of_one_bucket_differ_by_less_than_a_third() -> None:
    assert [batch_bucket(batch) for batch in (0.0, 1.0, 4 / 3, 16 / 9, 8.0)] == [0, 0, 1, 2, 7]
