"""Retention: rows are deleted by age and by size, oldest first, in small steps between loads.

The audit log has a limit of its own in rows and bytes. When the whole database is too large, the
audit log shrinks before any event is deleted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ingero.storage.events.store import EventStore

STEP_ROWS: Final = 50_000
MINUTE_US: Final = 60_000_000
_SHORT_LIVED: Final = ("events", "nccl_ops")
# what an agent may send as much of as it likes: the size of the database must bound it
_SENT: Final = (*_SHORT_LIVED, "straggler_events")
_LONG_LIVED: Final = (
    *("node_metric_parts", "verdicts", "causal_chains", "straggler_events", "audit_log"),
)
# when too large, shrink slightly below the limit, so that the next load does not exceed it again
_SIZE_SLACK: Final = 0.95
MAX_AUDIT_ROWS: Final = 1_000_000
MAX_AUDIT_BYTES: Final = 256 << 20
# share of the size limit that the audit log keeps when the database is too large
_AUDIT_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How long rows are kept, counted from their reception; 0 bytes means no limit of size."""

    events_s: float
    rollups_s: float
    max_bytes: int
    step_rows: int = STEP_ROWS
    audit_rows: int = MAX_AUDIT_ROWS
    audit_bytes: int = MAX_AUDIT_BYTES


def retain(store: EventStore, policy: RetentionPolicy, now_us: int) -> Iterator[int]:
    """Delete rows that are too old or too many.

    Yields the number of rows after each step, so that the caller can load in between.
    """
    deleted = 0
    for tables, keep_s in ((_SHORT_LIVED, policy.events_s), (_LONG_LIVED, policy.rollups_s)):
        for table in tables:
            while step := store.delete_step(table, now_us - int(keep_s * 1e6), policy.step_rows):
                deleted += step
                yield step
    for step in _forget_arrivals(store, now_us, policy.step_rows):
        deleted += step
        yield step
    for step in _bound_audit(store, policy.audit_rows, policy.audit_bytes):
        deleted += step
        yield step
    if deleted:
        store.checkpoint()
    if policy.max_bytes and store.used_bytes() > policy.max_bytes:
        yield from _shrink(store, policy, now_us)


def _forget_arrivals(store: EventStore, now_us: int, step_rows: int) -> Iterator[int]:
    """Delete minutes of arrival whose events are gone: nothing reads them."""
    oldest_us = store.scalar("SELECT epoch_us(min(received_ts)) FROM events")
    keep_from_us = now_us if oldest_us is None else oldest_us - MINUTE_US
    while step := store.delete_step("arrivals", keep_from_us, step_rows):
        yield step


def _bound_audit(store: EventStore, max_rows: int, max_bytes: int) -> Iterator[int]:
    """Keep only the newest rows of an audit log that exceeds its own limits."""
    rows, size = store.audit_size()
    if rows > max_rows or size > max_bytes:
        fitting = int(rows * max_bytes / size)
        yield store.trim_audit(int(min(max_rows, fitting) * _SIZE_SLACK))


def _shrink(store: EventStore, policy: RetentionPolicy, now_us: int) -> Iterator[int]:
    """Delete the share of rows above the limit, and check again until deleting frees no space."""
    share = int(policy.max_bytes * _AUDIT_SHARE)
    yield from _bound_audit(store, policy.audit_rows, share)
    store.checkpoint()
    used = store.used_bytes()
    while used > policy.max_bytes:
        counts = store.row_counts()
        table = max(_SENT, key=lambda name: counts[name])
        surplus = int(counts[table] * (1 - policy.max_bytes * _SIZE_SLACK / used)) + 1
        while surplus > 0 and (
            step := store.delete_step(table, None, min(surplus, policy.step_rows))
        ):
            surplus -= step
            yield step
        yield from _forget_arrivals(store, now_us, policy.step_rows)
        store.checkpoint()  # only a checkpoint frees the space and shows how much
        before, used = used, store.used_bytes()
        if used >= before:
            return  # too few rows to fill a block: left for the next round
