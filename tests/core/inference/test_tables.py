"""Every metric that an engine publishes, by its published name, becomes the right figure."""

import pytest

from ingero.contract.measurements.engines import EngineKind, EngineReport
from ingero.core.inference.metric_table import GAUGES, TABLES, Value
from ingero.core.inference.page import read_page
from ingero.core.inference.samples import LONGEST_S, has_restarted, measure

# (first page, second page five seconds later) of each metric; names as the engines print them
VLLM = {
    "vllm:num_requests_running": (1, 2),
    "vllm:num_requests_waiting": (1, 3),
    'vllm:num_requests_waiting_by_reason{reason="capacity"}': (0, 2),
    'vllm:num_requests_waiting_by_reason{reason="deferred"}': (0, 1),
    "vllm:kv_cache_usage_perc": (0.1, 0.25),
    "vllm:num_preemptions_total": (0, 10),
    "vllm:iteration_tokens_total_count": (100, 120),
    "vllm:iteration_tokens_total_sum": (1000, 1160),
    "vllm:prompt_tokens_total": (10, 60),
    "vllm:generation_tokens_total": (10, 110),
    "vllm:inter_token_latency_seconds_sum": (1, 3),
    "vllm:inter_token_latency_seconds_count": (10, 110),
    "vllm:time_to_first_token_seconds_sum": (1, 4),
    "vllm:time_to_first_token_seconds_count": (1, 3),
    "vllm:e2e_request_latency_seconds_sum": (1, 9),
    "vllm:e2e_request_latency_seconds_count": (1, 3),
    "vllm:request_queue_time_seconds_sum": (1, 2),
    "vllm:request_queue_time_seconds_count": (1, 3),
    "vllm:request_prefill_time_seconds_sum": (1, 1.5),
    "vllm:request_prefill_time_seconds_count": (1, 3),
    "vllm:request_decode_time_seconds_sum": (1, 6),
    "vllm:request_decode_time_seconds_count": (1, 3),
}
SGLANG = {
    "sglang:num_running_reqs": (1, 2),
    "sglang:num_queue_reqs": (1, 3),
    "sglang:num_retracted_reqs": (0, 4),
    "sglang:token_usage": (0.1, 0.25),
    "sglang:cuda_graph_passes_total": (100, 120),
    "sglang:forward_execution_seconds_total": (1, 4),
    "sglang:prompt_tokens_total": (10, 60),
    "sglang:generation_tokens_total": (10, 110),
    "sglang:realtime_tokens_total": (7, 9),
    "sglang:inter_token_latency_seconds_sum": (1, 3),
    "sglang:inter_token_latency_seconds_count": (10, 110),
    "sglang:time_to_first_token_seconds_sum": (1, 4),
    "sglang:time_to_first_token_seconds_count": (1, 3),
    "sglang:e2e_request_latency_seconds_sum": (1, 9),
    "sglang:e2e_request_latency_seconds_count": (1, 3),
    "sglang:queue_time_seconds_sum": (1, 2),
    "sglang:queue_time_seconds_count": (1, 3),
}
TENSORRT = {
    "trtllm_num_requests_running": (1, 2),
    "trtllm_num_requests_waiting": (1, 3),
    "trtllm_num_paused_requests": (0, 4),
    "trtllm_kv_cache_utilization": (0.1, 0.25),
    "trtllm_prompt_tokens_total": (10, 60),
    "trtllm_generation_tokens_total": (10, 110),
    "trtllm_iteration_latency_seconds": (0.03, 0.02),
    "trtllm_time_to_first_token_seconds_sum": (1, 4),
    "trtllm_time_to_first_token_seconds_count": (1, 3),
    "trtllm_e2e_request_latency_seconds_sum": (1, 9),
    "trtllm_e2e_request_latency_seconds_count": (1, 3),
    "trtllm_request_queue_time_seconds_sum": (1, 2),
    "trtllm_request_queue_time_seconds_count": (1, 3),
    "trtllm_request_prefill_time_seconds_sum": (1, 1.5),
    "trtllm_request_prefill_time_seconds_count": (1, 3),
    "trtllm_request_decode_time_seconds_sum": (1, 6),
    "trtllm_request_decode_time_seconds_count": (1, 3),
}
TRITON = {
    "nv_inference_pending_request_count": (1, 3),
    "nv_inference_exec_count": (100, 120),
    "nv_inference_compute_infer_duration_us": (0, 4_000_000),
    "nv_inference_request_duration_us": (0, 8_000_000),
    "nv_inference_queue_duration_us": (0, 2_000_000),
    "nv_inference_request_success": (1, 101),
    'nv_trt_llm_request_metrics{request_type="scheduled"}': (1, 2),
    'nv_trt_llm_request_metrics{request_type="waiting"}': (0, 4),
    'nv_trt_llm_request_metrics{request_type="max"}': (512, 512),
    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}': (0.1, 0.25),
    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}': (6239, 6239),
    'nv_trt_llm_general_metrics{general_type="iteration_counter"}': (100, 120),
    'nv_trt_llm_general_metrics{general_type="timestamp"}': (1_700_000_000, 1_700_000_005),
}
TGI = {
    "tgi_batch_current_size": (1, 2),
    "tgi_queue_size": (1, 3),
    "tgi_batch_forward_duration_count": (100, 120),
    "tgi_request_input_length_sum": (10, 60),
    "tgi_request_generated_tokens_sum": (10, 110),
    "tgi_request_mean_time_per_token_duration_sum": (1, 3),
    "tgi_request_mean_time_per_token_duration_count": (10, 110),
    "tgi_request_duration_sum": (1, 9),
    "tgi_request_duration_count": (1, 3),
    "tgi_request_queue_duration_sum": (1, 2),
    "tgi_request_queue_duration_count": (1, 3),
}
TOKENS = {"prompt_tokens_per_s": 10.0, "generation_tokens_per_s": 20.0}
LOAD = {"running": 2.0, "waiting": 3.0}
WHOLE = {"step_s": 0.02, "first_token_s": 1.5, "request_s": 4.0, "queue_s": 0.5}
PARTS = {"prefill_s": 0.25, "decode_s": 2.5}
EXPECTED = {
    EngineKind.VLLM: (
        VLLM,
        EngineReport(
            **LOAD, **TOKENS, **WHOLE, **PARTS, waiting_capacity=2.0, waiting_deferred=1.0,
            kv_usage=0.25, preemptions_per_s=2.0, steps_per_s=4.0, step_tokens=8.0,
        ),
    ),
    EngineKind.SGLANG: (
        SGLANG,
        EngineReport(**LOAD, **TOKENS, **WHOLE, paused=4.0, kv_usage=0.25, steps_per_s=4.0),
    ),
    EngineKind.TENSORRT_LLM: (
        TENSORRT,
        EngineReport(
            **LOAD, **TOKENS, **WHOLE, **PARTS, paused=4.0, kv_usage=0.25
        ),
    ),
    EngineKind.TRITON: (
        TRITON,
        EngineReport(
            running=2.0, waiting=7.0, kv_usage=0.25, steps_per_s=4.0, step_s=0.04,
            request_s=0.08, queue_s=0.02,
        ),
    ),
    EngineKind.TGI: (
        TGI,
        EngineReport(**LOAD, **TOKENS, steps_per_s=4.0, step_s=0.02, request_s=4.0, queue_s=0.5),
    ),
}  # fmt: skip


