"""The answers of a node's HTTP API, key by key as clients of the published API expect them.

A key is left out where its value is unknown.
"""

from typing import Final

import msgspec

# With more events than this, operations are answered from per-minute aggregates.
AGGREGATE_ABOVE_EVENTS: Final = 500_000
MAX_QUERY_BODY_BYTES: Final = 1 << 20


class SystemNow(msgspec.Struct, omit_defaults=True):
    cpu_percent: float
    mem_percent: float
    swap_mb: int
    load_avg: float


class TopChain(msgspec.Struct, omit_defaults=True):
    severity: str
    summary: str
    root_cause: str
    recommendations: list[str] = []


class GpuInfo(msgspec.Struct, omit_defaults=True):
    model: str
    driver_version: str = ""
    cuda_version: str = ""


class Overview(msgspec.Struct, omit_defaults=True):
    event_count: int
    chain_count: int
    session_count: int
    system: SystemNow | None = None
    top_chain: TopChain | None = None
    gpu: GpuInfo | None = None
    recorded_until: str | None = None  # only where no recorder is running


class OpRow(msgspec.Struct, omit_defaults=True):
    """Percentiles of the last calls, or totals where there are too many events for percentiles."""

    operation: str
    source: str
    count: int
    p50_us: int = 0
    p95_us: int = 0
    p99_us: int = 0
    avg_us: float | None = None
    min_us: int | None = None
    max_us: int | None = None


class Ops(msgspec.Struct, omit_defaults=True):
    mode: str
    ops: list[OpRow] | None
    system: SystemNow | None = None


class ChainLine(msgspec.Struct, omit_defaults=True):
    layer: str
    detail: str


class ChainRow(msgspec.Struct, omit_defaults=True):
    id: str
    detected_at: str
    severity: str
    summary: str
    root_cause: str
    explanation: str
    recommendations: list[str] = []
    cuda_op: str = ""
    cuda_p99_us: int = 0
    cuda_p50_us: int = 0
    tail_ratio: float | None = None
    timeline: list[ChainLine] = []
    node: str = ""


class Chains(msgspec.Struct, omit_defaults=True):
    chains: list[ChainRow]
    truncated: bool = False


class SnapshotRow(msgspec.Struct):
    timestamp: str
    cpu_percent: float
    mem_percent: float
    mem_avail_mb: int
    swap_mb: int
    load_avg: float


class Snapshots(msgspec.Struct):
    snapshots: list[SnapshotRow]


class GraphMetrics(msgspec.Struct, omit_defaults=True):
    captures: int
    instantiations: int
    launches: int
    total_events: int
    avg_capture_dur_us: float | None = None
    avg_instantiate_dur_us: float | None = None
    launch_rate_per_sec: float | None = None


class GraphEvent(msgspec.Struct, omit_defaults=True):
    timestamp: str
    pid: int
    op: str
    duration_us: int
    # Null where the recorder did not store it.
    ret_code: int | None = msgspec.field(default_factory=int)
    comm: str = ""
    stream_handle: str = ""
    graph_handle: str = ""
    exec_handle: str = ""
    capture_mode: str = ""


class Capability(msgspec.Struct, omit_defaults=True):
    id: str
    label: str
    available: bool
    source: str = ""
    required_tool: str = ""
    tooltip: str = ""


class QueryRequest(msgspec.Struct):
    sql: str = ""
    limit: int = 0


class QueryReply(msgspec.Struct, omit_defaults=True):
    columns: list[str]
    rows: list[list[str | int | float | None]]
    truncated: bool = False


class TimeReply(msgspec.Struct):
    timestamp_ns: int


class ErrorReply(msgspec.Struct):
    error: str


_PRESENT = (
    ("cpu_util", "CPU utilisation", "/proc/stat"),
    ("mem_util", "Memory utilisation", "/proc/meminfo"),
    ("load_avg", "Load average", "/proc/loadavg"),
    ("swap", "Swap", "/proc/meminfo"),
    ("cuda_ops", "CUDA runtime calls", "uprobes on libcudart"),
    ("driver_ops", "CUDA driver calls", "uprobes on libcuda"),
    ("host_events", "Scheduler and memory events", "kernel tracepoints"),
    ("block_io", "Block I/O", "kernel tracepoints"),
    ("tcp_retransmit", "TCP retransmissions", "kernel tracepoints"),
    ("net_io", "Socket I/O", "kernel tracepoints"),
    ("causal_chains", "Causal chains", "correlation of the above"),
    ("stack_traces", "Stack traces", "frame pointers and symbols"),
    ("cuda_graph", "CUDA graphs", "uprobes on libcudart"),
)
_ABSENT = (
    ("gpu_util", "GPU utilisation", "NVML"),
    ("hbm_occupancy", "GPU memory occupancy", "NVML"),
    ("sm_efficiency", "SM efficiency", "CUPTI"),
    ("nvlink_util", "NVLink utilisation", "DCGM"),
    ("ib_util", "InfiniBand utilisation", "RDMA counters"),
    ("power_draw", "Power draw", "NVML"),
    ("pcie_util", "PCIe utilisation", "DCGM"),
    ("stall_breakdown", "Warp stall breakdown", "CUPTI"),
    ("nvtx_phases", "NVTX phases", "NVTX"),
    ("what_if", "What-if analysis", "CUPTI"),
    ("pipeline_flow", "Pipeline flow", "NVTX"),
    ("cost_waste", "Cost of waste", "NVML"),
    ("storage_io", "Storage fabric I/O", "RDMA counters"),
)


def capabilities() -> list[Capability]:
    """Return what this API can show, and which tool the rest would need."""
    present = [
        Capability(id=i, label=label, available=True, source=source)
        for i, label, source in _PRESENT
    ]
    return present + [
        Capability(
            id=i,
            label=label,
            available=False,
            required_tool=needs,
            tooltip=f"needs {needs}, which is not read",
        )
        for i, label, needs in _ABSENT
    ]
