"""Statements that derive collectives, verdicts, causal chains and minutes from events.

Each projection is one INSERT … SELECT over the batch that is being loaded, in the same transaction.
"""

from collections.abc import Iterable
from typing import Final

from ingero.contract import names
from ingero.contract.collective import COLLECTIVE_OPS, MAX_RANKS
from ingero.contract.measurements.collectives import MAX_WEIGHT
from ingero.storage.events.schema import NCCL_OPS
from ingero.storage.events.straggler_events import has_straggler_events, straggler_events_from

_SIDE_METRICS: Final = {
    names.COLLECTIVE_BARRIER_WAIT_MS: "barrier_wait_ms",
    names.COLLECTIVE_PEER_LAG_MS: "peer_lag_ms",
    names.COLLECTIVE_LATENESS_MS: "lateness_ms",
    names.COLLECTIVE_BYTES: "bytes",
}
_NCCL_FIELDS: Final = {
    names.NCCL_OP: "VARCHAR",
    names.NCCL_COMM: "VARCHAR",
    names.NCCL_RANK: "INTEGER",
    names.NCCL_NRANKS: "INTEGER",
    names.NCCL_PEER: "INTEGER",
    names.NCCL_DATATYPE: "VARCHAR",
    names.NCCL_REDUCE_OP: "VARCHAR",
    names.NCCL_SEQ: "BIGINT",
    names.NCCL_STREAM: "BIGINT",
    names.NCCL_GPU_DURATION_NS: "BIGINT",
    names.NCCL_BYTES: "BIGINT",
    names.SOURCE: "VARCHAR",
    names.SAMPLE_WEIGHT: "DOUBLE",
}
_OPS: Final = (
    ", ".join(f"'{op.lower()}': '{op}'" for op in COLLECTIVE_OPS) + ", 'bcast': 'Broadcast'"
)


def projections(metric_names: Iterable[str]) -> list[str]:
    """Return the statements for a batch with these metric names; most batches need none."""
    present = set(metric_names)
    statements = []
    if names.COLLECTIVE_DURATION_MS in present:
        statements.append(_collectives(present))
    if names.VERDICT_EVENT in present:
        statements.append(_VERDICTS)
    if names.CAUSAL_CHAIN_EVENT in present:
        statements += [_CHAINS_REPLACED, _CHAINS]
    if has_straggler_events(present):
        statements.append(straggler_events_from("batch"))
    return statements


def _attribute(name: str) -> str:
    return f'a."{name}"'


_STRUCTURE: Final = (
    "{" + ", ".join(f'"{name}": "{kind}"' for name, kind in _NCCL_FIELDS.items()) + "}"
)
# the communicator as 16 hex digits, whether it was sent as text or as a 64-bit integer
_COMM: Final = f"""CASE WHEN json_type(attrs, '$."{names.NCCL_COMM}"') IN ('BIGINT', 'UBIGINT')
  THEN format('{{:016x}}', ({_attribute(names.NCCL_COMM)}::HUGEINT + {2**64}) % {2**64})
  ELSE lpad(lower(replace({_attribute(names.NCCL_COMM)}, '0x', '')), 16, '0') END"""
_OP: Final = f"""coalesce(
  MAP {{{_OPS}}}[lower(replace(replace(
    regexp_replace({_attribute(names.NCCL_OP)}, '^.*:', ''), 'nccl', ''), '_', ''))],
  {_attribute(names.NCCL_OP)})"""


