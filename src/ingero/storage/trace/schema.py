"""The schema of a trace database: the published tables, column by column, and our additions.

`PRAGMA user_version` stays at 10, the number of the published format, so that other readers open
our files. Our own version is in `schema_info` under `OWN_VERSION_KEY`. All times are Unix
nanoseconds.
"""

import sqlite3
from typing import Final

from ingero.contract.events import OP_TEXT, SOURCE_TEXT

USER_VERSION: Final = 10
MAX_TIME_NS: Final = 2**62  # the year 2116; later times are damage, and sums of them would overflow
FORMAT_VERSION: Final = "0.10"
OWN_VERSION_KEY: Final = "ingero_python_schema"
OWN_VERSION: Final = "1"
FIVE_SECONDS_NS: Final = 5_000_000_000
MINUTE_NS: Final = 60_000_000_000

AGGREGATE_COLUMNS: Final = (
    "bucket", "source", "op", "pid", "count", "stored", "sum_dur", "min_dur", "max_dur",
    "sum_arg0",
)  # fmt: skip
ADD_AGGREGATES: Final = (
    "DO UPDATE SET count = count + excluded.count, stored = stored + excluded.stored, "
    "sum_dur = sum_dur + excluded.sum_dur, min_dur = CASE WHEN excluded.count = 0 THEN min_dur "
    "WHEN count = 0 THEN excluded.min_dur ELSE min(min_dur, excluded.min_dur) END, "
    "max_dur = max(max_dur, excluded.max_dur), sum_arg0 = sum_arg0 + excluded.sum_arg0"
)
# anything larger is not a stack but an attempt to exhaust memory
MAX_STACK_BYTES: Final = 64 * 1024

_AGGREGATE_TABLE: Final = """(
    bucket INTEGER NOT NULL, source INTEGER NOT NULL, op INTEGER NOT NULL,
    pid INTEGER NOT NULL DEFAULT 0, count INTEGER NOT NULL DEFAULT 0,
    stored INTEGER NOT NULL DEFAULT 0, sum_dur INTEGER NOT NULL DEFAULT 0,
    min_dur INTEGER NOT NULL DEFAULT 0, max_dur INTEGER NOT NULL DEFAULT 0,
    sum_arg0 INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (bucket, source, op, pid))"""

