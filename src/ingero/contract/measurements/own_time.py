"""The own time of steps as OTLP: how long a rank worked, without its waits for other ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ingero.contract import names
from ingero.contract.collective import CollectiveSource
from ingero.contract.measurements.fields import integer_or_none, source_or_none
from ingero.contract.otlp.values import (
    Gauge,
    Metric,
    NumberPoint,
    Plain,
    attributes,
    plain_attributes,
)

_MAX_STEP: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTime:
    """The mean own time of `count` steps of one rank, of which `step` is the first.

    `step` is None where the sender does not number its steps; unknown times are NaN.
    """

    step: int | None
    count: int = 1
    own_ms: float
    idle_ms: float = math.nan
    span_ms: float = math.nan
    end_ns: int = 0
    source: CollectiveSource | None = None


def encode_own_times(times: Sequence[OwnTime]) -> Metric:
    """Return the metric with one point per own time."""
    points = tuple(_encode_own_time(time) for time in times)
    return Metric(name=names.STEP_OWN_TIME_MS, unit="ms", gauge=Gauge(data_points=points))


def _encode_own_time(time: OwnTime) -> NumberPoint:
    values: dict[str, Plain] = {
        names.STEP: time.step,
        names.STEP_COUNT: None if time.count == 1 else time.count,
        names.STEP_IDLE_MS: None if math.isnan(time.idle_ms) else round(time.idle_ms, 6),
        names.STEP_SPAN_MS: None if math.isnan(time.span_ms) else round(time.span_ms, 6),
        names.SOURCE: None if time.source is None else str(time.source),
    }
    span_ns = 0 if math.isnan(time.span_ms) else int(time.span_ms * 1e6 * time.count)
    return NumberPoint(
        attributes=attributes({key: value for key, value in values.items() if value is not None}),
        start_time_unix_nano=max(time.end_ns - span_ns, 0),
        time_unix_nano=time.end_ns,
        as_double=time.own_ms,
    )


def decode_own_time(point: NumberPoint) -> OwnTime:
    """Return the own time of one point; raises ValueError or TypeError where it makes no sense."""
    values = plain_attributes(point.attributes)
    own_ms = point.as_double if point.as_double is not None else point.as_int
    if own_ms is None or not (math.isfinite(own_ms) and own_ms >= 0):
        raise ValueError("an own time must be a number of milliseconds")
    step = integer_or_none(values.get(names.STEP))
    if step is not None and not 0 <= step <= _MAX_STEP:
        raise ValueError(f"step {step} is out of range")
    count = values.get(names.STEP_COUNT)
    return OwnTime(
        step=step,
        count=count if isinstance(count, int) and count > 0 else 1,
        own_ms=float(own_ms),
        idle_ms=_milliseconds(values.get(names.STEP_IDLE_MS)),
        span_ms=_milliseconds(values.get(names.STEP_SPAN_MS)),
        end_ns=point.time_unix_nano,
        source=source_or_none(values.get(names.SOURCE)),
    )


def _milliseconds(value: Plain) -> float:
    if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
        return float(value)
    return math.nan
