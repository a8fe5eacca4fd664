"""The pages of the health listener for people: the state of clusters, and the times of operations.

They are plain tables, so that they can be read with any browser or `curl`.
"""

import html
import time
from collections.abc import Iterable, Sequence

from ingero.core.durations import readable_duration
from ingero.fleet.processor import FleetProcessor
from ingero.fleet.zpages.operations import BOUNDS_S, Operations, Sample

_STYLE = (
    "<style>body{font:14px sans-serif}td,th{padding:2px 10px;text-align:right}"
    "td:first-child,th:first-child{text-align:left}</style>"
)


def service_page(processor: FleetProcessor) -> str:
    """Return the state of every cluster."""
    rows = []
    for name, cluster in sorted(processor.clusters.items()):
        state = cluster.threshold
        rows.append(
            (
                name,
                f"{cluster.served.value:.6f}" if cluster.served.value else "none yet",
                "yes" if cluster.served.quorum_met else "no",
                f"{state.stats.median:.4f}" if state.stats else "",
                *(
                    str(cluster.counts.get(kind, 0))
                    for kind in ("active", "idle", "calibrating", "silent")
                ),
                str(state.below),
                str(state.panic or ""),
            )
        )
    titles = (
        "cluster", "threshold", "quorum", "median",
        "active", "idle", "calibrating", "silent", "below", "panic",
    )  # fmt: skip
    counters = processor.counters
    return _page(
        "Ingero Fleet",
        f"<p>{counters.pushes} pushes, {sum(counters.rejected.values())} points rejected.</p>",
        _table(titles, rows),
    )


def trace_page(operations: Operations, pushes: int) -> str:
    """Return the times of Fleet's own operations since its start, and the slowest of each kind."""
    bounds = [readable_duration(round(bound * 1e9)) for bound in BOUNDS_S]
    titles = ("operation", "running", "failed", *(f"under {bound}" for bound in bounds), "longer")
    rows = [
        (name, str(each.running), str(each.failed), *map(str, each.counts))
        for name, each in sorted(operations.by_name.items())
    ]
    parts = [
        f"<p>{pushes} plain pushes were answered; they are counted and not timed.</p>",
        _table(titles, rows),
    ]
    for name, each in sorted(operations.by_name.items()):
        parts.append(f"<h2>{html.escape(name)}</h2>")
        parts.append(_samples("slowest", each.slowest))
        if each.failures:
            parts.append(_samples("failed", reversed(each.failures)))
    return _page("Ingero Fleet: times of operations", *parts)


def _samples(title: str, samples: Iterable[Sample]) -> str:
    rows = [
        (
            time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(each.at_unix_s)),
            readable_duration(round(each.took_s * 1e9)),
            each.outcome,
        )
        for each in samples
    ]
    return _table((title, "took", "outcome"), rows)


def _page(title: str, *parts: str) -> str:
    return f"<!doctype html><title>{title}</title>{_STYLE}<h1>{title}</h1>{''.join(parts)}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
