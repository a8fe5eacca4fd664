"""Every name that another process relies on, written once. Renaming one breaks the contract."""

from typing import Final

# Resource attributes
NODE_ID: Final = "ingero.node.id"
CLUSTER_ID: Final = "ingero.cluster.id"
JOB_ID: Final = "ingero.job.id"
RANK: Final = "ingero.rank"
NODE_RANK: Final = "ingero.node.rank"  # what other agents send; accepted, and sent with RANK
LOCAL_RANK: Final = "ingero.local_rank"
WORLD_SIZE: Final = "ingero.world_size"
ROLE: Final = "ingero.role"
PROVIDER: Final = "ingero.provider"
AGENT_VERSION: Final = "ingero.agent.version"
GPU_MODEL: Final = "ingero.gpu_model"
GPU_UUID: Final = "ingero.gpu_uuid"  # of the GPU of a rank
POD: Final = "k8s.pod.name"  # as OpenTelemetry calls it
GPU_COUNT: Final = "ingero.gpu_count"
LABEL_PREFIX: Final = "ingero.label."  # followed by the name of a label, such as rack
MAX_LABELS: Final = 5  # of one node; more are ignored
DEFAULT_CLUSTER: Final = "default"  # for pushes without a cluster id

# Point attributes
NODE_STATE: Final = "ingero.node.state"
WORKLOAD_TYPE: Final = "ingero.workload_type"
CGROUP_HASH: Final = "ingero.cgroup_path_hash"
DETECTION_MODE: Final = "ingero.detection_mode"
EVENT_ID: Final = "ingero.event.id"
EPISODE_ID: Final = "ingero.episode.id"
MEMCPY_DIRECTION: Final = "ingero.memcpy.direction"
SOURCE: Final = "ingero.source"
STEP: Final = "ingero.step"  # number of the step, or of the first where a point covers several
# How many steps an own-time point is the mean of; 1 where it is missing.
STEP_COUNT: Final = "ingero.step.count"
# the part of own time in which the GPU waited for its host
STEP_IDLE_MS: Final = "ingero.step.idle_ms"
# The how-manieth collective of its step a collective is; on points of steps that are sent whole.
STEP_PLACE: Final = "ingero.step.place"
# Nanoseconds from the end of the collective at place 0 to the start on the GPU; on exchanges, whose
# own ends are not known.
STEP_AFTER_NS: Final = "ingero.step.after_ns"
# How many collectives of its rank a point stands for, where only a share of them is sent.
SAMPLE_WEIGHT: Final = "ingero.sample.weight"
STEP_SPAN_MS: Final = "ingero.step.span_ms"  # wall time of the step, including waits
THRESHOLD_ATTR: Final = "threshold"
SCORE_ATTR: Final = "score"
DOMINANT_SIGNAL_ATTR: Final = "dominant_signal"
CAUSAL_CHAIN_ID: Final = "causal_chain_id"

