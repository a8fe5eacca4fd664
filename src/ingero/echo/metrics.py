"""Echo's own metrics, computed when they are scraped."""

from collections.abc import Iterable, Mapping
from itertools import accumulate

from ingero.contract.exposition import Family, Labels, counter, gauge
from ingero.echo.audit import AuditTrail
from ingero.echo.engine import Engine
from ingero.echo.receive import ACK_BOUNDS_MS, Receiver
from ingero.echo.store.api import StoreStats
from ingero.echo.store.turns import Turns
from ingero.echo.store.wire import Progress
from ingero.storage.events.reasons import REASONS, UNREADABLE
from ingero.transport.admission import Admission

_Row = tuple[str, str, float]  # name, help, value


def ingest_families(engine: Engine, receiver: Receiver, admission: Admission) -> list[Family]:
    """Return the metrics of ingest: requests, acknowledgements, journal and backlog."""
    ingest, counters = engine.ingest, engine.ingest.counters
    refused = {
        "malformed": counters.refused_malformed,
        "overload": counters.refused_overload,
        "full": counters.refused_full,
        "receiving": admission.refused,
    }
    waiting = ingest.durable_seq - engine.store.applied_seq
    return [
        *_single(
            ("ingero_echo_requests_total", "Requests acknowledged", counters.requests),
            ("ingero_echo_events_total", "Events in acknowledged requests", counters.events),
            ("ingero_echo_bytes_total", "Bytes of acknowledged requests", counters.bytes),
            ("ingero_echo_syncs_total", "Syncs of the journal, one per group", counters.groups),
        ),
        counter("ingero_echo_refused_total", "Requests refused, by reason", _by("reason", refused)),
        counter(
            "ingero_echo_replies_total",
            "Replies by transport and status",
            _by_status(receiver.replies),
        ),
        _acknowledgements(receiver),
        *_single(
            (
                "ingero_echo_receiving_bytes",
                "Size of the bodies being received",
                admission.receiving_bytes,
            ),
            (
                "ingero_echo_connections_closed_total",
                "HTTP connections closed because too many were open",
                admission.connections.closed,
            ),
            ("ingero_echo_journal_bytes", "Disk space of the journal", ingest.journal_bytes),
            (
                "ingero_echo_backlog_bytes",
                "Bytes acknowledged but not yet in the database",
                ingest.backlog_bytes,
            ),
            (
                "ingero_echo_backlog_requests",
                "Requests acknowledged but not yet in the database",
                waiting,
            ),
        ),
    ]


def store_families(engine: Engine, stats: StoreStats | None, limit_bytes: int) -> list[Family]:
    """Return the metrics of the store process; some are absent without its `stats`."""
    store, progress = engine.store, engine.store.progress
    rows: list[_Row] = [
        ("ingero_echo_store_up", "1 while the store process answers", int(stats is not None)),
        ("ingero_echo_store_restarts_total", "Store processes replaced", store.restarts),
        ("ingero_echo_loaded_events_total", "Events loaded by this store process", progress.events),
        ("ingero_echo_duplicate_requests_total", "Retries that added nothing", progress.duplicates),
        (
            "ingero_echo_unreadable_requests_total",
            "Requests in the journal that could not be decoded",
            progress.quarantined.get(UNREADABLE, 0),
        ),
        (
            "ingero_echo_missing_values_total",
            "Values that were not finite or out of range, stored as NULL",
            progress.missing,
        ),
        ("ingero_echo_retention_deleted_rows_total", "Rows deleted by retention", progress.deleted),
        (
            "ingero_echo_database_limit_bytes",
            "Size above which the oldest rows are deleted",
            limit_bytes,
        ),
    ]
    families = [*_single(*rows), *_quarantine_families(progress)]
    if stats is None:
        return families
    rows = [
        ("ingero_echo_database_bytes", "Space of live data", stats.database_bytes),
        ("ingero_echo_store_resident_bytes", "Memory of the store process", stats.resident_bytes),
        (
            "ingero_echo_store_buffer_bytes",
            "Part of it that caches the database: at most half of --store-memory",
            stats.buffer_bytes,
        ),
    ]
    if stats.oldest_received_s is not None:
        rows.append(
            (
                "ingero_echo_oldest_event_timestamp_seconds",
                "When the oldest event arrived",
                stats.oldest_received_s,
            )
        )
    return [
        *families,
        *_single(*rows),
        gauge("ingero_echo_rows", "Rows by table", _by("table", dict(sorted(stats.rows.items())))),
    ]


def _quarantine_families(progress: Progress) -> list[Family]:
    reasons = {reason: progress.quarantined.get(reason, 0) for reason in REASONS}
    rows = [
        (
            "ingero_echo_quarantined_requests",
            "Requests in quarantine because they cannot be loaded",
            progress.in_quarantine,
        ),
        (
            "ingero_echo_quarantined_bytes",
            "Size of the requests in quarantine",
            progress.quarantine_bytes,
        ),
        (
            "ingero_echo_quarantine_dropped_total",
            "Requests dropped because the quarantine was full",
            progress.dropped,
        ),
    ]
    return [
        *_single(*rows),
        counter(
            "ingero_echo_quarantined_total",
            "Requests set aside because they cannot be loaded, by reason",
            _by("reason", reasons),
        ),
    ]


def question_families(
    replies: Mapping[tuple[str, int], int], turns: Turns, audit: AuditTrail
) -> list[Family]:
    """Return the metrics of the question listener, its queues and its audit trail."""
    return [
        counter(
            "ingero_echo_questions_total",
            "Questions by transport and status",
            _by_status(replies),
        ),
        counter(
            "ingero_echo_queries_refused_total",
            "Queries refused because others were waiting, by whose queue was full; `paused` counts "
            "statements of callers who had ended the store process",
            _by("queue", {**turns.refused, "paused": turns.offences.refused}),
        ),
        *_single(
            ("ingero_echo_queries_running", "Queries under way in the store", turns.running),
            ("ingero_echo_queries_waiting", "Queries that wait for a reader", turns.waiting),
            ("ingero_echo_audit_rows_total", "Rows written to the audit log", audit.written),
            (
                "ingero_echo_audit_dropped_total",
                "Audit rows dropped because too many were waiting",
                audit.dropped,
            ),
        ),
    ]


def _single(*rows: _Row) -> Iterable[Family]:
    for name, help_text, value in rows:
        kind = counter if name.endswith("_total") else gauge
        yield kind(name, help_text, [((), value)])


def _by(label: str, values: Mapping[str, int]) -> Iterable[tuple[Labels, float]]:
    return ((((label, name),), value) for name, value in values.items())


def _by_status(replies: Mapping[tuple[str, int], int]) -> Iterable[tuple[Labels, float]]:
    for (transport, status), count in sorted(replies.items()):
        yield (("status", str(status)), ("transport", transport)), count


def _acknowledgements(receiver: Receiver) -> Family:
    totals = list(accumulate(receiver.ack_counts))
    bounds = [*(f"{bound:g}" for bound in ACK_BOUNDS_MS), "+Inf"]
    samples: list[tuple[str, Labels, float]] = [
        ("_bucket", (("le", bound),), total) for bound, total in zip(bounds, totals, strict=True)
    ]
    samples += [("_sum", (), receiver.ack_sum_ms), ("_count", (), totals[-1])]
    help_text = "Time from decoded request to acknowledgement, in ms"
    return Family("ingero_echo_ack_milliseconds", "histogram", help_text, tuple(samples))