def page(metrics: dict[str, tuple[float, float]], index: int) -> str:
    return "".join(f"{name} {values[index]}\n" for name, values in metrics.items())


@pytest.mark.parametrize("kind", list(EngineKind))
def test_a_whole_page_becomes_a_whole_report(kind: EngineKind) -> None:
    metrics, expected = EXPECTED[kind]
    pages = [read_page(page(metrics, index)) for index in (0, 1)]
    first, second = (each.ranks[None] for each in pages if each is not None)
    assert measure(first, second, 5.0) == expected
    assert {each.kind for each in pages if each is not None} == {kind}
    published = {name.partition("{")[0] for name in metrics}
    assert set(TABLES[kind].metrics) - published <= {"vllm:gpu_cache_usage_perc"}


def test_engines_serve_where_they_are_documented_to() -> None:
    assert {kind: (table.port, table.paths) for kind, table in TABLES.items()} == {
        EngineKind.VLLM: (8000, ("/metrics",)),
        EngineKind.SGLANG: (30000, ("/metrics",)),
        EngineKind.TENSORRT_LLM: (8000, ("/prometheus/metrics", "/metrics")),
        EngineKind.TRITON: (8002, ("/metrics",)),
        EngineKind.TGI: (8080, ("/metrics",)),
    }