def _collectives(present: set[str]) -> str:
    """Return the statement that joins durations with the other measures of the same collective.

    Only measures that arrived in the same request are joined.
    """
    sides = {column: name for name, column in _SIDE_METRICS.items() if name in present}
    measures = ", ".join(
        f"max(coalesce(value_double, cumulative_value)) FILTER (metric_name = '{name}') AS {column}"
        for column, name in sides.items()
    )
    key = "seq, ts, cluster_id, node_id, comm_id_hash, comm_rank, comm_seq, op_type"
    points = f"""SELECT *, {_COMM} AS comm_id_hash, {_attribute(names.NCCL_RANK)} AS comm_rank,
    {_attribute(names.NCCL_SEQ)} AS comm_seq, {_OP} AS op_type
  FROM (SELECT *, json_transform(attrs, '{_STRUCTURE}') AS a FROM batch
    WHERE metric_name IN ({
        ", ".join(f"'{name}'" for name in (names.COLLECTIVE_DURATION_MS, *sides.values()))
    }))"""
    join = (
        f"LEFT JOIN (SELECT {key}, {measures} FROM points GROUP BY {key}) AS m ON " if sides else ""
    )
    join += (
        " AND ".join(f"d.{column} IS NOT DISTINCT FROM m.{column}" for column in key.split(", "))
        if sides
        else ""
    )
    values = {
        "global_rank": "d.rank",
        "rank": "d.comm_rank",
        "nranks": _between(names.NCCL_NRANKS, 1, MAX_RANKS),
        "peer": _field(names.NCCL_PEER),
        "datatype": _field(names.NCCL_DATATYPE),
        "reduce_op": _field(names.NCCL_REDUCE_OP),
        "bytes": f"coalesce({_field(names.NCCL_BYTES)}, "
        f"{'TRY_CAST(m.bytes AS BIGINT)' if 'bytes' in sides else 'NULL'})",
        "duration_ms": "coalesce(d.value_double, d.cumulative_value)",
        "gpu_duration_ns": _between(names.NCCL_GPU_DURATION_NS, 0, 2**62),
        "stream": _field(names.NCCL_STREAM),
        "source": _field(names.SOURCE),
        "weight": _between(names.SAMPLE_WEIGHT, 1, MAX_WEIGHT),
    }
    for column in ("barrier_wait_ms", "peer_lag_ms", "lateness_ms"):
        values[column] = f"m.{column}" if column in sides else "NULL"
    selected = ", ".join(values.get(name, f"d.{name}") for name, _, _ in NCCL_OPS.columns)
    return f"""INSERT INTO nccl_ops WITH points AS ({points})
SELECT {selected} FROM points AS d {join} WHERE d.metric_name = '{names.COLLECTIVE_DURATION_MS}'"""


def _field(name: str) -> str:
    return f'd.a."{name}"'


def _between(name: str, least: int, most: float) -> str:
    """Return an attribute, or NULL where no collective can have its value."""
    return f"CASE WHEN {_field(name)} BETWEEN {least} AND {most:.0f} THEN {_field(name)} END"


def missing_values(metric_names: Iterable[str]) -> list[str]:
    """Return the statements that count values of the batch which no typed column can hold.

    They were sent, but are NULL in the tables of collectives, verdicts and causal chains.
    """
    present = set(metric_names)
    statements = []
    if {names.COLLECTIVE_DURATION_MS, names.COLLECTIVE_BYTES} <= present:
        statements.append(_LARGE_BYTES)
    if names.VERDICT_EVENT in present:
        statements.append(_unread(names.VERDICT_EVENT, _VERDICT_FIELDS))
    if names.CAUSAL_CHAIN_EVENT in present:
        statements.append(_unread(names.CAUSAL_CHAIN_EVENT, _CHAIN_FIELDS))
    return statements


def _unread(event: str, fields: dict[str, str]) -> str:
    counts = " + ".join(
        f"count(*) FILTER (o->>'$.{name}' IS NOT NULL AND {value} IS NULL)"
        for name, value in fields.items()
    )
    return f"""SELECT {counts} FROM (SELECT {_OBJECT} AS o FROM batch
  WHERE metric_name = '{event}' AND kind = 'log')"""


_LARGE_BYTES: Final = f"""SELECT count(*) FROM (
    SELECT coalesce(value_double, cumulative_value) AS value FROM batch
    WHERE metric_name = '{names.COLLECTIVE_BYTES}')
  WHERE value IS NOT NULL AND TRY_CAST(value AS BIGINT) IS NULL"""

# a log record carries its object as a structured body, as JSON text in the body, or as attributes
_OBJECT: Final = """CASE WHEN json_type(detail, '$.body') = 'OBJECT' THEN detail->'$.body'
  WHEN detail->>'$.body' LIKE '{%' THEN coalesce(TRY_CAST(detail->>'$.body' AS JSON), attrs::JSON)
  ELSE attrs::JSON END"""

LARGEST_SINCE_S: Final = 253_402_300_799  # the end of the year 9999


def _real(path: str) -> str:
    value = f"TRY_CAST(o->>'$.{path}' AS DOUBLE)"
    return f"CASE WHEN isfinite({value}) THEN {value} END"


_SINCE: Final = "TRY_CAST(o->>'$.since' AS DOUBLE)"
_DETECTED: Final = "TRY_CAST(o->>'$.detected_at' AS TIMESTAMP_NS)"
# the fields that are not text, each with its value, or NULL where its column cannot hold it
_VERDICT_FIELDS: Final = {
    **{name: f"TRY_CAST(o->>'$.{name}' AS INTEGER)" for name in ("rank", "period", "peers")},
    **{
        name: _real(name)
        for name in ("excess", "error", "usd_per_hour", "confidence", "loss", "loss_error")
    },
    "since": f"CASE WHEN {_SINCE} BETWEEN 0 AND {LARGEST_SINCE_S} "
    f"THEN make_timestamp(({_SINCE} * 1e6)::BIGINT) END",
}
_CHAIN_FIELDS: Final = {
    **{name: _real(name) for name in ("cuda_p99_us", "cuda_p50_us", "tail_ratio", "confidence")},
    "pid": "TRY_CAST(o->>'$.pid' AS BIGINT)",
    "detected_at": f"CASE WHEN isfinite({_DETECTED}::TIMESTAMP) THEN {_DETECTED} END",
}

