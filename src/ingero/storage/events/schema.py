"""Echo's tables and views, each column with the comment that readers of the catalogue see.

`(seq, idx)` identifies an event: the request in order of arrival, and the position inside it.
There are no primary keys, because duplicate requests are removed by their digest before they are
stored. The running total of a cumulative counter never stands in a value column: it has a column
of its own, and views turn it into increases.
"""

from typing import Final

from ingero.storage.events.arrivals import ARRIVALS
from ingero.storage.events.lateness import lateness_view
from ingero.storage.events.straggler_events import STRAGGLER_EVENTS
from ingero.storage.events.table import Table

_IDENTITY = (
    ("cluster_id", "VARCHAR", "Cluster that the sender named; 'default' if it named none"),
    ("node_id", "VARCHAR", "Node that measured this; NULL if the sender did not name it"),
    ("rank", "INTEGER", "Rank in the training job; NULL for the node itself"),
    ("nranks", "INTEGER", "World size of the job; NULL if unknown"),
    ("job_id", "VARCHAR", "Training job"),
    ("role", "VARCHAR", "Role of the rank in the job, for example pp2"),
    ("provider", "VARCHAR", "Cloud or operator of the node"),
    ("gpu_model", "VARCHAR", "GPU model of the node"),
)
_ORIGIN = (
    (
        "seq",
        "BIGINT",
        "Number of the request, in order of arrival; (seq, idx) identifies the event",
    ),
    ("idx", "INTEGER", "Position inside the request"),
)

EVENTS: Final = Table(
    "events",
    "Everything received over OTLP: one row per metric point, log record or span. Echo's own "
    "metrics are not included.",
    (
        *_ORIGIN,
        (
            "ts",
            "TIMESTAMP_NS",
            "Time on the sender's clock, UTC; for spans and collectives, their end",
        ),
        (
            "start_ts",
            "TIMESTAMP_NS",
            "Start of the span, of the collective, or of the interval that the value covers",
        ),
        ("received_ts", "TIMESTAMP", "When Echo received it, UTC; retention uses this time"),
        *_IDENTITY,
        ("scope", "VARCHAR", "Instrumentation scope of the sender"),
        ("metric_name", "VARCHAR", "Metric name, span name, or event name of a log record"),
        ("kind", "VARCHAR", "gauge, sum, histogram, exponential_histogram, summary, span or log"),
        ("temporality", "VARCHAR", "delta or cumulative for sums and histograms, else NULL"),
        ("unit", "VARCHAR", "Unit of the value; ms for spans"),
        (
            "value_double",
            "DOUBLE",
            "Value of a gauge or delta sum, or span duration in ms; NULL for cumulative counters",
        ),
        ("value_int", "BIGINT", "The same value if the sender sent an integer"),
        (
            "cumulative_value",
            "DOUBLE",
            "Running total of a cumulative counter. Do not sum it: use max - min per series, or "
            "the view counter_rates",
        ),
        ("causal_chain_id", "VARCHAR", "Causal chain that this event belongs to"),
        (
            "attrs",
            "JSON",
            "All other attributes of the point, for example attrs->>'$.\"nccl.op_type\"'",
        ),
        ("resource", "JSON", "Resource attributes that have no column"),
        (
            "detail",
            "JSON",
            "Buckets of a histogram; body and severity of a log; ids, status and events of a span",
        ),
    ),
)