# Metrics of a push
HEALTH_SCORE: Final = "ingero.node.health_score"
THROUGHPUT_RATIO: Final = "ingero.node.throughput_ratio"
COMPUTE_EFFICIENCY: Final = "ingero.node.compute_efficiency"
MEMORY_HEADROOM: Final = "ingero.node.memory_headroom"
CPU_AVAILABILITY: Final = "ingero.node.cpu_availability"
DEGRADATION_WARNING: Final = "ingero.node.degradation_warning"
AGENT_DETECTION_MODE: Final = "ingero.agent.detection_mode"
AGENT_FLEET_REACHABLE: Final = "ingero.agent.fleet_reachable"
AGENT_LOST_RECORDS: Final = "ingero.agent.lost_records"
AGENT_READY_S: Final = "ingero.agent.ready_s"  # how long a node will still calibrate
NODE_INFO: Final = "ingero.node.info"
NODE_WORLD_SIZE: Final = "ingero.node.world_size"
KERNEL_LAUNCH_TOTAL: Final = "ingero.node.cuda_kernel_launch_total"
CPU_STALL_NANOS_TOTAL: Final = "ingero.node.cpu_stall_nanos_total"
MEMCPY_BYTES_TOTAL: Final = "ingero.node.cuda_memcpy_bytes_total"
FLEET_IDLE_GPU_COST: Final = "ingero_fleet_idle_gpu_cost_usd_per_hour"  # forwarded to Echo, too
MEMFRAG_ALLOCATED: Final = "gpu.memfrag.allocated_bytes"
MEMFRAG_RESERVED: Final = "gpu.memfrag.reserved_bytes"
MEMFRAG_LARGEST_FREE: Final = "gpu.memfrag.largest_free_bytes"
MEMFRAG_RATIO: Final = "gpu.memfrag.fragmentation_ratio"
STRAGGLER_EVENT: Final = "ingero.node.straggler_event"
STEP_OWN_TIME_MS: Final = "ingero.step.own_time_ms"
HEALTH_SCOPE: Final = "ingero.health"
HEALTH_SCOPE_VERSION: Final = "0.10.0"  # version of the published contract

# Signals of a rank that may explain why it is slow, and what its agent found
RANK_SIGNAL: Final = "ingero.rank.signal"
RANK_CAUSE: Final = "ingero.rank.cause"  # the value is the share of the lateness it explains
RANK_PREFIX: Final = "ingero.rank."
SIGNAL: Final = "ingero.signal"
CAUSE_KIND: Final = "ingero.cause.kind"
CAUSE_TEXT: Final = "ingero.cause.text"
ASK_NUMBER: Final = "ingero.ask"

# Inference engines: one resource per engine, or per data-parallel rank of one, in a push of its own
ENGINE_PREFIX: Final = "ingero.engine."  # of every metric and attribute of an engine
ENGINE_KIND: Final = "ingero.engine.kind"  # vllm, sglang, tensorrt-llm, triton or tgi
ENGINE_MODEL: Final = "ingero.engine.model"
ENGINE_PORT: Final = "ingero.engine.port"
ENGINE_PID: Final = "ingero.engine.pid"
ENGINE_RANK: Final = "ingero.engine.rank"  # data-parallel rank
ENGINE_WAITS: Final = "ingero.engine.waits"  # where each worker of a stalled engine waits
ENGINE_HEALTH: Final = "ingero.engine.health"  # status of the health page of a stalled engine
ENGINE_UP: Final = "ingero.engine.up"  # 1 while the metrics page answers
ENGINE_STALLED: Final = "ingero.engine.stalled_seconds"
# What an engine did since the last report, by field of `EngineReport`; times are means.
ENGINE_METRICS: Final = {
    "running": "ingero.engine.requests_running",
    "waiting": "ingero.engine.requests_waiting",
    "waiting_capacity": "ingero.engine.requests_waiting_for_capacity",
    "waiting_deferred": "ingero.engine.requests_deferred",
    "paused": "ingero.engine.requests_paused",
    "kv_usage": "ingero.engine.kv_cache_usage_ratio",
    "preemptions_per_s": "ingero.engine.preemptions_per_second",
    "steps_per_s": "ingero.engine.steps_per_second",
    "step_s": "ingero.engine.step_seconds",
    "step_tokens": "ingero.engine.tokens_per_step",
    "first_token_s": "ingero.engine.time_to_first_token_seconds",
    "request_s": "ingero.engine.request_seconds",
    "queue_s": "ingero.engine.queue_seconds",
    "prefill_s": "ingero.engine.prefill_seconds",
    "decode_s": "ingero.engine.decode_seconds",
    "prompt_tokens_per_s": "ingero.engine.prompt_tokens_per_second",
    "generation_tokens_per_s": "ingero.engine.generation_tokens_per_second",
}

