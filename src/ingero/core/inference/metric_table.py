"""The canonical table: which metric of which inference engine means what.

A metric of a page becomes a canonical value: a gauge, or a counter that only grows. Times come as a
sum and a count, whose growth gives a mean; quantiles of an engine's own buckets are too coarse.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ingero.contract.measurements.engines import EngineKind


class Value(StrEnum):
    """A canonical value of a page."""

    RUNNING = "running"
    WAITING = "waiting"
    WAITING_CAPACITY = "waiting_capacity"
    WAITING_DEFERRED = "waiting_deferred"
    PAUSED = "paused"
    KV_USAGE = "kv_usage"
    STEPS = "steps"
    BUSY_S = "busy_s"
    STEP_TOKENS = "step_tokens"
    PREEMPTIONS = "preemptions"
    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"
    LIVE_TOKENS = "live_tokens"  # with every forward pass, also of requests that still run
    STEP_SUM = "step_sum"
    STEP_COUNT = "step_count"
    FIRST_TOKEN_SUM = "first_token_sum"  # noqa: S105 - a token of text
    FIRST_TOKEN_COUNT = "first_token_count"  # noqa: S105 - a token of text
    REQUEST_SUM = "request_sum"
    REQUEST_COUNT = "request_count"
    QUEUE_SUM = "queue_sum"
    QUEUE_COUNT = "queue_count"
    PREFILL_SUM = "prefill_sum"
    PREFILL_COUNT = "prefill_count"
    DECODE_SUM = "decode_sum"
    DECODE_COUNT = "decode_count"


GAUGES: Final = (
    Value.RUNNING,
    Value.WAITING,
    Value.WAITING_CAPACITY,
    Value.WAITING_DEFERRED,
    Value.PAUSED,
    Value.KV_USAGE,
)
# Any of these grows with every step, so that one that stands still means that none was made.
PROGRESS: Final = (
    Value.STEPS,
    Value.BUSY_S,
    Value.GENERATION_TOKENS,
    Value.PROMPT_TOKENS,
    Value.LIVE_TOKENS,
)
SUMS: Final = {  # field of EngineReport: sum and count whose growth gives its mean
    "step_s": (Value.STEP_SUM, Value.STEP_COUNT),
    "step_tokens": (Value.STEP_TOKENS, Value.STEPS),
    "first_token_s": (Value.FIRST_TOKEN_SUM, Value.FIRST_TOKEN_COUNT),
    "request_s": (Value.REQUEST_SUM, Value.REQUEST_COUNT),
    "queue_s": (Value.QUEUE_SUM, Value.QUEUE_COUNT),
    "prefill_s": (Value.PREFILL_SUM, Value.PREFILL_COUNT),
    "decode_s": (Value.DECODE_SUM, Value.DECODE_COUNT),
}
RATES: Final = {  # field of EngineReport: counter
    "preemptions_per_s": Value.PREEMPTIONS,
    "steps_per_s": Value.STEPS,
    "prompt_tokens_per_s": Value.PROMPT_TOKENS,
    "generation_tokens_per_s": Value.GENERATION_TOKENS,
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a metric of a page means; `only` names a label and the value that it must have."""

    value: Value
    scale: float = 1.0
    only: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class EngineTable:
    """How one kind of engine is recognised and read.

    `rank` is the label of a data-parallel rank; `first` are labels of ranks that all report the
    same batch, of which only rank 0 is read. `port` is where it serves metrics unless told.
    """

    prefix: str
    metrics: Mapping[str, tuple[Meaning, ...]]
    port: int
    paths: tuple[str, ...] = ("/metrics",)
    rank: str = ""
    first: tuple[str, ...] = ()


def _mean(name: str, total: Value, count: Value) -> dict[str, tuple[Meaning, ...]]:
    return {f"{name}_sum": (Meaning(total),), f"{name}_count": (Meaning(count),)}


def _plain(values: Mapping[str, Value]) -> dict[str, tuple[Meaning, ...]]:
    return {name: (Meaning(value),) for name, value in values.items()}


_REASONS: Final = (
    Meaning(Value.WAITING_CAPACITY, only=("reason", "capacity")),
    Meaning(Value.WAITING_DEFERRED, only=("reason", "deferred")),
)
_MICROSECONDS: Final = 1e-6
_FIRST_TOKEN: Final = (Value.FIRST_TOKEN_SUM, Value.FIRST_TOKEN_COUNT)
_REQUEST: Final = (Value.REQUEST_SUM, Value.REQUEST_COUNT)
_QUEUE: Final = (Value.QUEUE_SUM, Value.QUEUE_COUNT)
_PREFILL: Final = (Value.PREFILL_SUM, Value.PREFILL_COUNT)
_DECODE: Final = (Value.DECODE_SUM, Value.DECODE_COUNT)
_STEP: Final = (Value.STEP_SUM, Value.STEP_COUNT)