def test_the_older_name_of_the_cache_is_understood() -> None:
    found = read_page("vllm:gpu_cache_usage_perc 0.5\n")
    assert found is not None
    assert found.ranks == {None: {Value.KV_USAGE: 0.5}}


@pytest.mark.parametrize("label", ["tp_rank", "pp_rank", "moe_ep_rank"])
def test_ranks_of_one_batch_are_read_once(label: str) -> None:
    text = f'sglang:num_running_reqs{{{label}="1"}} 5\nsglang:num_running_reqs{{{label}="0"}} 3\n'
    found = read_page(text)
    assert found is not None
    assert found.ranks == {None: {Value.RUNNING: 3.0}}


def test_data_parallel_ranks_are_told_apart() -> None:
    for text in (
        'sglang:num_running_reqs{dp_rank="0"} 1\nsglang:num_running_reqs{dp_rank="7"} 2\n',
        'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="7"} 2\n',
    ):
        found = read_page(text)
        assert found is not None
        assert found.ranks == {0: {Value.RUNNING: 1.0}, 7: {Value.RUNNING: 2.0}}


def test_the_time_of_the_newest_step_belongs_to_one_step() -> None:
    slow, quick = {Value.STEP_LATEST: 0.03}, {Value.STEP_LATEST: 0.02}
    assert measure(slow, quick, 1.0).step_s == 0.02  # it fell, and nothing restarted
    assert measure(quick, quick, 1.0).step_s is None
    two = read_page(
        'trtllm_iteration_latency_seconds{engine_type="a"} 0.01\n'
        'trtllm_iteration_latency_seconds{engine_type="b"} 0.03\n'
    )
    assert two is not None
    assert two.ranks == {None: {Value.STEP_LATEST: 0.03}}


def test_pages_are_compared_up_to_a_minute_apart() -> None:
    before, after = {Value.STEPS: 1.0}, {Value.STEPS: 61.0}
    assert measure(before, after, LONGEST_S).steps_per_s == 1.0
    assert LONGEST_S == 60.0
    assert measure(before, after, LONGEST_S + 0.1) == EngineReport()
    assert measure(before, after, 0.0) == EngineReport()
    assert measure(before, after, 0.5).steps_per_s == 120.0


def test_only_counters_that_both_pages_have_are_compared() -> None:
    assert measure({Value.STEPS: 1.0}, {Value.PROMPT_TOKENS: 5.0}, 1.0) == EngineReport()
    assert measure({}, {Value.STEPS: 5.0}, 1.0) == EngineReport()
    assert not has_restarted({Value.STEPS: 5.0}, {})
    assert not has_restarted({Value.RUNNING: 5.0}, {Value.RUNNING: 1.0})
    assert has_restarted({Value.STEPS: 5.0}, {Value.STEPS: 4.0})
    assert {str(name) for name in GAUGES} <= set(EngineReport.__dataclass_fields__)
