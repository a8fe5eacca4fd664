"""Pages of all engines become canonical values, and nothing in a page can do harm."""

import time

import pytest
from hypothesis import given
from hypothesis.strategies import text
from tests.support.engine_pages import SGLANG, TENSORRT_LLM, TGI, TRITON, vllm_page

from ingero.contract.measurements.engines import EngineKind
from ingero.core.inference.metric_table import TABLES, Value
from ingero.core.inference.page import MAX_RANKS, EnginePage, read_page


def test_a_page_of_vllm_is_read() -> None:
    page = read_page(vllm_page(running=3, waiting=3, steps=10, tokens=30, step_sum=0.6))
    assert page == EnginePage(
        EngineKind.VLLM,
        "llama",
        {
            None: {
                Value.RUNNING: 3.0,
                Value.WAITING: 3.0,
                Value.WAITING_CAPACITY: 2.0,
                Value.WAITING_DEFERRED: 1.0,
                Value.KV_USAGE: 0.25,
                Value.PREEMPTIONS: 0.0,
                Value.STEPS: 10.0,
                Value.STEP_TOKENS: 30.0,
                Value.GENERATION_TOKENS: 30.0,
                Value.STEP_COUNT: 30.0,
                Value.STEP_SUM: 0.6,
                Value.QUEUE_COUNT: 4.0,
                Value.QUEUE_SUM: 0.5,
            }
        },
    )


@pytest.mark.parametrize(
    ("text", "kind", "model", "values"),
    [
        (
            SGLANG,
            EngineKind.SGLANG,
            "qwen",
            {Value.RUNNING: 3, Value.WAITING: 5, Value.PAUSED: 1, Value.KV_USAGE: 0.5,
             Value.STEPS: 120, Value.BUSY_S: 12.5, Value.STEP_SUM: 6, Value.STEP_COUNT: 300},
        ),
        (
            TENSORRT_LLM,
            EngineKind.TENSORRT_LLM,
            "phi",
            {Value.RUNNING: 2, Value.WAITING: 0, Value.PAUSED: 1, Value.KV_USAGE: 0.75,
             Value.STEP_SUM: 4, Value.STEP_COUNT: 200, Value.STEPS: 200},
        ),
        (
            TRITON,
            EngineKind.TRITON,
            "resnet",
            {Value.REQUEST_COUNT: 10, Value.QUEUE_COUNT: 10, Value.STEP_COUNT: 10,
             Value.STEPS: 5, Value.WAITING: 3, Value.STEP_SUM: 0.02, Value.QUEUE_SUM: 0.005},
        ),
        (
            TGI,
            EngineKind.TGI,
            "",
            {Value.RUNNING: 4, Value.WAITING: 2, Value.STEPS: 40, Value.STEP_SUM: 3,
             Value.STEP_COUNT: 100},
        ),
    ],
    ids=["sglang", "tensorrt-llm", "triton", "tgi"],
)  # fmt: skip
def test_the_pages_of_the_others_are_read(
    text: str, kind: EngineKind, model: str, values: dict[Value, float]
) -> None:
    page = read_page(text)
    assert page is not None
    assert (page.kind, page.model, page.left_out) == (kind, model, 0)
    assert page.ranks == {None: pytest.approx(values)}


def test_data_parallel_ranks_are_told_apart() -> None:
    page = read_page(vllm_page(engine=0, waiting=1) + vllm_page(engine=1, waiting=7))
    assert page is not None
    assert {rank: values[Value.WAITING] for rank, values in page.ranks.items()} == {0: 1.0, 1: 7.0}


def test_other_pages_are_not_engines() -> None:
    assert read_page("python_gc_objects_collected_total 7\nvllm_something 1\n") is None
    assert read_page("<html>vllm:num_requests_running</html>") is None
    assert read_page("") is None


def test_values_that_make_no_sense_are_left_out() -> None:
    bad = "".join(
        f"vllm:num_requests_waiting {value}\n" for value in ("NaN", "+Inf", "-1", "x", "1e300", "")
    )
    page = read_page(vllm_page(waiting=2).replace("vllm:num_requests_waiting{", "# {") + bad)
    assert page is not None
    assert Value.WAITING not in page.ranks[None]
    assert page.left_out == 6


def test_a_page_with_endless_ranks_is_cut() -> None:
    page = read_page("".join(vllm_page(engine=rank) for rank in range(MAX_RANKS + 10)))
    assert page is not None
    assert len(page.ranks) == MAX_RANKS
    assert page.left_out > 0


def test_hostile_lines_take_no_time_and_a_model_is_printable() -> None:
    hostile = "vllm:num_requests_running{" + 'a="' + "\\" * 4000 + "\n"
    hostile += 'vllm:num_requests_running{model_name="\x1b[31m' + "m" * 500 + '"} 1\n'
    begin = time.process_time()
    page = read_page(hostile * 2000)
    assert time.process_time() - begin < 2.0
    assert page is not None
    assert page.model == "[31m" + "m" * 124


@given(text(max_size=300))
def test_any_text_is_read_or_refused(rest: str) -> None:
    read_page(rest)
    found = read_page(f"vllm:num_requests_running 1\n{rest}")
    assert found is not None


def test_every_kind_has_requests_and_a_heartbeat() -> None:
    for table in TABLES.values():
        known = {meaning.value for meanings in table.metrics.values() for meaning in meanings}
        assert Value.WAITING in known
        assert Value.STEPS in known
        assert {Value.STEP_SUM, Value.STEP_COUNT} <= known
        assert all(name.startswith(table.prefix) for name in table.metrics)