CAUSAL_CHAINS: Final = Table(
    "causal_chains",
    "Causal chains that agents reported: what went wrong on a node and why. One row per chain, "
    "with what was reported last.",
    (
        *_ORIGIN,
        ("chain_id", "VARCHAR", "Id of the chain; events.causal_chain_id refers to it"),
        ("cluster_id", "VARCHAR", "Cluster"),
        ("node_id", "VARCHAR", "Node"),
        ("detected_at", "TIMESTAMP_NS", "When the agent found it, UTC"),
        ("severity", "VARCHAR", "CRITICAL, HIGH, MEDIUM or LOW"),
        ("summary", "VARCHAR", "Summary in one line"),
        ("root_cause", "VARCHAR", "What caused it"),
        ("explanation", "VARCHAR", "How cause and effect are linked"),
        ("recommendations", "JSON", "List of things to do"),
        ("cuda_op", "VARCHAR", "CUDA call that became slow"),
        ("p99_us", "DOUBLE", "Its p99 in microseconds"),
        ("p50_us", "DOUBLE", "Its median in microseconds"),
        ("tail_ratio", "DOUBLE", "p99 / p50"),
        ("timeline", "JSON", "Events of the chain in order"),
        ("pid", "BIGINT", "Process on the node"),
        ("process", "VARCHAR", "Name of the process"),
        ("confidence", "DOUBLE", "Share of the slow calls that overlap the evidence"),
        ("top_frame", "VARCHAR", "Place in the code from which most of the slow time came"),
        (
            "stacks",
            "JSON",
            "Stacks of the slow calls, costliest first: op, calls, total_us, frames from the "
            "innermost",
        ),
    ),
)

NODE_METRIC_PARTS: Final = Table(
    "node_metric_parts",
    "One-minute aggregates in parts, as they were computed. Read the view node_metrics instead, "
    "which combines the parts of each minute.",
    (
        ("cluster_id", "VARCHAR", "Cluster"),
        ("node_id", "VARCHAR", "Node"),
        ("rank", "INTEGER", "Rank; NULL for the node itself"),
        ("metric_name", "VARCHAR", "Metric"),
        (
            "temporality",
            "VARCHAR",
            "cumulative for counters: then min, max and last are running totals, and sum is NULL",
        ),
        ("bucket_ts", "TIMESTAMP", "Start of the minute, UTC"),
        ("count", "BIGINT", "Number of points"),
        ("sum", "DOUBLE", "Sum of the values; NULL for cumulative counters"),
        ("min", "DOUBLE", "Smallest value"),
        ("max", "DOUBLE", "Largest value"),
        ("last", "DOUBLE", "Latest value"),
        ("last_ts", "TIMESTAMP_NS", "Time of the latest value"),
        ("received_ts", "TIMESTAMP", "When Echo computed it, UTC"),
    ),
)

NODE_METRICS: Final = Table(
    "node_metrics",
    "One row per node, rank, metric and minute (UTC). The newest minute appears up to a minute "
    "late; events has its points at once.",
    tuple(column for column in NODE_METRIC_PARTS.columns if column[0] != "received_ts"),
    sql="""SELECT cluster_id, node_id, rank, metric_name, temporality, bucket_ts,
  sum(count)::BIGINT AS count, sum(sum) AS sum, min(min) AS min, max(max) AS max,
  arg_max(last, last_ts) AS last, max(last_ts) AS last_ts
FROM node_metric_parts GROUP BY cluster_id, node_id, rank, metric_name, temporality, bucket_ts""",
)

NCCL_OPS: Final = Table(
    "nccl_ops",
    "Collectives: one row per operation and rank, for each nccl.collective.duration_ms in events.",
    (
        *_ORIGIN,
        ("ts", "TIMESTAMP_NS", "End on the host clock, UTC"),
        ("start_ts", "TIMESTAMP_NS", "Entry on the host clock, UTC"),
        ("received_ts", "TIMESTAMP", "When Echo received it, UTC"),
        *(column for column in _IDENTITY if column[0] not in ("rank", "nranks")),
        ("global_rank", "INTEGER", "Rank in the job; NULL if unknown"),
        ("comm_id_hash", "VARCHAR", "Communicator, 16 hex digits, the same on all ranks"),
        (
            "comm_seq",
            "BIGINT",
            "Sequence number on the communicator, the same on all ranks of one operation; NULL if "
            "unknown",
        ),
        (
            "op_type",
            "VARCHAR",
            "AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, Send, Recv, ...",
        ),
        ("rank", "INTEGER", "Rank within the communicator"),
        ("nranks", "INTEGER", "Ranks in the communicator"),
        ("peer", "INTEGER", "The other rank of a send or receive"),
        ("datatype", "VARCHAR", "Element type"),
        ("reduce_op", "VARCHAR", "sum, prod, max, min, avg"),
        ("bytes", "BIGINT", "Message size"),
        (
            "duration_ms",
            "DOUBLE",
            "Time in the operation on the host; shortest on a late rank, which does not wait",
        ),
        (
            "gpu_duration_ns",
            "BIGINT",
            "Duration on the GPU's clock; NULL if the GPU did not time it",
        ),
        (
            "barrier_wait_ms",
            "DOUBLE",
            "Time from the enqueue until the host began to wait for the stream; NULL if it never "
            "waited",
        ),
        ("peer_lag_ms", "DOUBLE", "Own duration minus the peers' median"),
        (
            "lateness_ms",
            "DOUBLE",
            "How much later than its peers this rank arrived; positive is late",
        ),
        ("stream", "BIGINT", "CUDA stream"),
        ("source", "VARCHAR", "nccl-plugin, nccl-inspector, flight-recorder, kineto or ebpf"),
        (
            "weight",
            "DOUBLE",
            "Collectives of its rank that this row stands for, where agents send a share of them; "
            "sums and counts must be weighted by it",
        ),
    ),
)

