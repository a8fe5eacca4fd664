"""Rows of a trace database for people: names beside codes, times and durations with units."""

from collections.abc import Sequence
from typing import Final

from ingero.contract.events import op_name, source_name
from ingero.contract.timestamps import rfc3339_ns
from ingero.core.durations import readable_duration
from ingero.storage.trace.schema import MAX_TIME_NS

_TIMES: Final = frozenset(
    "time timestamp bucket detected_at started_at stopped_at seen_at first_seen last_seen "
    "resolved_at updated_at start_ns end_ns span_start span_end window_start window_end".split()
)
_DURATIONS: Final = frozenset(
    "duration duration_ns gpu_duration_ns sum_dur min_dur max_dur total_ns min_ns max_ns p50_ns "
    "p95_ns p99_ns floor_ns ceiling_ns p99_off_cpu total_off_cpu".split()
)
_OLDEST_NS: Final = 10**17  # 1973: a smaller number is not a time of a recording


def readable_columns(columns: Sequence[str]) -> list[str]:
    """Return the names above readable rows: `duration_ns` is `duration`, as its values have units.

    A name that another column has already stays as it is.
    """
    return [
        name.removesuffix("_ns")
        if name in _TIMES | _DURATIONS and name.removesuffix("_ns") not in columns
        else name
        for name in columns
    ]


def readable_rows(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[list[object]]:
    """Return the rows as text where the name of a column says what its integers mean."""
    source = columns.index("source") if "source" in columns else None
    return [
        [_readable(name, value, row, source) for name, value in zip(columns, row, strict=True)]
        for row in rows
    ]


def _readable(name: str, value: object, row: Sequence[object], source: int | None) -> object:
    if not isinstance(value, int):
        return value
    if name in _TIMES and _OLDEST_NS <= value <= MAX_TIME_NS:
        return f"{rfc3339_ns(value)[:-4]}Z"  # microseconds
    if name in _DURATIONS:
        return readable_duration(value)
    if name == "source":
        return f"{value} {source_name(value)}"
    if name == "op" and source is not None:
        code = row[source]
        return f"{value} {op_name(code, value)}" if isinstance(code, int) else value
    return value