# tables that every reader of the format knows
TABLES: Final[dict[str, str]] = {
    "events": """(
    id TEXT PRIMARY KEY, timestamp INTEGER NOT NULL, pid INTEGER NOT NULL, tid INTEGER NOT NULL,
    source INTEGER NOT NULL, op INTEGER NOT NULL, duration INTEGER NOT NULL,
    gpu_id INTEGER NOT NULL DEFAULT 0, arg0 INTEGER NOT NULL DEFAULT 0,
    arg1 INTEGER NOT NULL DEFAULT 0, ret_code INTEGER NOT NULL DEFAULT 0,
    stack_hash INTEGER NOT NULL DEFAULT 0, node TEXT NOT NULL DEFAULT '', rank INTEGER,
    local_rank INTEGER, world_size INTEGER, comm TEXT NOT NULL DEFAULT '',
    stack_ips TEXT NOT NULL DEFAULT '', cgroup_id INTEGER NOT NULL DEFAULT 0)""",
    "stack_traces": "(hash INTEGER PRIMARY KEY, ips TEXT NOT NULL, frames TEXT NOT NULL DEFAULT "
    "'')",
    "causal_chains": """(
    id TEXT PRIMARY KEY, detected_at INTEGER NOT NULL, severity TEXT NOT NULL,
    summary TEXT NOT NULL, root_cause TEXT NOT NULL, explanation TEXT NOT NULL,
    recommendations TEXT NOT NULL DEFAULT '', cuda_op TEXT NOT NULL DEFAULT '',
    cuda_p99_us INTEGER NOT NULL DEFAULT 0, cuda_p50_us INTEGER NOT NULL DEFAULT 0,
    tail_ratio REAL NOT NULL DEFAULT 0, timeline TEXT NOT NULL DEFAULT '',
    node TEXT NOT NULL DEFAULT '')""",
    "system_snapshots": """(
    id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp INTEGER NOT NULL UNIQUE, cpu_pct REAL NOT NULL,
    mem_pct REAL NOT NULL, mem_avail INTEGER NOT NULL, swap_mb INTEGER NOT NULL,
    load_avg REAL NOT NULL)""",
    "sessions": """(
    id INTEGER PRIMARY KEY AUTOINCREMENT, started_at INTEGER NOT NULL,
    stopped_at INTEGER NOT NULL DEFAULT 0, gpu_model TEXT NOT NULL DEFAULT '',
    gpu_driver TEXT NOT NULL DEFAULT '', cpu_model TEXT NOT NULL DEFAULT '',
    cpu_cores INTEGER NOT NULL DEFAULT 0, mem_total INTEGER NOT NULL DEFAULT 0,
    kernel TEXT NOT NULL DEFAULT '', os_release TEXT NOT NULL DEFAULT '',
    cuda_ver TEXT NOT NULL DEFAULT '', python_ver TEXT NOT NULL DEFAULT '',
    ingero_ver TEXT NOT NULL DEFAULT '', pid_filter TEXT NOT NULL DEFAULT '',
    flags TEXT NOT NULL DEFAULT '', node TEXT NOT NULL DEFAULT '', rank INTEGER, local_rank INTEGER,
    world_size INTEGER)""",
    "process_names": """(
    pid INTEGER NOT NULL, name TEXT NOT NULL, seen_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (pid))""",
    "event_aggregates": _AGGREGATE_TABLE,
    "event_aggregates_5s": _AGGREGATE_TABLE,
    "cgroup_metadata": """(
    cgroup_id INTEGER PRIMARY KEY, container_id TEXT NOT NULL DEFAULT '',
    cgroup_path TEXT NOT NULL DEFAULT '', pod_name TEXT NOT NULL DEFAULT '',
    namespace TEXT NOT NULL DEFAULT '')""",
    "cgroup_schedstat": """(
    cgroup_id INTEGER NOT NULL, p99_off_cpu INTEGER NOT NULL, total_off_cpu INTEGER NOT NULL,
    event_count INTEGER NOT NULL, window_start INTEGER NOT NULL DEFAULT 0,
    window_end INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (cgroup_id, window_end))""",
    "annotations": """(
    id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp INTEGER NOT NULL, labels TEXT NOT NULL,
    pid INTEGER NOT NULL DEFAULT 0, start_time INTEGER NOT NULL DEFAULT 0,
    span_start INTEGER NOT NULL DEFAULT 0, span_end INTEGER NOT NULL DEFAULT 0,
    peer_uid INTEGER NOT NULL DEFAULT 0, peer_gid INTEGER NOT NULL DEFAULT 0,
    peer_pid INTEGER NOT NULL DEFAULT 0)""",
    "sources": "(id INTEGER PRIMARY KEY, name TEXT NOT NULL, description TEXT NOT NULL)",
    "ops": """(
    source_id INTEGER NOT NULL, op_id INTEGER NOT NULL, name TEXT NOT NULL,
    description TEXT NOT NULL, PRIMARY KEY (source_id, op_id))""",
    "schema_info": "(key TEXT PRIMARY KEY, value TEXT NOT NULL)",
}

