"""Echo's own series, computed when scraped."""

from collections.abc import Mapping
from itertools import accumulate

from ingero.contract.exposition import Family, Labels, counter, gauge
from ingero.echo.admission import Admission
from ingero.echo.audit import AuditTrail
from ingero.echo.engine import Engine
from ingero.echo.receive import ACK_BOUNDS_MS, Receiver
from ingero.echo.store.api import StoreStats

_ALL: Labels = ()


def ingest_families(engine: Engine, receiver: Receiver, admission: Admission) -> list[Family]:
    """The way in: requests, acknowledgements, journal and backlog."""
    counters = engine.ingest.counters
    refused = (
        ((("reason", "malformed"),), counters.refused_malformed),
        ((("reason", "overload"),), counters.refused_overload),
        ((("reason", "full"),), counters.refused_full),
        ((("reason", "receiving"),), admission.refused),
    )
    replies = (
        ((("status", str(status)), ("transport", transport)), count)
        for (transport, status), count in sorted(receiver.replies.items())
    )
    return [
        counter("ingero_echo_requests_total", "Requests acknowledged", [(_ALL, counters.requests)]),
        counter(
            "ingero_echo_events_total", "Events in acknowledged requests", [(_ALL, counters.events)]
        ),
        counter(
            "ingero_echo_bytes_total", "Bytes of acknowledged requests", [(_ALL, counters.bytes)]
        ),
        counter(
            "ingero_echo_syncs_total",
            "Syncs of the journal, one per group",
            [(_ALL, counters.groups)],
        ),
        counter("ingero_echo_refused_total", "Requests refused, by reason", refused),
        counter("ingero_echo_replies_total", "Replies by transport and status", replies),
        _acknowledgements(receiver),
        gauge(
            "ingero_echo_receiving_bytes",
            "Bodies being received",
            [(_ALL, admission.in_flight_bytes)],
        ),
        gauge(
            "ingero_echo_journal_bytes",
            "Disk space of the journal",
            [(_ALL, engine.ingest.journal_bytes)],
        ),
        gauge(
            "ingero_echo_backlog_bytes",
            "Acknowledged, not yet in the database",
            [(_ALL, engine.ingest.backlog_bytes)],
        ),
        gauge(
            "ingero_echo_backlog_requests",
            "Acknowledged requests not yet in the database",
            [(_ALL, engine.ingest.durable_seq - engine.store.applied_seq)],
        ),
    ]


def store_families(engine: Engine, stats: StoreStats | None, limit_bytes: int) -> list[Family]:
    """The store process; what it did not answer in time is absent."""
    progress = engine.store.progress
    families = [
        gauge(
            "ingero_echo_store_up",
            "1 while the store process answers",
            [(_ALL, int(stats is not None))],
        ),
        counter(
            "ingero_echo_store_restarts_total",
            "Store processes replaced",
            [(_ALL, engine.store.restarts)],
        ),
        counter(
            "ingero_echo_loaded_events_total",
            "Events loaded by this store process",
            [(_ALL, progress.events)],
        ),
        counter(
            "ingero_echo_duplicate_requests_total",
            "Retries that added nothing",
            [(_ALL, progress.duplicates)],
        ),
        counter(
            "ingero_echo_unreadable_requests_total",
            "Journalled, not understood",
            [(_ALL, progress.unreadable)],
        ),
        counter(
            "ingero_echo_retention_deleted_rows_total",
            "Rows deleted by retention",
            [(_ALL, progress.deleted)],
        ),
        gauge(
            "ingero_echo_database_limit_bytes",
            "Size at which the oldest rows go",
            [(_ALL, limit_bytes)],
        ),
    ]
    if stats is None:
        return families
    rows = ((((("table", table),)), count) for table, count in sorted(stats.rows.items()))
    families += [
        gauge("ingero_echo_rows", "Rows by table", rows),
        gauge("ingero_echo_database_bytes", "Space of live data", [(_ALL, stats.database_bytes)]),
        gauge(
            "ingero_echo_store_resident_bytes",
            "Memory of the store process",
            [(_ALL, stats.resident_bytes)],
        ),
    ]
    if stats.oldest_received_s is not None:
        oldest = [(_ALL, stats.oldest_received_s)]
        families.append(
            gauge(
                "ingero_echo_oldest_event_timestamp_seconds",
                "When the oldest event arrived",
                oldest,
            )
        )
    return families


def question_families(replies: Mapping[tuple[str, int], int], audit: AuditTrail) -> list[Family]:
    """The question listener and its audit trail."""
    samples = (
        ((("status", str(status)), ("transport", transport)), count)
        for (transport, status), count in sorted(replies.items())
    )
    return [
        counter("ingero_echo_questions_total", "Questions by transport and status", samples),
        counter(
            "ingero_echo_audit_rows_total", "Rows written to the audit log", [(_ALL, audit.written)]
        ),
        counter(
            "ingero_echo_audit_dropped_total",
            "Audit rows that did not fit",
            [(_ALL, audit.dropped)],
        ),
    ]


def _acknowledgements(receiver: Receiver) -> Family:
    totals = list(accumulate(receiver.ack_counts))
    bounds = [*(f"{bound:g}" for bound in ACK_BOUNDS_MS), "+Inf"]
    samples: list[tuple[str, Labels, float]] = [
        ("_bucket", (("le", bound),), total) for bound, total in zip(bounds, totals, strict=True)
    ]
    samples += [("_sum", _ALL, receiver.ack_sum_ms), ("_count", _ALL, totals[-1])]
    help_text = "Time from decoded request to acknowledgement, in ms"
    return Family("ingero_echo_ack_milliseconds", "histogram", help_text, tuple(samples))