_VERDICTS: Final = f"""INSERT INTO verdicts
SELECT seq, idx, ts, received_ts, cluster_id, o->>'$.episode', o->>'$.state',
  coalesce(o->>'$.node', node_id), {_VERDICT_FIELDS["rank"]},
  coalesce(o->>'$.job', job_id), o->>'$.class', {_VERDICT_FIELDS["excess"]},
  {_VERDICT_FIELDS["error"]}, {_VERDICT_FIELDS["since"]}, {_VERDICT_FIELDS["period"]},
  {_VERDICT_FIELDS["peers"]}, {_VERDICT_FIELDS["usd_per_hour"]}, {_VERDICT_FIELDS["confidence"]},
  o->>'$.evidence', o->>'$.next', {_VERDICT_FIELDS["loss"]}, {_VERDICT_FIELDS["loss_error"]},
  coalesce(TRY_CAST(o->>'$.at_most' AS BOOLEAN), false), o->>'$.cause', o->>'$.link',
  o->>'$.shared', o->>'$.collective', o->>'$.engine'
FROM (SELECT *, {_OBJECT} AS o FROM batch
  WHERE metric_name = '{names.VERDICT_EVENT}' AND kind = 'log')"""

# Of one chain the report that is newest counts, and one that was received before adds nothing.
_NEW_CHAINS: Final = f"""SELECT seq, idx,
  coalesce(o->>'$.id', o->>'$.chain_id', causal_chain_id) AS chain_id, cluster_id,
  coalesce(o->>'$.node', node_id) AS node_id,
  coalesce({_CHAIN_FIELDS["detected_at"]}, ts) AS detected_at,
  o->>'$.severity', o->>'$.summary', o->>'$.root_cause', o->>'$.explanation',
  o->'$.recommendations', o->>'$.cuda_op', {_CHAIN_FIELDS["cuda_p99_us"]},
  {_CHAIN_FIELDS["cuda_p50_us"]}, {_CHAIN_FIELDS["tail_ratio"]}, o->'$.timeline',
  {_CHAIN_FIELDS["pid"]}, o->>'$.process', {_CHAIN_FIELDS["confidence"]}, o->>'$.top_frame',
  o->'$.stacks'
FROM (SELECT *, {_OBJECT} AS o FROM batch
  WHERE metric_name = '{names.CAUSAL_CHAIN_EVENT}' AND kind = 'log')
QUALIFY chain_id IS NULL OR row_number() OVER (
  PARTITION BY cluster_id, node_id, chain_id ORDER BY detected_at DESC, seq DESC, idx DESC) = 1"""
_SAME_CHAIN: Final = """old.chain_id = new.chain_id
  AND old.cluster_id IS NOT DISTINCT FROM new.cluster_id
  AND old.node_id IS NOT DISTINCT FROM new.node_id"""
_CHAINS_REPLACED: Final = f"""DELETE FROM causal_chains AS old USING ({_NEW_CHAINS}) AS new
WHERE {_SAME_CHAIN} AND old.detected_at < new.detected_at"""
_CHAINS: Final = f"""INSERT INTO causal_chains SELECT * FROM ({_NEW_CHAINS}) AS new
WHERE NOT EXISTS (SELECT 1 FROM causal_chains AS old WHERE {_SAME_CHAIN})"""

ROLL_UP: Final = """INSERT INTO node_metric_parts
SELECT cluster_id, node_id, rank, metric_name, temporality,
  time_bucket(INTERVAL 1 MINUTE, ts::TIMESTAMP), count(value),
  CASE WHEN isfinite(sum(value_double)) THEN sum(value_double) END,
  min(value), max(value), arg_max(value, ts), max(ts), make_timestamp($now_us)
FROM (SELECT *, coalesce(value_double, cumulative_value) AS value FROM events
  WHERE seq > $rolled AND seq <= $applied AND kind IN ('gauge', 'sum') AND ts IS NOT NULL)
WHERE value IS NOT NULL GROUP BY cluster_id, node_id, rank, metric_name, temporality, 6"""