# our own tables, which other readers ignore
OWN_TABLES: Final[dict[str, str]] = {
    # contract.collective.CollectiveRecord; comm is the hash as a signed 64-bit integer
    "collectives": """(
    id INTEGER PRIMARY KEY, job TEXT, node TEXT NOT NULL DEFAULT '', global_rank INTEGER,
    comm INTEGER NOT NULL, seq INTEGER, op TEXT NOT NULL, rank INTEGER NOT NULL,
    nranks INTEGER NOT NULL, peer INTEGER, datatype TEXT NOT NULL, reduce_op TEXT,
    size_bytes INTEGER NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
    gpu_duration_ns INTEGER, stream INTEGER, source TEXT NOT NULL,
    pid INTEGER NOT NULL DEFAULT 0)""",
    # a pid identifies a process only together with its start time and node
    "processes": """(
    node TEXT NOT NULL DEFAULT '', pid INTEGER NOT NULL, start_time INTEGER NOT NULL DEFAULT 0,
    name TEXT NOT NULL, seen_at INTEGER NOT NULL, rank INTEGER, local_rank INTEGER,
    world_size INTEGER, cgroup_id INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (node, pid, start_time))""",
    "chain_history": """(
    id TEXT PRIMARY KEY, first_seen INTEGER NOT NULL, last_seen INTEGER NOT NULL,
    hits INTEGER NOT NULL, resolved_at INTEGER, pid INTEGER NOT NULL DEFAULT 0, confidence REAL)""",
    # events that were not recorded: lost in a ring, dropped by a queue, failed to be written, or
    # left out by the governor
    "losses": """(
    session_id INTEGER NOT NULL, place TEXT NOT NULL, count INTEGER NOT NULL,
    updated_at INTEGER NOT NULL, PRIMARY KEY (session_id, place))""",
    # GPU memory that a process holds, from its calls, every ten seconds
    "gpu_memory": """(
    node TEXT NOT NULL, timestamp INTEGER NOT NULL, pid INTEGER NOT NULL, blocks INTEGER NOT NULL,
    allocated_bytes INTEGER NOT NULL, reserved_bytes INTEGER NOT NULL,
    largest_free_bytes INTEGER NOT NULL, PRIMARY KEY (node, timestamp, pid))""",
    # event_aggregates of several nodes in one file; empty in files of one node
    "node_aggregates": """(
    node TEXT NOT NULL, bucket INTEGER NOT NULL, source INTEGER NOT NULL, op INTEGER NOT NULL,
    pid INTEGER NOT NULL, count INTEGER NOT NULL, stored INTEGER NOT NULL, sum_dur INTEGER NOT NULL,
    min_dur INTEGER NOT NULL, max_dur INTEGER NOT NULL, sum_arg0 INTEGER NOT NULL,
    PRIMARY KEY (node, bucket, source, op, pid))""",
    # how many calls of an operation took how long, per minute; every call counts, kept or not
    "op_durations": """(
    node TEXT NOT NULL, bucket INTEGER NOT NULL, source INTEGER NOT NULL, op INTEGER NOT NULL,
    pid INTEGER NOT NULL, floor_ns INTEGER NOT NULL, ceiling_ns INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (bucket, source, op, pid, node, floor_ns, ceiling_ns)) WITHOUT ROWID""",
    # system_snapshots of several nodes in one file; empty in files of one node
    "node_snapshots": """(
    node TEXT NOT NULL, timestamp INTEGER NOT NULL, cpu_pct REAL NOT NULL, mem_pct REAL NOT NULL,
    mem_avail INTEGER NOT NULL, swap_mb INTEGER NOT NULL, load_avg REAL NOT NULL,
    PRIMARY KEY (node, timestamp))""",
}

