"""Echo's tables: every column with the sentence that a reader of the catalogue sees, and the steps between versions.

Rules that shape it: `(seq, idx)` names an event (request in order of arrival, position inside it) and nothing is a
primary key, because duplicates are removed by request digest before they get here. A cumulative counter never sits in
a value column: its running total has a column of its own whose name says so, and views turn it into increases.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ingero.errors import StoreError

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Table:
    """One table or view: its comment, and per column `(name, type, comment)`. A view has its query in `sql`."""

    name: str
    comment: str
    columns: tuple[tuple[str, str, str], ...]
    sql: str | None = None


_IDENTITY = (
    ("cluster_id", "VARCHAR", "Cluster the sender named; 'default' when it named none"),
    ("node_id", "VARCHAR", "Node that measured this; NULL when the sender did not say"),
    ("rank", "INTEGER", "Rank in the training job; NULL for the node itself"),
    ("nranks", "INTEGER", "World size of the job; NULL when unknown"),
    ("job_id", "VARCHAR", "Training job"),
    ("role", "VARCHAR", "Role of the rank in the job, for example pp2"),
    ("provider", "VARCHAR", "Cloud or operator of the node"),
    ("gpu_model", "VARCHAR", "GPU model of the node"),
)
_ORIGIN = (
    (
        "seq",
        "BIGINT",
        "Request that brought this row, in order of arrival; with idx it names the event",
    ),
    ("idx", "INTEGER", "Position inside the request"),
)

EVENTS: Final = Table(
    "events",
    "Everything received over OTLP: one row per metric point, log record or span. Rows of Echo itself are never here.",
    (
        *_ORIGIN,
        (
            "ts",
            "TIMESTAMP_NS",
            "When it happened on the sender's clock, UTC; for spans and collectives the end",
        ),
        (
            "start_ts",
            "TIMESTAMP_NS",
            "Start of the interval the value covers, of the span or of the collective",
        ),
        ("received_ts", "TIMESTAMP", "When Echo received it, UTC; retention counts from here"),
        *_IDENTITY,
        ("scope", "VARCHAR", "Instrumentation scope of the sender"),
        ("metric_name", "VARCHAR", "Metric name, span name, or event name of a log record"),
        ("kind", "VARCHAR", "gauge, sum, histogram, exponential_histogram, summary, span or log"),
        ("temporality", "VARCHAR", "delta or cumulative for sums and histograms, else NULL"),
        ("unit", "VARCHAR", "Unit of the value; ms for spans"),
        (
            "value_double",
            "DOUBLE",
            "The value: gauge, delta sum, span duration in ms. NULL for cumulative counters",
        ),
        ("value_int", "BIGINT", "The same value where the sender sent an integer"),
        (
            "cumulative_value",
            "DOUBLE",
            "Running total of a cumulative counter. Do not sum: use max - min per series, or view counter_rates",
        ),
        ("causal_chain_id", "VARCHAR", "Causal chain this event belongs to"),
        ("attrs", "JSON", "All other attributes of the point: attrs->>'$.\"nccl.op_type\"'"),
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
    "Causal chains that agents reported: what went wrong on a node and why.",
    (
        *_ORIGIN,
        ("chain_id", "VARCHAR", "Id of the chain; events.causal_chain_id refers to it"),
        ("cluster_id", "VARCHAR", "Cluster"),
        ("node_id", "VARCHAR", "Node"),
        ("detected_at", "TIMESTAMP_NS", "When the agent found it, UTC"),
        ("severity", "VARCHAR", "CRITICAL, HIGH, MEDIUM or LOW"),
        ("summary", "VARCHAR", "One line"),
        ("root_cause", "VARCHAR", "What caused it"),
        ("explanation", "VARCHAR", "How cause and effect are linked"),
        ("recommendations", "JSON", "What to do, a list"),
        ("cuda_op", "VARCHAR", "CUDA call that became slow"),
        ("p99_us", "DOUBLE", "Its p99 in microseconds"),
        ("p50_us", "DOUBLE", "Its median in microseconds"),
        ("tail_ratio", "DOUBLE", "p99 / p50"),
        ("timeline", "JSON", "Events of the chain in order"),
    ),
)

NODE_METRIC_PARTS: Final = Table(
    "node_metric_parts",
    "One-minute sums as they were computed; read view node_metrics, which joins the parts of one minute.",
    (
        ("cluster_id", "VARCHAR", "Cluster"),
        ("node_id", "VARCHAR", "Node"),
        ("rank", "INTEGER", "Rank; NULL for the node itself"),
        ("metric_name", "VARCHAR", "Metric"),
        (
            "temporality",
            "VARCHAR",
            "cumulative for counters: min, max and last are running totals and sum is NULL",
        ),
        ("bucket_ts", "TIMESTAMP", "Start of the minute, UTC"),
        ("count", "BIGINT", "Points"),
        ("sum", "DOUBLE", "Sum of the values; NULL for cumulative counters"),
        ("min", "DOUBLE", "Smallest"),
        ("max", "DOUBLE", "Largest"),
        ("last", "DOUBLE", "Latest"),
        ("last_ts", "TIMESTAMP_NS", "Time of the latest"),
        ("received_ts", "TIMESTAMP", "When Echo computed it, UTC"),
    ),
)

NODE_METRICS: Final = Table(
    "node_metrics",
    "One row per node, rank, metric and minute (UTC). The newest minute comes up to a minute late; events has it now.",
    tuple(column for column in NODE_METRIC_PARTS.columns if column[0] != "received_ts"),
    sql="""SELECT cluster_id, node_id, rank, metric_name, temporality, bucket_ts, sum(count)::BIGINT AS count,
  sum(sum) AS sum, min(min) AS min, max(max) AS max, arg_max(last, last_ts) AS last, max(last_ts) AS last_ts
