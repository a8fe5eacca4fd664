"""Rates and means come from the growth of counters; what did not happen is missing, not zero."""

from tests.support.engine_pages import vllm_page

from ingero.contract.measurements.engines import EngineReport
from ingero.core.inference.page import Values, read_page
from ingero.core.inference.samples import measure


def values(**given: float) -> Values:
    page = read_page(vllm_page(**given))  # type: ignore[arg-type]  # numbers only
    assert page is not None
    return page.ranks[None]


GAUGES = EngineReport(
    running=4.0, waiting=0.0, waiting_capacity=2.0, waiting_deferred=1.0, kv_usage=0.25
)


def test_steps_are_the_growth_of_sum_and_count() -> None:
    """The first bucket of vLLM's histogram ends at 10 ms: 4 and 8 ms look the same in it."""
    before = values(running=4, steps=100, tokens=400, step_sum=1.6)
    after = values(running=4, steps=200, tokens=800, step_sum=4.8, preemptions=3)
    found = measure(before, after, 2.0)
    assert found.step_s == 0.008
    assert found.step_tokens == 4.0
    assert found.steps_per_s == 50.0
    assert found.preemptions_per_s == 1.5
    assert found.generation_tokens_per_s == 200.0
    assert (found.queue_s, found.prompt_tokens_per_s) == (None, None)  # nothing finished, not said


def test_without_an_earlier_page_there_are_gauges_only() -> None:
    assert measure(None, values(running=4, steps=7), 1.0) == GAUGES


def test_a_counter_that_fell_is_a_restart() -> None:
    before, after = values(running=4, steps=100), values(running=4, steps=3)
    assert measure(before, after, 1.0) == GAUGES


def test_pages_far_apart_are_not_compared() -> None:
    assert measure(values(running=4), values(running=4, steps=9), 61.0) == GAUGES
