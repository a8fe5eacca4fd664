"""Straggler events that agents send: few among many events, so they have a table of their own."""

from collections.abc import Iterable
from typing import Final

from ingero.contract import names
from ingero.storage.events.table import Table

_NAMES: Final = (
    names.STRAGGLER_EVENT,
    "ingero.detection.straggler",
    "ingero.detection.degradation",
)
STRAGGLER_EVENTS: Final = Table(
    "straggler_events",
    "Events with which agents report that their node became slow or recovered.",
    (
        ("seq", "BIGINT", "Number of the request, in order of arrival"),
        ("idx", "INTEGER", "Position inside the request"),
        ("ts", "TIMESTAMP_NS", "Time on the sender's clock, UTC"),
        ("received_ts", "TIMESTAMP", "When Echo received it, UTC"),
        ("cluster_id", "VARCHAR", "Cluster"),
        ("node_id", "VARCHAR", "Node"),
        ("rank", "INTEGER", "Rank; NULL for the node itself"),
        ("score", "VARCHAR", "Health score, as it was sent"),
        ("threshold", "VARCHAR", "Threshold, as it was sent"),
        ("dominant_signal", "VARCHAR", "Signal that lowered the score most"),
        ("event_id", "VARCHAR", "Id of the event"),
    ),
)


def has_straggler_events(metric_names: Iterable[str | None]) -> bool:
    """Return whether a batch with these names has straggler events."""
    return not set(_NAMES).isdisjoint(metric_names)


def straggler_events_from(source: str) -> str:
    """Return the statement that copies the straggler events of `events` or of a batch."""
    listed = ", ".join(f"'{name}'" for name in _NAMES)
    return f"""INSERT INTO straggler_events
SELECT seq, idx, ts, received_ts, cluster_id, node_id, rank, attrs->>'$.score',
  attrs->>'$.threshold', attrs->>'$.dominant_signal', attrs->>'$."{names.EVENT_ID}"'
FROM {source} WHERE metric_name IN ({listed})"""