FROM node_metric_parts GROUP BY cluster_id, node_id, rank, metric_name, temporality, bucket_ts""",
)

NCCL_OPS: Final = Table(
    "nccl_ops",
    "Collectives: one row per operation as one rank saw it, one for one with nccl.collective.duration_ms in events.",
    (
        *_ORIGIN,
        ("ts", "TIMESTAMP_NS", "End on the host clock, UTC"),
        ("start_ts", "TIMESTAMP_NS", "Entry on the host clock, UTC"),
        ("received_ts", "TIMESTAMP", "When Echo received it, UTC"),
        *(column for column in _IDENTITY if column[0] not in ("rank", "nranks")),
        ("global_rank", "INTEGER", "Rank in the job; NULL when unknown"),
        ("comm_id_hash", "VARCHAR", "Communicator, 16 hex digits, the same on all ranks"),
        (
            "comm_seq",
            "BIGINT",
            "Sequence number on the communicator: joins the ranks of one operation; NULL if unknown",
        ),
        (
            "op_type",
            "VARCHAR",
            "AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, Send, Recv, ...",
        ),
        ("rank", "INTEGER", "Rank within the communicator"),
        ("nranks", "INTEGER", "Ranks in the communicator"),
        ("peer", "INTEGER", "Other side of a send or receive"),
        ("datatype", "VARCHAR", "Element type"),
        ("reduce_op", "VARCHAR", "sum, prod, max, min, avg"),
        ("bytes", "BIGINT", "Message size"),
        (
            "duration_ms",
            "DOUBLE",
            "Time in the operation on the host. A late rank shows the shortest: it does not wait",
        ),
        (
            "gpu_duration_ns",
            "BIGINT",
            "Duration on the GPU's own clock; NULL where the GPU did not time it",
        ),
        (
            "barrier_wait_ms",
            "DOUBLE",
            "From the enqueue to the moment the host began to wait for its stream; NULL where it did not",
        ),
        ("peer_lag_ms", "DOUBLE", "Own duration minus the peers' median"),
        ("lateness_ms", "DOUBLE", "How much later than its peers this rank came; positive is late"),
        ("stream", "BIGINT", "CUDA stream"),
        ("source", "VARCHAR", "nccl-plugin, nccl-inspector, flight-recorder, kineto or ebpf"),
    ),
)

VERDICTS: Final = Table(
    "verdicts",
    "What Fleet decided, one row per change of an episode; the latest row of an episode is where it stands.",
    (
        *_ORIGIN,
        ("ts", "TIMESTAMP_NS", "When Fleet decided, UTC"),
        ("received_ts", "TIMESTAMP", "When Echo received it, UTC"),
        ("cluster_id", "VARCHAR", "Cluster"),
        ("episode", "VARCHAR", "Id that stays the same from suspect to resolved"),
        ("state", "VARCHAR", "suspect, straggler, recovering, resolved, fleet_event or not_sure"),
        ("node_id", "VARCHAR", "Node"),
        ("rank", "INTEGER", "Rank; NULL for the whole node"),
        ("job_id", "VARCHAR", "Training job"),
        (
            "class",
            "VARCHAR",
            "Why: compute, host, network, hang, stall, structural, data_imbalance, fleet, unknown",
        ),
        ("excess", "DOUBLE", "Share of own time above the peers'"),
        ("error", "DOUBLE", "Error bar of excess"),
        ("since", "TIMESTAMP", "Start of the episode, UTC"),
        ("period", "INTEGER", "Steps between stalls, when they repeat"),
        ("peers", "INTEGER", "Peers compared"),
        ("usd_per_hour", "DOUBLE", "What it costs at most; NULL without a rate"),
        ("confidence", "DOUBLE", "0 to 1"),
        ("evidence", "VARCHAR", "What was measured"),
        ("next", "VARCHAR", "What to do"),
    ),
)

AUDIT_LOG: Final = Table(
    "audit_log",
    "Who asked what: token digests, never tokens.",
    (
        ("ts", "TIMESTAMP", "When, UTC"),
        ("request_id", "VARCHAR", "Id of the request"),
        ("token_sha256_12", "VARCHAR", "First 12 hex digits of the token's SHA-256"),
        ("key_name", "VARCHAR", "Name of the key in the ACL file"),
        ("transport", "VARCHAR", "http, mcp or otlp"),
        ("tool", "VARCHAR", "Tool or path"),
        ("cluster_ids", "VARCHAR[]", "Clusters asked about"),
        ("status", "INTEGER", "HTTP status of the answer"),
        ("rows", "BIGINT", "Rows answered"),
        ("ms", "DOUBLE", "Time to answer"),
    ),
)

META: Final = Table(
    "meta",
    "State of the store itself: schema_version, applied_seq, rolled_seq, rows_deleted.",
    (("key", "VARCHAR", "Name"), ("value", "BIGINT", "Value")),
)

APPLIED_REQUESTS: Final = Table(
    "applied_requests",
    "Digests of the requests applied lately: a retry of one of them adds nothing.",
    (
        ("digest", "BLOB", "BLAKE2b-128 of signal and body"),
        ("seq", "BIGINT", "Request"),
        ("received_ts", "TIMESTAMP", "When it was received, UTC"),
    ),
)

_SERIES = "cluster_id, node_id, rank, job_id, metric_name, unit, attrs"
COUNTER_RATES: Final = Table(
    "counter_rates",
    "Cumulative counters as increase and rate: max - min per series and minute.",
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
  max(cumulative_value) - min(cumulative_value) AS increase, (epoch_ns(max(ts)) - epoch_ns(min(ts))) / 1e9 AS seconds,
  CASE WHEN max(ts) > min(ts)
    THEN (max(cumulative_value) - min(cumulative_value)) / ((epoch_ns(max(ts)) - epoch_ns(min(ts))) / 1e9) END AS rate
FROM events WHERE cumulative_value IS NOT NULL GROUP BY ALL""",
)
COUNTER_STEPS: Final = Table(
    "counter_steps",
    "Cumulative counters point by point: step is the growth since the point before, so steps may be summed.",
    (
        *(column for column in EVENTS.columns if column[0] in _SERIES.split(", ")),
        ("ts", "TIMESTAMP_NS", "Time of the point, UTC"),
        (
            "step",
            "DOUBLE",
            "Growth since the point before; the whole value after a reset; NULL for the first point",
        ),
        ("seconds", "DOUBLE", "Time since the point before"),
    ),
    sql=f"""SELECT {_SERIES}, ts,
  CASE WHEN cumulative_value >= lag(cumulative_value) OVER series
      THEN cumulative_value - lag(cumulative_value) OVER series
    WHEN lag(cumulative_value) OVER series IS NOT NULL THEN cumulative_value END AS step,
  (epoch_ns(ts) - epoch_ns(lag(ts) OVER series)) / 1e9 AS seconds
FROM events WHERE cumulative_value IS NOT NULL WINDOW series AS (PARTITION BY {_SERIES} ORDER BY ts)""",
)

