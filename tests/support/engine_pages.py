"""Metrics pages of inference engines, with the names that each kind has today."""

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="{engine}",model_name="llama"}} {running}
vllm:num_requests_waiting{{engine="{engine}",model_name="llama"}} {waiting}
vllm:num_requests_waiting_by_reason{{engine="{engine}",model_name="llama",reason="capacity"}} 2.0
vllm:num_requests_waiting_by_reason{{engine="{engine}",model_name="llama",reason="deferred"}} 1.0
vllm:kv_cache_usage_perc{{engine="{engine}",model_name="llama"}} 0.25
vllm:num_preemptions_total{{engine="{engine}",model_name="llama"}} {preemptions}
vllm:num_preemptions_created{{engine="{engine}",model_name="llama"}} 1.7e+09
vllm:iteration_tokens_total_count{{engine="{engine}",model_name="llama"}} {steps}
vllm:iteration_tokens_total_sum{{engine="{engine}",model_name="llama"}} {tokens}
vllm:generation_tokens_total{{engine="{engine}",model_name="llama"}} {tokens}
vllm:inter_token_latency_seconds_bucket{{engine="{engine}",le="0.01",model_name="llama"}} 7.0
vllm:inter_token_latency_seconds_count{{engine="{engine}",model_name="llama"}} {tokens}
vllm:inter_token_latency_seconds_sum{{engine="{engine}",model_name="llama"}} {step_sum}
vllm:request_queue_time_seconds_count{{engine="{engine}",model_name="llama"}} 4.0
vllm:request_queue_time_seconds_sum{{engine="{engine}",model_name="llama"}} 0.5
"""
SGLANG = """\
sglang:num_running_reqs{model_name="qwen",engine_type="unified",tp_rank="0",pp_rank="0"} 3.0
sglang:num_running_reqs{model_name="qwen",engine_type="unified",tp_rank="1",pp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="qwen",engine_type="unified",tp_rank="0",pp_rank="0"} 5.0
sglang:num_retracted_reqs{model_name="qwen",tp_rank="0"} 1.0
sglang:token_usage{model_name="qwen",tp_rank="0"} 0.5
sglang:cuda_graph_passes_total{model_name="qwen",mode="decode",tp_rank="0"} 100.0
sglang:cuda_graph_passes_total{model_name="qwen",mode="prefill",tp_rank="0"} 20.0
sglang:forward_execution_seconds_total{model_name="qwen",tp_rank="0"} 12.5
sglang:inter_token_latency_seconds_sum{model_name="qwen"} 6.0
sglang:inter_token_latency_seconds_count{model_name="qwen"} 300.0
"""
TENSORRT_LLM = """\
trtllm_num_requests_running{model_name="phi",engine_type="trt"} 2.0
trtllm_num_requests_waiting{model_name="phi",engine_type="trt"} 0.0
trtllm_num_paused_requests{model_name="phi",engine_type="trt"} 1.0
trtllm_kv_cache_utilization{model_name="phi",engine_type="trt"} 0.75
trtllm_iteration_latency_seconds{model_name="phi",engine_type="trt"} 0.02
"""
TRITON = """\
nv_inference_request_success{model="resnet",version="1"} 10
nv_inference_exec_count{model="resnet",version="1"} 5
nv_inference_pending_request_count{model="resnet",version="1"} 3
nv_inference_compute_infer_duration_us{model="resnet",version="1"} 20000
nv_inference_queue_duration_us{model="resnet",version="1"} 5000
"""
TGI = """\
tgi_batch_current_size 4
tgi_queue_size 2
tgi_batch_forward_duration_count{method="decode"} 30
tgi_batch_forward_duration_count{method="prefill"} 10
tgi_request_mean_time_per_token_duration_sum 3
tgi_request_mean_time_per_token_duration_count 100
"""


def vllm_page(
    *,
    engine: int = 0,
    running: float = 0,
    waiting: float = 0,
    steps: float = 0,
    tokens: float = 0,
    step_sum: float = 0,
    preemptions: float = 0,
) -> str:
    """Return a page of vLLM, for one data-parallel rank."""
    return VLLM.format(
        engine=engine,
        running=running,
        waiting=waiting,
        steps=steps,
        tokens=tokens,
        step_sum=step_sum,
        preemptions=preemptions,
    )
