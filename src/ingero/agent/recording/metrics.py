"""Prometheus metrics of a recording: records read, rows kept, size of the file."""

import contextlib
from pathlib import Path

from ingero.agent.nccl.rings import Rings
from ingero.agent.recording.app import TraceApp
from ingero.contract.exposition import Family, by_label, gauge, total
from ingero.storage.trace.database import RecordingState, sibling_files


def recording_families(app: TraceApp) -> list[Family]:
    """Return the metrics of a recording, computed for each scrape."""
    totals, found = app.recorder.totals, [str(chain.severity) for chain in app.recorder.chains]
    return [
        by_label(
            "ingero_trace_records_total",
            "Records read from the probes",
            "kind",
            {"event": totals.events, "collective": totals.collectives},
        ),
        total(
            "ingero_trace_unusual_total",
            "Calls that took much longer than their median",
            totals.anomalies,
        ),
        gauge(
            "ingero_trace_chains",
            "Causal chains found now",
            [((("severity", each),), found.count(each)) for each in ("HIGH", "MEDIUM", "LOW")],
        ),
        total(
            "ingero_trace_python_names_skipped_total",
            "Python frames whose names were not read",
            app.stacks.skipped_names,
        ),
        by_label(
            "ingero_trace_symbols_refused_total",
            "Files of traced processes left without symbols, and waits for CPU time",
            "reason",
            app.stacks.refused,
        ),
        *_annotation_families(app),
        *_file_families(app),
    ]


def ring_families(rings: Rings) -> list[Family]:
    """Return the metrics of the rings that NCCL plugins write."""
    waits = {"records": rings.records.refusals, "cpu": rings.cpu.refusals}
    states = [((("state", state),), count) for state, count in rings.states().items()]
    return [
        gauge("ingero_trace_rings", "Rings of the NCCL plugin", states),
        by_label(
            "ingero_trace_ring_waits_total",
            "Polls at which a ring waited because its user had used up a budget",
            "budget",
            waits,
        ),
    ]


def _annotation_families(app: TraceApp) -> list[Family]:
    if app.annotations is None:
        return []
    outcomes = {"accepted": app.annotations.accepted, **app.annotations.rejected}
    return [
        by_label(
            "ingero_trace_annotations_total",
            "Lines received on the annotation socket, by outcome",
            "outcome",
            outcomes,
        ),
        total(
            "ingero_trace_annotation_waits_total",
            "Polls at which a connection was not read because its user had sent too many bytes",
            app.annotations.limits.waits,
        ),
    ]


def _file_families(app: TraceApp) -> list[Family]:
    writer, path, totals = app.writer, app.options.db, app.recorder.totals
    if writer is None or path is None:
        return []
    counters = writer.counters
    outcomes = {
        "written": counters.written,
        "dropped": counters.dropped,
        "failed": counters.failed,
        "not_kept": totals.events - totals.stored,
    }
    is_recording = float(writer.state is RecordingState.RECORDING)
    return [
        by_label("ingero_trace_rows_total", "Rows by outcome", "outcome", outcomes),
        total("ingero_trace_db_pruned_rows_total", "Oldest rows removed", counters.pruned),
        total("ingero_trace_db_rollovers_total", "Files moved aside", counters.rollovers),
        total(
            "ingero_trace_db_rollover_failures_total",
            "Files not moved aside",
            counters.rollover_failures,
        ),
        gauge("ingero_trace_db_bytes", "Size on disk, log included", [((), _size_bytes(path))]),
        gauge("ingero_trace_recording", "1 while rows reach the disk", [((), is_recording)]),
    ]


def _size_bytes(path: Path) -> int:
    size = 0
    for file in sibling_files(path):
        with contextlib.suppress(OSError):
            size += file.stat().st_size
    return size
