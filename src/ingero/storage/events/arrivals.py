"""What arrived, by minute, node and metric: most questions read this instead of all events.

A row is a part of a minute: each roll-up adds parts of what was loaded since the one before, and
`until_seq` says up to which request it went. So a reader who knows how far the minutes had come
takes the parts up to there, and reads the requests after that from `events`.
"""

from typing import Final

from ingero.storage.events.table import Table

_MEASURED: Final = "FILTER (value_double IS NOT NULL OR cumulative_value IS NOT NULL)"
# each column with its type, its comment and how it is computed from events
_COLUMNS: Final = (
    ("cluster_id", "VARCHAR", "Cluster", "cluster_id"),
    ("node_id", "VARCHAR", "Node", "node_id"),
    ("metric_name", "VARCHAR", "Metric, span or event", "metric_name"),
    (
        "minute",
        "TIMESTAMP",
        "Start of the minute of arrival, UTC",
        "time_bucket(INTERVAL 1 MINUTE, received_ts)",
    ),
    ("events", "BIGINT", "Number of events", "count(*)"),
    ("newest_ts", "TIMESTAMP", "When the last of them arrived, UTC", "max(received_ts)"),
    ("first_seq", "BIGINT", "First request with one of them", "min(seq)"),
    (
        "last_seq",
        "BIGINT",
        "Last request with a value of a gauge or delta sum",
        "max(seq) FILTER (value_double IS NOT NULL)",
    ),
    ("points", "BIGINT", "Number of events that have a value", f"count(*) {_MEASURED}"),
    ("first_ts", "TIMESTAMP_NS", "Earliest time of a value, UTC", f"min(ts) {_MEASURED}"),
    ("last_ts", "TIMESTAMP_NS", "Latest time of a value, UTC", f"max(ts) {_MEASURED}"),
    ("numbers", "BIGINT", "Number of values that are no running totals", "count(value_double)"),
    ("sum", "DOUBLE", "Sum of those", "sum(value_double)"),
    ("min", "DOUBLE", "Smallest of those", "min(value_double)"),
    ("max", "DOUBLE", "Largest of those", "max(value_double)"),
    ("min_total", "DOUBLE", "Smallest running total", "min(cumulative_value)"),
    ("max_total", "DOUBLE", "Largest running total", "max(cumulative_value)"),
)
_KEYS: Final = "cluster_id, node_id, metric_name, time_bucket(INTERVAL 1 MINUTE, received_ts)"

ARRIVALS: Final = Table(
    "arrivals",
    "What arrived in one minute from one node for one metric, in parts.",
    (
        *(column[:3] for column in _COLUMNS),
        ("until_seq", "BIGINT", "Last request that the roll-up of this part looked at"),
    ),
)
ARRIVAL_COLUMNS: Final = ", ".join(name for name, *_ in _COLUMNS)
_COMPUTED: Final = ", ".join(f"{value} AS {name}" for name, _, _, value in _COLUMNS)


def arrivals_of(condition: str) -> str:
    """Return a query for the same columns, computed from the events that fulfil a condition."""
    return f"SELECT {_COMPUTED} FROM events WHERE {condition} GROUP BY {_KEYS}"


ARRIVALS_ROLL_UP: Final = f"""INSERT INTO arrivals SELECT *, $applied AS until_seq
FROM ({arrivals_of("seq > $rolled AND seq <= $applied")})"""
