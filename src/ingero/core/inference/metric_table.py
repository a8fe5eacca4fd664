"""The canonical table: which metric of which inference engine means what.

A metric of a page becomes a canonical value: a gauge, or a counter that only grows. Times come as a
sum and a count, whose growth gives a mean; quantiles of an engine's own buckets are too coarse.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Final

from ingero.contract.measurements.engines import EngineKind


class Value(StrEnum):
    """A canonical value of a page."""

    RUNNING = auto()
    WAITING = auto()
    WAITING_CAPACITY = auto()
    WAITING_DEFERRED = auto()
    PAUSED = auto()
    KV_USAGE = auto()
    STEPS = auto()
    STEP_LATEST = auto()  # seconds of the newest step; changes with every step
    EXECUTIONS = auto()  # of whole batches, counted when they end
    BUSY_S = auto()
    STEP_TOKENS = auto()
    PREEMPTIONS = auto()
    PROMPT_TOKENS = auto()
    GENERATION_TOKENS = auto()
    LIVE_TOKENS = auto()  # with every forward pass, also of requests that still run
    STEP_SUM = auto()
    STEP_COUNT = auto()
    FIRST_TOKEN_SUM = auto()
    FIRST_TOKEN_COUNT = auto()
    REQUEST_SUM = auto()
    REQUEST_COUNT = auto()
    QUEUE_SUM = auto()
    QUEUE_COUNT = auto()
    PREFILL_SUM = auto()
    PREFILL_COUNT = auto()
    DECODE_SUM = auto()
    DECODE_COUNT = auto()


GAUGES: Final = (
    Value.RUNNING,
    Value.WAITING,
    Value.WAITING_CAPACITY,
    Value.WAITING_DEFERRED,
    Value.PAUSED,
    Value.KV_USAGE,
)
# Any of these changes with every step, so that one that stands still means that none was made.
STEP_BEATS: Final = (Value.STEPS, Value.STEP_LATEST, Value.BUSY_S, Value.LIVE_TOKENS)
# The others may stand still until a request ends.
PROGRESS: Final = (*STEP_BEATS, Value.EXECUTIONS, Value.GENERATION_TOKENS, Value.PROMPT_TOKENS)
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


Rows = dict[str, tuple[Meaning, ...]]
_MEANS: Final = {
    "step": (Value.STEP_SUM, Value.STEP_COUNT),
    "first_token": (Value.FIRST_TOKEN_SUM, Value.FIRST_TOKEN_COUNT),
    "request": (Value.REQUEST_SUM, Value.REQUEST_COUNT),
    "queue": (Value.QUEUE_SUM, Value.QUEUE_COUNT),
    "prefill": (Value.PREFILL_SUM, Value.PREFILL_COUNT),
    "decode": (Value.DECODE_SUM, Value.DECODE_COUNT),
}
_REASONS: Final = (
    Meaning(Value.WAITING_CAPACITY, only=("reason", "capacity")),
    Meaning(Value.WAITING_DEFERRED, only=("reason", "deferred")),
)
_MICROSECONDS: Final = 1e-6


def _rows(prefix: str, values: Mapping[str, Value], **means: str) -> Rows:
    """Return the rows of metrics with one meaning: plain values, and histograms of times."""
    rows: Rows = {f"{prefix}{name}": (Meaning(value),) for name, value in values.items()}
    for mean, name in means.items():
        total, count = _MEANS[mean]
        rows |= {
            f"{prefix}{name}_sum": (Meaning(total),),
            f"{prefix}{name}_count": (Meaning(count),),
        }
    return rows


_VLLM: Final = EngineTable(
    prefix="vllm:",
    port=8000,
    rank="engine",
    metrics=_rows(
        "vllm:",
        {
            "num_requests_running": Value.RUNNING,
            "num_requests_waiting": Value.WAITING,
            "kv_cache_usage_perc": Value.KV_USAGE,
            "gpu_cache_usage_perc": Value.KV_USAGE,  # before 0.10
            "num_preemptions_total": Value.PREEMPTIONS,
            "iteration_tokens_total_count": Value.STEPS,
            "iteration_tokens_total_sum": Value.STEP_TOKENS,
            "prompt_tokens_total": Value.PROMPT_TOKENS,
        },
        step="inter_token_latency_seconds",
        first_token="time_to_first_token_seconds",  # noqa: S106 - a token of text
        request="e2e_request_latency_seconds",
        queue="request_queue_time_seconds",
        prefill="request_prefill_time_seconds",
        decode="request_decode_time_seconds",
    )
    | {
        "vllm:num_requests_waiting_by_reason": _REASONS,
        "vllm:generation_tokens_total": (
            Meaning(Value.GENERATION_TOKENS),
            Meaning(Value.LIVE_TOKENS),
        ),
    },
)
_SGLANG: Final = EngineTable(
    prefix="sglang:",
    port=30000,
    rank="dp_rank",
    first=("tp_rank", "pp_rank", "moe_ep_rank"),
    metrics=_rows(
        "sglang:",
        {
            "num_running_reqs": Value.RUNNING,
            "num_queue_reqs": Value.WAITING,
            "num_retracted_reqs": Value.PAUSED,
            "token_usage": Value.KV_USAGE,
            "cuda_graph_passes_total": Value.STEPS,
            "forward_execution_seconds_total": Value.BUSY_S,
            "prompt_tokens_total": Value.PROMPT_TOKENS,
            "generation_tokens_total": Value.GENERATION_TOKENS,  # when a request ends
            "realtime_tokens_total": Value.LIVE_TOKENS,
        },
        step="inter_token_latency_seconds",
        first_token="time_to_first_token_seconds",  # noqa: S106 - a token of text
        request="e2e_request_latency_seconds",
        queue="queue_time_seconds",
    ),
)
_TENSORRT_LLM: Final = EngineTable(
    prefix="trtllm_",
    port=8000,
    paths=("/prometheus/metrics", "/metrics"),
    metrics=_rows(
        "trtllm_",
        {
            "num_requests_running": Value.RUNNING,
            "num_requests_waiting": Value.WAITING,
            "num_paused_requests": Value.PAUSED,
            "kv_cache_utilization": Value.KV_USAGE,
            "iteration_latency_seconds": Value.STEP_LATEST,
            "prompt_tokens_total": Value.PROMPT_TOKENS,  # when a request ends, as all below
            "generation_tokens_total": Value.GENERATION_TOKENS,
        },
        first_token="time_to_first_token_seconds",  # noqa: S106 - a token of text
        request="e2e_request_latency_seconds",
        queue="request_queue_time_seconds",
        prefill="request_prefill_time_seconds",
        decode="request_decode_time_seconds",
    ),
)
_TRITON: Final = EngineTable(
    prefix="nv_inference_",
    port=8002,
    metrics={
        "nv_inference_pending_request_count": (Meaning(Value.WAITING),),
        "nv_inference_exec_count": (Meaning(Value.EXECUTIONS),),
        "nv_inference_compute_infer_duration_us": (Meaning(Value.STEP_SUM, _MICROSECONDS),),
        "nv_inference_request_duration_us": (Meaning(Value.REQUEST_SUM, _MICROSECONDS),),
        "nv_inference_queue_duration_us": (Meaning(Value.QUEUE_SUM, _MICROSECONDS),),
        # its durations are added up per request, also where several are executed together
        "nv_inference_request_success": (
            Meaning(Value.STEP_COUNT),
            Meaning(Value.REQUEST_COUNT),
            Meaning(Value.QUEUE_COUNT),
        ),
        # of its TensorRT-LLM backend, which batches requests while they run
        "nv_trt_llm_request_metrics": (
            Meaning(Value.RUNNING, only=("request_type", "scheduled")),
            Meaning(Value.WAITING, only=("request_type", "waiting")),
        ),
        "nv_trt_llm_kv_cache_block_metrics": (
            Meaning(Value.KV_USAGE, only=("kv_cache_block_type", "fraction")),
        ),
        "nv_trt_llm_general_metrics": (
            Meaning(Value.STEPS, only=("general_type", "iteration_counter")),
        ),
    },
)
_TGI: Final = EngineTable(
    prefix="tgi_",
    port=8080,
    metrics=_rows(
        "tgi_",
        {
            "batch_current_size": Value.RUNNING,
            "queue_size": Value.WAITING,
            "batch_forward_duration_count": Value.STEPS,
            "request_input_length_sum": Value.PROMPT_TOKENS,
            "request_generated_tokens_sum": Value.GENERATION_TOKENS,
        },
        step="request_mean_time_per_token_duration",
        request="request_duration",
        queue="request_queue_duration",
    ),
)
TABLES: Final[Mapping[EngineKind, EngineTable]] = {
    EngineKind.VLLM: _VLLM,
    EngineKind.SGLANG: _SGLANG,
    EngineKind.TENSORRT_LLM: _TENSORRT_LLM,
    EngineKind.TRITON: _TRITON,
    EngineKind.TGI: _TGI,
}
PATHS: Final = tuple(dict.fromkeys(path for table in TABLES.values() for path in table.paths))
