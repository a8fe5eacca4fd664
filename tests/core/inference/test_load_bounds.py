"""Where KV pressure, a growing queue and uneven ranks begin, to the sample."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_reports import BUSY, ENGINE

from ingero.core.inference.baseline import Baselines
from ingero.core.inference.pressure import growing_queue, kv_pressure, uneven_ranks
from ingero.core.inference.replicas import Replica

NOW_S = 100.0


def reporting(reports: Sequence[dict[str, Any]], rank: int | None = None) -> Replica:
    """A replica that reported once per second until now."""
    replica = Replica("n", replace(ENGINE, rank=rank), None)
    for back_s, changes in zip(reversed(range(len(reports))), reports, strict=True):
        replica.take(replace(BUSY, **changes), NOW_S - back_s, Baselines())
    return replica


def pressed(*usage: float | None, **more: Any) -> str:
    return kv_pressure(reporting([{"kv_usage": each, **more} for each in usage]), NOW_S)


def test_pressure_needs_three_samples_of_a_cache_that_is_nine_tenths_full() -> None:
    assert pressed(0.9, 0.9, preemptions_per_s=1.0) == ""
    assert pressed(0.9, 0.9, None, preemptions_per_s=1.0) == ""
    assert pressed(0.9, 0.9, 0.9, preemptions_per_s=1.0) == (
        "the KV cache is 90% full; 1.0 preemptions per second"
    )
    assert pressed(0.89, 0.89, 1.0, preemptions_per_s=1.0) == ""


def test_pressure_is_told_by_preemptions_and_by_paused_requests() -> None:
    both = pressed(0.95, 0.95, 0.95, preemptions_per_s=0.5, paused=2.0)
    assert both == "the KV cache is 95% full; 0.5 preemptions per second, 2 requests paused"
    changing = [{"kv_usage": 0.95, "paused": held} for held in (1.0, 4.0, 0.0)]
    assert kv_pressure(reporting(changing), NOW_S).endswith("; 4 requests paused")
    rates = [{"kv_usage": 0.95, "preemptions_per_s": rate} for rate in (0.0, 3.0, 0.0)]
    assert kv_pressure(reporting(rates), NOW_S).endswith("; 1.0 preemptions per second")


def test_pressure_of_more_than_fifteen_seconds_ago_is_over() -> None:
    before = [{"kv_usage": 0.95, "preemptions_per_s": 1.0}] * 3
    calm = {"kv_usage": None}
    assert kv_pressure(reporting([*before, *[calm] * 13]), NOW_S) != ""
    assert kv_pressure(reporting([*before, *[calm] * 14]), NOW_S) == ""


def queued(*waiting: float | None, **more: Any) -> str:
    return growing_queue(reporting([{"waiting": each, **more} for each in waiting]), NOW_S)


def thirds(first: float, middle: float, last: float, count: int = 6) -> list[float]:
    return [first] * count + [middle] * count + [last] * count


def test_a_queue_grows_by_half_to_at_least_eight_requests() -> None:
    assert queued(*thirds(6, 7, 9)) == (
        "the queue grew from 6 to 9 requests in 17 s, because the batch is full"
    )
    assert queued(*thirds(6, 7, 8.9)) == ""  # less than half more
    assert queued(*thirds(0, 5, 8)) != ""
    assert queued(*thirds(0, 5, 7.9)) == ""
    assert queued(*thirds(0, 9, 8)) == ""  # it shrinks again
    assert queued(*thirds(6, 5, 9)) == ""


def test_a_queue_is_judged_over_fifteen_seconds_and_nine_samples() -> None:
    steady = thirds(0, 5, 20)
    assert queued(*steady[:16]) != ""
    assert queued(*thirds(0, 5, 20, 5)) == ""  # fifteen samples are fourteen seconds
    few = [each if number % 2 else None for number, each in enumerate(steady)]
    assert queued(*few) != ""
    assert queued(*few[:-1], None) == ""  # eight of them are known
    assert queued(*[*[50.0] * 6, *[None] * 30], *steady) == queued(*[*[None] * 13], *steady)


def test_the_reason_is_the_larger_of_the_two_that_the_engine_gives() -> None:
    grown = thirds(0, 5, 20)
    assert queued(*grown, waiting_capacity=5.0, waiting_deferred=5.0).endswith(
        "for capacity: the batch is full"
    )
    assert "defers" in queued(*grown, waiting_capacity=5.0, waiting_deferred=5.1)
    assert queued(*grown, kv_usage=0.9).endswith("because the KV cache is full")
    assert queued(*grown, kv_usage=0.89).endswith("because the batch is full")
    assert queued(*grown, waiting_capacity=1.0, kv_usage=0.9).endswith("the KV cache is full")


def uneven(*waiting: float, samples: int = 3) -> tuple[int | None, str] | None:
    ranks = [
        reporting([{"waiting": each}] * samples, rank=rank) for rank, each in enumerate(waiting)
    ]
    found = uneven_ranks(ranks, NOW_S)
    return None if found is None else (found[0].engine.rank, found[1])


def test_ranks_are_uneven_where_four_wait_and_another_rank_has_nothing_to_do() -> None:
    assert uneven(0, 4, 1) == (
        1,
        "4 requests wait at rank 1, 0 at the median of the other 2 ranks",
    )
    assert uneven(0, 3.9) is None
    assert uneven(1, 9) is None  # nobody is without requests
    assert uneven(0.9, 9) is not None
    assert uneven(0, 2.1, 8) is not None
    assert uneven(0, 2, 2.1, 8) is not None
    assert uneven(0, 2.1, 2.1, 8) is None  # most others have more than a quarter
    assert uneven(9) is None
    assert uneven(0, 9, samples=2) is None


def test_a_rank_that_stopped_to_report_is_not_compared() -> None:
    old = reporting([{"waiting": 0.0}] * 3 + [{"waiting": None}] * 14, rank=0)
    busy = reporting([{"waiting": 9.0}] * 3, rank=1)
    assert uneven_ranks([old, busy], NOW_S) is None
    recent = reporting([{"waiting": 0.0}] * 3 + [{"waiting": None}] * 13, rank=0)
    assert uneven_ranks([recent, busy], NOW_S) is not None


@pytest.mark.parametrize("known", [0, 2])
def test_too_few_known_samples_are_no_finding(known: int) -> None:
    reports = [{"waiting": 50.0, "kv_usage": 0.99, "paused": 1.0}] * known
    assert (kv_pressure(reporting(reports), NOW_S), growing_queue(reporting(reports), NOW_S)) == (
        "",
        "",
    )
