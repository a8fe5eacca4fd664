"""Every name that other processes rely on, written a second time (F104).

A rename must fail here.
"""

from ingero.contract import api_paths, names
from ingero.contract.types import DetectionMode, NodeState
from ingero.contract.verdict import CauseClass, VerdictState

PUBLISHED = {
    "NODE_ID": "ingero.node.id",
    "CLUSTER_ID": "ingero.cluster.id",
    "NODE_RANK": "ingero.node.rank",
    "WORLD_SIZE": "ingero.world_size",
    "PROVIDER": "ingero.provider",
    "GPU_MODEL": "ingero.gpu_model",
    "GPU_COUNT": "ingero.gpu_count",
    "NODE_STATE": "ingero.node.state",
    "WORKLOAD_TYPE": "ingero.workload_type",
    "CGROUP_HASH": "ingero.cgroup_path_hash",
    "DETECTION_MODE": "ingero.detection_mode",
    "EVENT_ID": "ingero.event.id",
    "MEMCPY_DIRECTION": "ingero.memcpy.direction",
    "THRESHOLD_ATTR": "threshold",
    "SCORE_ATTR": "score",
    "DOMINANT_SIGNAL_ATTR": "dominant_signal",
    "HEALTH_SCORE": "ingero.node.health_score",
    "THROUGHPUT_RATIO": "ingero.node.throughput_ratio",
    "COMPUTE_EFFICIENCY": "ingero.node.compute_efficiency",
    "MEMORY_HEADROOM": "ingero.node.memory_headroom",
    "CPU_AVAILABILITY": "ingero.node.cpu_availability",
    "DEGRADATION_WARNING": "ingero.node.degradation_warning",
    "AGENT_DETECTION_MODE": "ingero.agent.detection_mode",
    "AGENT_FLEET_REACHABLE": "ingero.agent.fleet_reachable",
    "NODE_INFO": "ingero.node.info",
    "NODE_WORLD_SIZE": "ingero.node.world_size",
    "KERNEL_LAUNCH_TOTAL": "ingero.node.cuda_kernel_launch_total",
    "CPU_STALL_NANOS_TOTAL": "ingero.node.cpu_stall_nanos_total",
    "MEMCPY_BYTES_TOTAL": "ingero.node.cuda_memcpy_bytes_total",
    "STRAGGLER_EVENT": "ingero.node.straggler_event",
    "HEALTH_SCOPE": "ingero.health",
    "COLLECTIVE_DURATION_MS": "nccl.collective.duration_ms",
    "COLLECTIVE_BARRIER_WAIT_MS": "nccl.collective.barrier_wait_ms",
    "COLLECTIVE_BYTES": "nccl.collective.bytes",
    "COLLECTIVE_PEER_LAG_MS": "nccl.collective.peer_lag_ms",
    "NCCL_OP": "nccl.op_type",
    "NCCL_COMM": "nccl.comm_id_hash",
    "NCCL_RANK": "nccl.rank",
    "NCCL_NRANKS": "nccl.nranks",
    "NCCL_DATATYPE": "nccl.datatype",
    "NCCL_REDUCE_OP": "nccl.reduce_op",
    "NCCL_PEER": "nccl.peer_rank",
    "NCCL_BARRIER": "nccl.barrier",
    "THRESHOLD_HEADER": "X-Ingero-Threshold",
    "QUORUM_HEADER": "X-Ingero-Quorum-Met",
    "THRESHOLD_METADATA": "ingero-threshold",
    "QUORUM_METADATA": "ingero-quorum-met",
    "CLUSTER_QUERY": "cluster_id",
    "CLUSTER_HEADER": "ingero.cluster.id",
    "METRICS_METHOD": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
PUBLISHED_PATHS = {
    "FLEET_THRESHOLD": "/api/v1/threshold",
    "OTLP_METRICS": "/v1/metrics",
    "OTLP_TRACES": "/v1/traces",
    "OTLP_LOGS": "/v1/logs",
}
OURS = {
    "JOB_ID": "ingero.job.id",
    "RANK": "ingero.rank",
    "LOCAL_RANK": "ingero.local_rank",
    "ROLE": "ingero.role",
    "VERDICT_HEADER": "X-Ingero-Verdict",
    "VERDICT_METADATA": "ingero-verdict",
    "ASK_HEADER": "X-Ingero-Ask",
    "ASK_METADATA": "ingero-ask",
    "RANK_SIGNAL": "ingero.rank.signal",
    "RANK_CAUSE": "ingero.rank.cause",
    "NODE_QUERY": "node_id",
    "COLLECTIVE_LATENESS_MS": "ingero.collective.lateness_ms",
    "STEP_OWN_TIME_MS": "ingero.step.own_time_ms",
    "NCCL_SEQ": "nccl.seq",
    "NCCL_STREAM": "nccl.stream",
    "NCCL_GPU_DURATION_NS": "nccl.gpu_duration_ns",
}


def test_no_name_drifts() -> None:
    expected = PUBLISHED | OURS
    assert {name: getattr(names, name, None) for name in expected} == expected


def test_no_published_path_drifts() -> None:
    found = {name: getattr(api_paths, name, None) for name in PUBLISHED_PATHS}
    assert found == PUBLISHED_PATHS


def test_no_word_on_the_wire_drifts() -> None:
    assert [mode.value for mode in DetectionMode] == [
        "fleet",
        "fleet-cached",
        "local-cached",
        "local-baseline",
        "none",
    ]
    assert {state.value for state in NodeState} == {"active", "calibrating", "idle", "stale"}
    assert {
        "suspect",
        "straggler",
        "late",
        "recovering",
        "resolved",
        "fleet_event",
        "not_sure",
    } <= {s.value for s in VerdictState}
    assert {
        "compute",
        "host",
        "network",
        "hang",
        "stall",
        "structural",
        "data_imbalance",
        "fleet",
        "unknown",
    } <= {cause.value for cause in CauseClass}