# Collectives
COLLECTIVE_DURATION_MS: Final = "nccl.collective.duration_ms"
COLLECTIVE_BARRIER_WAIT_MS: Final = "nccl.collective.barrier_wait_ms"
COLLECTIVE_BYTES: Final = "nccl.collective.bytes"
# Published: the rank's own duration minus the median of its peers.
COLLECTIVE_PEER_LAG_MS: Final = "nccl.collective.peer_lag_ms"
# Ours: positive where the rank entered the collective later than its peers.
COLLECTIVE_LATENESS_MS: Final = "ingero.collective.lateness_ms"
NCCL_OP: Final = "nccl.op_type"
NCCL_COMM: Final = "nccl.comm_id_hash"
NCCL_RANK: Final = "nccl.rank"
NCCL_NRANKS: Final = "nccl.nranks"
NCCL_DATATYPE: Final = "nccl.datatype"
NCCL_REDUCE_OP: Final = "nccl.reduce_op"
NCCL_PEER: Final = "nccl.peer_rank"
NCCL_SEQ: Final = "nccl.seq"
NCCL_STREAM: Final = "nccl.stream"
NCCL_GPU_DURATION_NS: Final = "nccl.gpu_duration_ns"
NCCL_BYTES: Final = "nccl.bytes"
# True on points about a wait; their `nccl.op_type` is that of the operation.
NCCL_BARRIER: Final = "nccl.barrier"

# Reply of a push
THRESHOLD_HEADER: Final = "X-Ingero-Threshold"
QUORUM_HEADER: Final = "X-Ingero-Quorum-Met"
QUORUM_REASON_HEADER: Final = "X-Ingero-Quorum-Reason"  # only without quorum
VERDICT_HEADER: Final = "X-Ingero-Verdict"
THRESHOLD_METADATA: Final = "ingero-threshold"
QUORUM_METADATA: Final = "ingero-quorum-met"
QUORUM_REASON_METADATA: Final = "ingero-quorum-reason"
VERDICT_METADATA: Final = "ingero-verdict"
# Fleet asks the agent of a slow rank what sets it apart; `contract/causes.py` has the content.
ASK_HEADER: Final = "X-Ingero-Ask"
SIGNATURE_HEADER: Final = "X-Ingero-Signature"  # of webhooks: `t=TIME,v1=HMAC`
ASK_METADATA: Final = "ingero-ask"
CLUSTER_QUERY: Final = "cluster_id"
NODE_QUERY: Final = "node_id"
JOB_QUERY: Final = "job_id"
CLUSTER_HEADER: Final = "ingero.cluster.id"
FLEET_TOKEN_VARIABLE: Final = "INGERO_FLEET_TOKEN"  # noqa: S105 - the name of a variable, not a token
NODE_NAME_HEADER: Final = "X-Ingero-Node"

SEQUENCE_HEADER: Final = "X-Ingero-Sequence"  # Echo: the journal number of a request
SEQUENCE_METADATA: Final = "ingero-sequence"
# Echo: reply only once the request can be queried; the name of a header and of gRPC metadata.
WAIT_HEADER: Final = "x-ingero-wait"

# OTLP
METRICS_METHOD: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
LOGS_METHOD: Final = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
PROTOBUF_TYPE: Final = "application/x-protobuf"
JSON_TYPE: Final = "application/json"

# Verdict events and series
VERDICT_EVENT: Final = "ingero.verdict"  # log record name and Echo event
# Log record name; the body or the attributes are the chain object.
CAUSAL_CHAIN_EVENT: Final = "ingero.causal_chain"

# The folder of the NCCL plugin's rings, unless the variable names another one.
RING_FOLDER: Final = "/dev/shm"  # noqa: S108 - files there are owner-only and never followed through links
RING_FOLDER_VARIABLE: Final = "INGERO_NCCL_RING_DIR"

# A reverse proxy that signs users in proves with it that it is the proxy
PROXY_SECRET_HEADER: Final = "x-ingero-proxy-secret"  # noqa: S105 - the name of a header
