"""What a push measures beside the score: own times of steps and collectives, by who measured them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ingero.contract import names
from ingero.contract.collective import (
    CollectiveRecord,
    CollectiveSource,
    canonical_op,
    checked,
    decode_comm,
)
from ingero.contract.otlp.values import Metric, MetricsRequest, NumberPoint, Plain, plain_attributes

_MAX_STEP: Final = 2**63 - 1
_SOURCES: Final = {str(source): source for source in CollectiveSource}


@dataclass(frozen=True, slots=True)
class OwnTime:
    """One step of one rank; the step is None where the sender does not number them. Unknown times are NaN."""

    step: int | None
    own_ms: float
    idle_ms: float = math.nan
    span_ms: float = math.nan
    source: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything one resource of a push measured; `resource` are its attributes. `malformed` points were left out."""

    resource: dict[str, Plain]
    own_times: tuple[OwnTime, ...]
    collectives: tuple[CollectiveRecord, ...]
    malformed: int

    @property
    def source(self) -> str:
        """Where own times come from or can be made of; empty where the sender does not say."""
        if self.own_times:
            return self.own_times[0].source
        return str(self.collectives[0].source) if self.collectives else ""


def read_measurements(request: MetricsRequest) -> Iterator[Measured]:
    """One value per resource that measured anything."""
    for each in request.resource_metrics:
        resource = plain_attributes(each.resource.attributes) if each.resource else {}
        own: list[OwnTime] = []
        collectives: list[CollectiveRecord] = []
        malformed = 0
        for metric in (metric for scope in each.scope_metrics for metric in scope.metrics):
            for point in _points(metric):
                try:
                    if metric.name == names.STEP_OWN_TIME_MS:
                        own.append(_own_time(point))
                    elif metric.name == names.COLLECTIVE_DURATION_MS:
                        collectives.append(checked(_collective(point, resource)))
                except (KeyError, TypeError, ValueError, OverflowError):
                    malformed += 1
        if own or collectives or malformed:
            yield Measured(resource, tuple(own), tuple(collectives), malformed)


def _points(metric: Metric) -> tuple[NumberPoint, ...]:
    if metric.gauge is not None:
        return metric.gauge.data_points
    return metric.sum.data_points if metric.sum is not None else ()


def _own_time(point: NumberPoint) -> OwnTime:
    values = plain_attributes(point.attributes)
    step = values.get(names.STEP)
    value = point.as_double if point.as_double is not None else point.as_int
    if value is None or not (math.isfinite(value) and value >= 0):
        raise ValueError("an own time is a number of milliseconds")
    number = _maybe(step)
    if number is not None and not 0 <= number <= _MAX_STEP:
        raise ValueError(f"step {number} is out of range")
    idle, span = (
        _milliseconds(values.get(name)) for name in (names.STEP_IDLE_MS, names.STEP_SPAN_MS)
    )
    source = str(values.get(names.SOURCE, ""))
    return OwnTime(number, float(value), idle, span, source if source in _SOURCES else "")


def _milliseconds(value: Plain) -> float:
    if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
        return float(value)
    return math.nan


def _collective(point: NumberPoint, resource: dict[str, Plain]) -> CollectiveRecord:
    values = plain_attributes(point.attributes)
    comm = values[names.NCCL_COMM]
    rank = resource.get(names.RANK, resource.get(names.NODE_RANK))
    return CollectiveRecord(
        job=_text(resource.get(names.JOB_ID)),
        node=_text(resource.get(names.NODE_ID)),
        global_rank=_maybe(rank),
        comm=(decode_comm(comm) if isinstance(comm, str) else _integer(comm)) & 0xFFFFFFFFFFFFFFFF,
        seq=_maybe(values.get(names.NCCL_SEQ)),
        op=canonical_op(str(values[names.NCCL_OP])),
        rank=_integer(values[names.NCCL_RANK]),
        nranks=_integer(values[names.NCCL_NRANKS]),
        peer=_maybe(values.get(names.NCCL_PEER)),
        datatype=str(values.get(names.NCCL_DATATYPE, "")),
        reduce_op=_text(values.get(names.NCCL_REDUCE_OP)),
        size_bytes=_maybe(values.get(names.NCCL_BYTES)) or 0,
        start_ns=point.start_time_unix_nano,
        end_ns=point.time_unix_nano,
        gpu_duration_ns=_maybe(values.get(names.NCCL_GPU_DURATION_NS)),
        stream=_maybe(values.get(names.NCCL_STREAM)),
        source=_SOURCES.get(str(values.get(names.SOURCE)), CollectiveSource.EBPF),
    )


def _integer(value: Plain) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{value!r} is not a whole number")
    return int(value)


def _maybe(value: Plain) -> int | None:
    return None if value is None else _integer(value)


def _text(value: Plain) -> str | None:
    return None if value is None else str(value)
