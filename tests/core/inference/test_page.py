"""Pages of all engines become canonical values, and nothing in a page can do harm."""

import time

import pytest
from hypothesis import given
from hypothesis.strategies import text
from tests.support.engine_pages import SGLANG, TENSORRT_LLM, TGI, TRITON, vllm_page

from ingero.contract.measurements.engines import EngineKind
from ingero.core.inference.metric_table import STEP_BEATS, TABLES, Value
from ingero.core.inference.page import (
    LARGEST,
    MAX_LINE,
    MAX_LINES,
    MAX_RANKS,
    EnginePage,
    read_page,
)


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
                Value.LIVE_TOKENS: 30.0,
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
             Value.STEP_LATEST: 0.02},
        ),
        (
            TRITON,
            EngineKind.TRITON,
            "resnet",
            {Value.REQUEST_COUNT: 10, Value.QUEUE_COUNT: 10, Value.STEP_COUNT: 10,
             Value.EXECUTIONS: 5, Value.WAITING: 3, Value.STEP_SUM: 0.02, Value.QUEUE_SUM: 0.005},
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
    assert time.process_time() - begin < 10.0  # 2.4 s in an emulator
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
        assert known & set(STEP_BEATS)
        assert {Value.STEP_SUM, Value.STEP_COUNT} <= known or Value.STEP_LATEST in known
        assert any(name.startswith(table.prefix) for name in table.metrics)


def running(text: str) -> float | None:
    """What a page that begins soundly says about running requests."""
    found = read_page(f"vllm:num_requests_waiting 0\n{text}")
    assert found is not None
    return found.ranks[None].get(Value.RUNNING)


def test_a_line_is_read_up_to_its_limit_and_comments_never() -> None:
    pad = MAX_LINE - len('vllm:num_requests_running{model_name=""} 1')
    assert running('vllm:num_requests_running{model_name="' + "m" * pad + '"} 1\n') == 1.0
    assert running('vllm:num_requests_running{model_name="' + "m" * (pad + 1) + '"} 1\n') is None
    assert running("# vllm:num_requests_running 1\n#vllm:num_requests_running 1\n") is None
    assert running("vllm:num_requests_running 4\r\n") == 4.0
    assert running("vllm:num_requests_running\t4 1700000000\n") == 4.0


def test_pages_end_after_a_hundred_thousand_lines() -> None:
    empty = "\n" * (MAX_LINES - 2)
    assert running(f"{empty}vllm:num_requests_running 4\n") == 4.0
    assert running(f"\n{empty}vllm:num_requests_running 4\n") is None
    assert (MAX_LINES, MAX_LINE, MAX_RANKS, LARGEST) == (100_000, 4096, 64, 1e15)


def test_a_value_is_finite_not_negative_and_not_absurd() -> None:
    for written, value in (
        ("1e15", 1e15),
        ("1.1e15", None),
        ("0", 0.0),
        ("-1", None),
        ("NaN", None),
    ):
        assert running(f"vllm:num_requests_running {written}\n") == value


def test_ranks_have_four_digits_and_there_are_at_most_sixty_four() -> None:
    text = "".join(f'vllm:num_requests_running{{engine="{rank}"}} 1\n' for rank in range(70))
    found = read_page(text)
    assert found is not None
    assert (len(found.ranks), found.left_out) == (64, 6)
    wide = "".join(f'vllm:num_requests_running{{engine="{rank}"}} 1\n' for rank in (9999, 10000))
    found = read_page(wide)
    assert found is not None
    assert set(found.ranks) == {9999, None}


def test_a_rank_too_many_does_not_end_the_page() -> None:
    text = "".join(f'vllm:num_requests_running{{engine="{rank}"}} 1\n' for rank in range(65))
    found = read_page(f'{text}vllm:num_requests_waiting{{engine="3"}} 8\n')
    assert found is not None
    assert found.ranks[3] == {Value.RUNNING: 1.0, Value.WAITING: 8.0}


def test_the_use_of_a_cache_is_the_largest_and_at_most_one() -> None:
    found = read_page('vllm:kv_cache_usage_perc{a="1"} 0.5\nvllm:kv_cache_usage_perc{a="2"} 0.2\n')
    assert found is not None
    assert found.ranks == {None: {Value.KV_USAGE: 0.5}}
    found = read_page("vllm:kv_cache_usage_perc 1.7\n")
    assert found is not None
    assert found.ranks == {None: {Value.KV_USAGE: 1.0}}


def test_another_program_with_a_known_prefix_is_no_engine() -> None:
    assert read_page("vllm:something_of_mine 1\ntgi_other 2\n") is None
