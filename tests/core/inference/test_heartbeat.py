"""An engine is stalled when requests wait and no step comes, and never while it is idle."""

import math

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists
from tests.support.engine_pages import TRITON, vllm_page

from ingero.core.inference.heartbeat import Heartbeat, without_step
from ingero.core.inference.page import EnginePage, Values, read_page


def page(**given: float) -> EnginePage:
    found = read_page(vllm_page(**given))  # type: ignore[arg-type]  # numbers only
    assert found is not None
    return found


def seen(**given: float) -> Values:
    return page(**given).ranks[None]


def run(heart: Heartbeat, pages: list[Values], start_s: float = 0.0) -> list[float | None]:
    return [heart.see(each, start_s + second) for second, each in enumerate(pages)]


def test_requests_without_a_step_are_a_stall() -> None:
    heart = Heartbeat()
    steps = [seen(running=1, steps=step) for step in range(1, 6)]
    assert run(heart, steps) == [None] * 5
    assert run(heart, [steps[-1]] * 7, 5.0) == [None, None, None, None, 5.0, 6.0, 7.0]
    assert heart.see(seen(running=1, steps=9), 12.0) is None


def test_waiting_requests_alone_are_enough() -> None:
    heart = Heartbeat()
    assert run(heart, [seen(waiting=2, steps=5)] * 7)[-1] == 6.0


@given(lists(integers(0, 3), min_size=1, max_size=40))
def test_an_idle_engine_is_never_stalled(gaps: list[int]) -> None:
    """F160: whatever happened before, without requests there is no stall."""
    heart, now_s, steps = Heartbeat(), 0.0, 0
    for gap in gaps:
        now_s += 7.0 * gap
        steps += gap
        heart.see(seen(running=gap, steps=steps), now_s)
        assert heart.see(seen(running=0, steps=steps), now_s + 1000.0) is None
        now_s += 1000.0


def test_requests_that_come_after_a_quiet_hour_are_no_stall() -> None:
    heart = Heartbeat()
    heart.see(seen(steps=5), 0.0)
    heart.see(seen(steps=5), 3600.0)
    assert heart.see(seen(running=1, steps=5), 3601.0) is None
    assert heart.see(seen(running=1, steps=5), 3605.0) is None
    assert heart.see(seen(running=1, steps=5), 3606.0) == 5.0


def test_long_steps_are_learned_and_stalls_are_not() -> None:
    heart = Heartbeat()
    for second in range(0, 40, 4):
        heart.see(seen(running=1, steps=1 + second), second)
    assert (heart.longest_gap_s, heart.limit_s) == (4.0, 12.0)
    assert heart.see(seen(running=1, steps=37), 47.0) is None
    assert heart.see(seen(running=1, steps=37), 49.0) == 13.0
    heart.see(seen(running=1, steps=38), 60.0)
    assert heart.longest_gap_s == 4.0


def test_one_busy_minute_does_not_make_an_engine_patient_for_ever() -> None:
    heart, now_s, steps = Heartbeat(), 0.0, 1
    heart.see(seen(running=1, steps=steps), now_s)
    for gap_s in (4.5, 13.0, 38.0, *[1.0] * 500):
        now_s, steps = now_s + gap_s, steps + 1
        assert heart.see(seen(running=1, steps=steps), now_s) is None
        if gap_s == 38.0:
            assert heart.limit_s == 60.0
    assert heart.limit_s == 5.0


def test_a_first_request_may_compile_for_a_minute() -> None:
    heart = Heartbeat()
    assert heart.see(seen(running=1), 0.0) is None
    assert heart.see(seen(running=1), 59.0) is None
    assert heart.see(seen(running=1), 61.0) == 61.0


def test_a_page_that_stops_answering_does_not_end_a_stall() -> None:
    heart = Heartbeat()
    run(heart, [seen(running=1, steps=5)] * 2)
    assert heart.stalled_for(9.0) == 9.0