TABLES: Final = (
    EVENTS,
    CAUSAL_CHAINS,
    NODE_METRIC_PARTS,
    NCCL_OPS,
    VERDICTS,
    AUDIT_LOG,
    META,
    APPLIED_REQUESTS,
)
VIEWS: Final = (NODE_METRICS, COUNTER_RATES, COUNTER_STEPS)
# what questions may read; the audit log, digests and meta stay with the operator
READABLE: Final = (
    EVENTS,
    CAUSAL_CHAINS,
    NODE_METRICS,
    NCCL_OPS,
    VERDICTS,
    COUNTER_RATES,
    COUNTER_STEPS,
)


class Connection(Protocol):
    """The little of a DuckDB connection that migrations need."""

    def execute(self, query: str, /) -> "Connection": ...

    def fetchone(self) -> tuple[object, ...] | None: ...

    def fetchall(self) -> list[tuple[object, ...]]: ...


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def create_statements() -> list[str]:
    """Version 1 from nothing."""
    statements = [
        f"CREATE TABLE {table.name} ({', '.join(f'{_quoted(name)} {kind}' for name, kind, _ in table.columns)})"
        for table in TABLES
    ]
    statements += [f"CREATE VIEW {view.name} AS {view.sql}" for view in VIEWS]
    for table in (*TABLES, *VIEWS):
        word = "TABLE" if table.sql is None else "VIEW"
        statements.append(f"COMMENT ON {word} {table.name} IS {_literal(table.comment)}")
        statements += [
            f"COMMENT ON COLUMN {table.name}.{_quoted(name)} IS {_literal(comment)}"
            for name, _, comment in table.columns
        ]
    statements.append(
        "INSERT INTO meta VALUES ('applied_seq', 0), ('rolled_seq', 0), ('rows_deleted', 0)"
    )
    return statements


# steps from the version before to this one; a released step never changes
MIGRATIONS: Final[Mapping[int, Sequence[str]]] = {1: create_statements()}


def migrate(connection: Connection, migrations: Mapping[int, Sequence[str]] = MIGRATIONS) -> int:
    """Bring a database to the newest version, one transaction per step; returns the version it had before."""
    newest = max(migrations)
    found = stored_version(connection)
    if found > newest:
        raise StoreError(
            f"the database has schema version {found}, this program knows {newest}; use a newer ingero-echo"
        )
    for version in range(found + 1, newest + 1):
        connection.execute("BEGIN")
        for statement in migrations[version]:
            connection.execute(statement)
        connection.execute("DELETE FROM meta WHERE key = 'schema_version'")
        connection.execute(f"INSERT INTO meta VALUES ('schema_version', {version})")
        connection.execute("COMMIT")
    return found


def stored_version(connection: Connection) -> int:
    """0 for an empty database; one with tables of somebody else is refused, so that ours never land among them."""
    tables = {
        name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    }
    if not tables:
        return 0
    row = None
    if "meta" in tables:
        row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None or not isinstance(row[0], int):
        raise StoreError(
            "the database is not one of Echo's: it has tables, but no schema version; name another"
        )
    return row[0]