LATENESS: Final = lateness_view(NCCL_OPS)

VERDICTS: Final = Table(
    "verdicts",
    "Fleet's verdicts: one row per change of an episode. The latest row of an episode is its "
    "present state.",
    (
        *_ORIGIN,
        ("ts", "TIMESTAMP_NS", "When Fleet decided, UTC"),
        ("received_ts", "TIMESTAMP", "When Echo received it, UTC"),
        ("cluster_id", "VARCHAR", "Cluster"),
        ("episode", "VARCHAR", "Id that stays the same from suspect to resolved"),
        (
            "state",
            "VARCHAR",
            "suspect, straggler, late, recovering, resolved, fleet_event, not_sure, overloaded",
        ),
        ("node_id", "VARCHAR", "Node"),
        ("rank", "INTEGER", "Rank; NULL for the whole node"),
        ("job_id", "VARCHAR", "Training job"),
        (
            "class",
            "VARCHAR",
            "Why: compute, host, network, hang, stall, structural, data_imbalance, fleet, "
            "kv_cache, queue, unknown",
        ),
        ("excess", "DOUBLE", "Share by which its own time exceeds that of its peers"),
        ("error", "DOUBLE", "Error bar of excess"),
        ("since", "TIMESTAMP", "Start of the episode, UTC"),
        ("period", "INTEGER", "Steps between stalls, if they repeat"),
        ("peers", "INTEGER", "Peers compared"),
        ("usd_per_hour", "DOUBLE", "The loss as money; NULL without a GPU rate"),
        ("confidence", "DOUBLE", "Confidence, 0 to 1"),
        ("evidence", "VARCHAR", "What was measured"),
        ("next", "VARCHAR", "What to do"),
        ("loss", "DOUBLE", "What the job loses, as a share of its slow step"),
        ("loss_error", "DOUBLE", "Error bar of loss"),
        ("at_most", "BOOLEAN", "True where loss is an upper bound"),
        ("cause", "VARCHAR", "The signal that sets the rank apart from its peers, with values"),
        ("link", "VARCHAR", "The two ends of a slow link"),
        ("shared", "VARCHAR", "What the ranks of a group event have in common"),
        ("collective", "VARCHAR", "Where the job waits for the rank: operation, size and ranks"),
        (
            "engine",
            "VARCHAR",
            "Kind, port and process of an inference engine, whose model is in job_id; NULL for "
            "training",
        ),
    ),
)

AUDIT_LOG: Final = Table(
    "audit_log",
    "Requests with the digest of their token; tokens themselves are never stored.",
    (
        ("ts", "TIMESTAMP", "Time of the request, UTC"),
        ("request_id", "VARCHAR", "Id of the request"),
        ("token_sha256_12", "VARCHAR", "First 12 hex digits of the token's SHA-256"),
        ("key_name", "VARCHAR", "Name of the key in the ACL file"),
        ("transport", "VARCHAR", "http, mcp or otlp"),
        ("tool", "VARCHAR", "Tool or path"),
        ("cluster_ids", "VARCHAR[]", "Clusters asked about"),
        ("status", "INTEGER", "HTTP status of the answer"),
        ("rows", "BIGINT", "Rows in the answer"),
        ("ms", "DOUBLE", "Time to answer"),
        ("address", "VARCHAR", "Address of requests without a valid token, else NULL"),
        (
            "requests",
            "BIGINT",
            "Requests in this row: those without a valid token share one row "
            "per address and minute",
        ),
    ),
)