_VLLM: Final = EngineTable(
    prefix="vllm:",
    port=8000,
    rank="engine",
    metrics=_plain(
        {
            "vllm:num_requests_running": Value.RUNNING,
            "vllm:num_requests_waiting": Value.WAITING,
            "vllm:kv_cache_usage_perc": Value.KV_USAGE,
            "vllm:gpu_cache_usage_perc": Value.KV_USAGE,  # before 0.10
            "vllm:num_preemptions_total": Value.PREEMPTIONS,
            "vllm:iteration_tokens_total_count": Value.STEPS,
            "vllm:iteration_tokens_total_sum": Value.STEP_TOKENS,
            "vllm:prompt_tokens_total": Value.PROMPT_TOKENS,
            "vllm:generation_tokens_total": Value.GENERATION_TOKENS,
        }
    )
    | {"vllm:num_requests_waiting_by_reason": _REASONS}
    | _mean("vllm:inter_token_latency_seconds", *_STEP)
    | _mean("vllm:time_to_first_token_seconds", *_FIRST_TOKEN)
    | _mean("vllm:e2e_request_latency_seconds", *_REQUEST)
    | _mean("vllm:request_queue_time_seconds", *_QUEUE)
    | _mean("vllm:request_prefill_time_seconds", *_PREFILL)
    | _mean("vllm:request_decode_time_seconds", *_DECODE),
)
_SGLANG: Final = EngineTable(
    prefix="sglang:",
    port=30000,
    rank="dp_rank",
    first=("tp_rank", "pp_rank", "moe_ep_rank"),
    metrics=_plain(
        {
            "sglang:num_running_reqs": Value.RUNNING,
            "sglang:num_queue_reqs": Value.WAITING,
            "sglang:num_retracted_reqs": Value.PAUSED,
            "sglang:token_usage": Value.KV_USAGE,
            "sglang:cuda_graph_passes_total": Value.STEPS,
            "sglang:forward_execution_seconds_total": Value.BUSY_S,
            "sglang:prompt_tokens_total": Value.PROMPT_TOKENS,
            "sglang:generation_tokens_total": Value.GENERATION_TOKENS,  # when a request ends
            "sglang:realtime_tokens_total": Value.LIVE_TOKENS,
        }
    )
    | _mean("sglang:inter_token_latency_seconds", *_STEP)
    | _mean("sglang:time_to_first_token_seconds", *_FIRST_TOKEN)
    | _mean("sglang:e2e_request_latency_seconds", *_REQUEST)
    | _mean("sglang:queue_time_seconds", *_QUEUE),
)
_TENSORRT_LLM: Final = EngineTable(
    prefix="trtllm_",
    port=8000,
    paths=("/prometheus/metrics", "/metrics"),
    metrics=_plain(
        {
            "trtllm_num_requests_running": Value.RUNNING,
            "trtllm_num_requests_waiting": Value.WAITING,
            "trtllm_num_paused_requests": Value.PAUSED,
            "trtllm_kv_cache_utilization": Value.KV_USAGE,
            "trtllm_prompt_tokens_total": Value.PROMPT_TOKENS,
            "trtllm_generation_tokens_total": Value.GENERATION_TOKENS,
        }
    )
    | {
        "trtllm_iteration_latency_seconds_sum": (Meaning(Value.STEP_SUM),),
        "trtllm_iteration_latency_seconds_count": (
            Meaning(Value.STEP_COUNT),
            Meaning(Value.STEPS),
        ),
    }
    | _mean("trtllm_time_to_first_token_seconds", *_FIRST_TOKEN)
    | _mean("trtllm_e2e_request_latency_seconds", *_REQUEST)
    | _mean("trtllm_request_queue_time_seconds", *_QUEUE)
    | _mean("trtllm_request_prefill_time_seconds", *_PREFILL)
    | _mean("trtllm_request_decode_time_seconds", *_DECODE),
)
_TRITON: Final = EngineTable(
    prefix="nv_inference_",
    port=8002,
    metrics={
        "nv_inference_pending_request_count": (Meaning(Value.WAITING),),
        "nv_inference_exec_count": (Meaning(Value.STEPS),),
        "nv_inference_compute_infer_duration_us": (Meaning(Value.STEP_SUM, _MICROSECONDS),),
        "nv_inference_request_duration_us": (Meaning(Value.REQUEST_SUM, _MICROSECONDS),),
        "nv_inference_queue_duration_us": (Meaning(Value.QUEUE_SUM, _MICROSECONDS),),
        # its durations are added up per request, also where several are executed together
        "nv_inference_request_success": (
            Meaning(Value.STEP_COUNT),
            Meaning(Value.REQUEST_COUNT),
            Meaning(Value.QUEUE_COUNT),
        ),
    },
)
_TGI: Final = EngineTable(
    prefix="tgi_",
    port=8080,
    metrics=_plain(
        {
            "tgi_batch_current_size": Value.RUNNING,
            "tgi_queue_size": Value.WAITING,
            "tgi_batch_forward_duration_count": Value.STEPS,
            "tgi_request_input_length_sum": Value.PROMPT_TOKENS,
            "tgi_request_generated_tokens_sum": Value.GENERATION_TOKENS,
        }
    )
    | _mean("tgi_request_mean_time_per_token_duration", *_STEP)
    | _mean("tgi_request_duration", *_REQUEST)
    | _mean("tgi_request_queue_duration", *_QUEUE),
)
TABLES: Final[Mapping[EngineKind, EngineTable]] = {
    EngineKind.VLLM: _VLLM,
    EngineKind.SGLANG: _SGLANG,
    EngineKind.TENSORRT_LLM: _TENSORRT_LLM,
    EngineKind.TRITON: _TRITON,
    EngineKind.TGI: _TGI,
}