INDEXES: Final[tuple[str, ...]] = (
    "CREATE INDEX IF NOT EXISTS idx_events_timestamp ON events(timestamp)",
    "CREATE INDEX IF NOT EXISTS idx_events_pid ON events(pid)",
    "CREATE INDEX IF NOT EXISTS idx_events_source_op_stack ON events(source, op, stack_hash)",
    "CREATE INDEX IF NOT EXISTS idx_events_cgroup ON events(cgroup_id) WHERE cgroup_id != 0",
    "CREATE INDEX IF NOT EXISTS idx_chains_detected_at ON causal_chains(detected_at)",
    "CREATE INDEX IF NOT EXISTS idx_chains_severity ON causal_chains(severity)",
    "CREATE UNIQUE INDEX IF NOT EXISTS idx_snapshots_ts_uniq ON system_snapshots(timestamp)",
    "CREATE INDEX IF NOT EXISTS idx_sessions_started ON sessions(started_at)",
    "CREATE INDEX IF NOT EXISTS idx_aggregates_bucket ON event_aggregates(bucket)",
    "CREATE INDEX IF NOT EXISTS idx_aggregates_5s_bucket ON event_aggregates_5s(bucket)",
    "CREATE INDEX IF NOT EXISTS idx_cgroup_metadata_container_id ON cgroup_metadata(container_id) "
    "WHERE container_id != ''",
    "CREATE INDEX IF NOT EXISTS idx_cgroup_schedstat_cgroup ON cgroup_schedstat(cgroup_id)",
    "CREATE INDEX IF NOT EXISTS idx_annotations_timestamp ON annotations(timestamp)",
    "CREATE INDEX IF NOT EXISTS idx_annotations_pid ON annotations(pid) WHERE pid != 0",
    "CREATE INDEX IF NOT EXISTS idx_collectives_start ON collectives(start_ns)",
    "CREATE INDEX IF NOT EXISTS idx_collectives_comm_seq ON collectives(comm, seq)",
)

_NOTES: Final[dict[str, str]] = {
    "version": FORMAT_VERSION,
    OWN_VERSION_KEY: OWN_VERSION,
    "timestamp_unit": "nanoseconds since the Unix epoch",
    "duration_unit": "nanoseconds",
    "arg0_note": "depends on the operation: see ops.description",
    "arg1_note": "depends on the operation: see ops.description",
    "ret_code_note": "what the call returned (0 is success); for sched_switch why the thread was "
    "off the CPU: 0 unknown, 1 preempted, 2 slept, 3 waited uninterruptibly",
    "example_query": "SELECT s.name AS source, o.name AS op, count(*) AS n, max(e.duration)/1000 "
    "AS max_us FROM events e JOIN sources s ON s.id = e.source JOIN ops o "
    "ON o.source_id = e.source AND o.op_id = e.op GROUP BY 1, 2 ORDER BY n DESC",
    "stack_traces_note": "events.stack_hash leads to stack_traces.hash; frames is JSON with short "
    "keys",
    "system_snapshots_note": "one row per second while recording",
    "sessions_note": "one row per recording",
    "process_names_note": "the last name seen for a pid; processes has (node, pid, start time)",
    "event_aggregates_note": "every event is counted here, stored or not: count - stored were not "
    "kept as rows",
    "cgroup_metadata_note": "events.cgroup_id leads to the container",
    "node_note": "events.id is node:number, causal_chains.id is node:name",
    "comm_note": "events.comm is the thread's name when the event happened",
}


def create_schema(connection: sqlite3.Connection) -> None:
    """Create missing tables and their descriptions; the caller commits."""
    for name, columns in (TABLES | OWN_TABLES).items():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} {columns}")
    for statement in INDEXES:
        connection.execute(statement)
    connection.executemany(
        "INSERT OR IGNORE INTO sources VALUES (?, ?, ?)",
        [(int(source), source.name, text) for source, (_, text) in SOURCE_TEXT.items()],
    )
    connection.executemany(
        "INSERT OR IGNORE INTO ops VALUES (?, ?, ?, ?)",
        [(source, op, name, text) for (source, op), (name, text) in OP_TEXT.items()],
    )
    connection.executemany("INSERT OR IGNORE INTO schema_info VALUES (?, ?)", _NOTES.items())
    connection.executemany(
        "UPDATE schema_info SET value = ? WHERE key = ?",
        [(FORMAT_VERSION, "version"), (OWN_VERSION, OWN_VERSION_KEY)],
    )
    connection.execute(f"PRAGMA user_version = {USER_VERSION}")


def table_columns(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return the column names of a table, or nothing if it is missing, as in older files."""
    return [row[1] for row in connection.execute("SELECT * FROM pragma_table_info(?)", (table,))]