META: Final = Table(
    "meta",
    "State of the store itself: schema_version, applied_seq, rolled_seq, arrived_seq, "
    "arrivals_from_us, rows_deleted, requests_dropped.",
    (("key", "VARCHAR", "Name"), ("value", "BIGINT", "Value")),
)

APPLIED_REQUESTS: Final = Table(
    "applied_requests",
    "Digests of recently applied requests, so that a retry adds nothing.",
    (
        ("digest", "BLOB", "BLAKE2b-128 of signal and body"),
        ("seq", "BIGINT", "Number of the request"),
        ("received_ts", "TIMESTAMP", "When it was received, UTC"),
    ),
)

_SERIES = "cluster_id, node_id, rank, job_id, metric_name, unit, attrs"
COUNTER_RATES: Final = Table(
    "counter_rates",
    "Increase and rate of cumulative counters, per series and minute (max - min).",
    (
        *(column for column in EVENTS.columns if column[0] in _SERIES.split(", ")),
        ("bucket_ts", "TIMESTAMP", "Start of the minute, UTC"),
        (
            "increase",
            "DOUBLE",
            "How much the counter grew between its first and last point of the minute",
        ),
        ("seconds", "DOUBLE", "Time between those points"),
        ("rate", "DOUBLE", "increase / seconds; NULL with a single point"),
    ),
    sql=f"""SELECT {_SERIES}, time_bucket(INTERVAL 1 MINUTE, ts::TIMESTAMP) AS bucket_ts,
  max(cumulative_value) - min(cumulative_value) AS increase,
  (epoch_ns(max(ts)) - epoch_ns(min(ts))) / 1e9 AS seconds,
  CASE WHEN max(ts) > min(ts)
    THEN (max(cumulative_value) - min(cumulative_value))
      / ((epoch_ns(max(ts)) - epoch_ns(min(ts))) / 1e9) END AS rate
FROM events WHERE cumulative_value IS NOT NULL GROUP BY ALL""",
)
COUNTER_STEPS: Final = Table(
    "counter_steps",
    "Cumulative counters point by point. Steps are the growth since the previous point, so they "
    "may be summed.",
    (
        *(column for column in EVENTS.columns if column[0] in _SERIES.split(", ")),
        ("ts", "TIMESTAMP_NS", "Time of the point, UTC"),
        (
            "step",
            "DOUBLE",
            "Growth since the previous point; the whole value after a reset; NULL for the first "
            "point",
        ),
        ("seconds", "DOUBLE", "Time since the previous point"),
    ),
    sql=f"""SELECT {_SERIES}, ts,
  CASE WHEN cumulative_value >= lag(cumulative_value) OVER series
      THEN cumulative_value - lag(cumulative_value) OVER series
    WHEN lag(cumulative_value) OVER series IS NOT NULL THEN cumulative_value END AS step,
  (epoch_ns(ts) - epoch_ns(lag(ts) OVER series)) / 1e9 AS seconds
FROM events WHERE cumulative_value IS NOT NULL
WINDOW series AS (PARTITION BY {_SERIES} ORDER BY ts)""",
)

TABLES: Final = (
    EVENTS,
    CAUSAL_CHAINS,
    NODE_METRIC_PARTS,
    ARRIVALS,
    NCCL_OPS,
    VERDICTS,
    STRAGGLER_EVENTS,
    AUDIT_LOG,
    META,
    APPLIED_REQUESTS,
)
VIEWS: Final = (NODE_METRICS, COUNTER_RATES, COUNTER_STEPS, LATENESS)
# tables that user SQL may read; the audit log, digests and meta are for the operator only
READABLE: Final = (
    EVENTS,
    CAUSAL_CHAINS,
    NODE_METRICS,
    NCCL_OPS,
    VERDICTS,
    COUNTER_RATES,
    COUNTER_STEPS,
    LATENESS,
)