def test_a_probe_compares_two_pages() -> None:
    assert without_step(page(running=1, steps=5), page(running=1, steps=5)) == [None]
    assert without_step(page(running=1, steps=5), page(running=1, steps=6)) == []
    assert without_step(page(running=0, steps=5), page(running=1, steps=5)) == []
    triton = read_page(TRITON)
    assert triton is not None
    assert without_step(triton, triton) == []  # it counts whole executions, no steps


def test_one_long_request_of_sglang_is_no_stall() -> None:
    """Its tokens are booked when it ends; those of each forward pass are counted apart."""
    page = (
        "sglang:num_running_reqs 1\nsglang:generation_tokens_total 500\n"
        "sglang:realtime_tokens_total {}\n"
    )
    heart = Heartbeat(5.0)
    for second in range(60):
        found = read_page(page.format(1000 + second))
        assert found is not None
        assert heart.see(found.ranks[None], float(second)) is None
    stopped = read_page(page.format(1059))
    assert stopped is not None
    assert heart.see(stopped.ranks[None], 70.0) == 11.0


def test_the_time_of_the_newest_iteration_is_the_heartbeat_of_tensorrt_llm() -> None:
    """Its tokens are booked when a request ends, and it counts no iterations."""
    page = (
        "trtllm_num_requests_running 1\ntrtllm_generation_tokens_total 500\n"
        "trtllm_iteration_latency_seconds {}\n"
    )
    heart = Heartbeat(5.0)
    for second in range(60):
        found = read_page(page.format(0.02 + second % 2 / 1000))
        assert found is not None
        assert heart.see(found.ranks[None], float(second)) is None
    assert heart.see(found.ranks[None], 70.0) == 11.0


@pytest.mark.parametrize(
    ("ended", "longest_s"), [(0, math.inf), (10, 60.0), (1, 300.0)], ids=["none", "quick", "long"]
)
def test_requests_that_are_counted_when_they_end_may_take_their_time(
    ended: int, longest_s: float
) -> None:
    """Triton without an engine that counts steps: 100 s of requests, 10 of them or one."""
    found = read_page(
        "nv_inference_pending_request_count 1\nnv_inference_exec_count 5\n"
        f"nv_inference_request_success {ended}\nnv_inference_request_duration_us 100e6\n"
    )
    assert found is not None
    heart = Heartbeat(5.0)
    assert heart.see(found.ranks[None], 0.0) is None
    assert heart.limit_s == longest_s
    assert heart.see(found.ranks[None], min(longest_s, 1e6) - 1) is None
    assert (heart.see(found.ranks[None], 1e7) is None) == (ended == 0)


def test_an_engine_has_a_minute_for_its_first_step_and_at_most_a_minute_between_two() -> None:
    assert Heartbeat().limit_s == 60.0
    assert Heartbeat(stall_after_s=90.0).limit_s == 90.0
    assert Heartbeat(has_stepped=True).limit_s == 5.0
    assert Heartbeat(has_stepped=True, longest_gap_s=2.0).limit_s == 6.0
    assert Heartbeat(has_stepped=True, longest_gap_s=50.0).limit_s == 60.0
    assert Heartbeat(has_stepped=True, longest_gap_s=50.0, stall_after_s=70.0).limit_s == 70.0


def test_a_gap_as_long_as_the_limit_is_a_stall_and_not_learned() -> None:
    heart = Heartbeat()
    heart.see(seen(running=1, steps=1), 0.0)
    heart.see(seen(running=1, steps=2), 5.0)
    assert heart.longest_gap_s == 0.0
    heart.see(seen(running=1, steps=3), 9.9)
    assert 4.8 < heart.longest_gap_s < 5.0


def test_only_ranks_that_had_and_have_requests_are_without_a_step() -> None:
    busy, idle = page(running=1, steps=3), page(running=0, steps=3)
    assert without_step(busy, busy) == [None]
    assert without_step(busy, idle) == []
    assert without_step(idle, busy) == []
    assert without_step(busy, page(running=1, steps=4)) == []
    assert without_step(EnginePage(busy.kind), busy) == []
