"""What an inference engine did since the last report, as OTLP: one resource per engine or rank."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from ingero.contract import names
from ingero.contract.otlp.values import (
    Gauge,
    Metric,
    MetricsRequest,
    NumberPoint,
    Plain,
    Resource,
    ResourceMetrics,
    Scope,
    ScopeMetrics,
    attributes,
    plain_attributes,
)
from ingero.contract.push.encode import identity_resource
from ingero.contract.types import Identity

SCOPE: Final = "ingero.engines"
MAX_TEXT: Final = 480  # characters about where the workers of an engine wait
MAX_NAME: Final = 128  # characters of a model


class EngineKind(StrEnum):
    """The inference engines whose metrics are understood."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"
    TRITON = "triton"
    TGI = "tgi"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineId:
    """One engine on a node, or one of its data-parallel ranks."""

    kind: EngineKind
    model: str
    port: int
    pid: int
    rank: int | None = None
    gpus: int = 0  # 0 where it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What an engine did since the last report; None where the engine does not say.

    Times are means over that span, from the growth of sums and counts. `stalled_s` is how long
    requests have waited without a step; `waits` then says where each worker waits, and `health` is
    the status of the engine's own health page. `is_up` is false while the metrics page does not
    answer.
    """

    is_up: bool = True
    stalled_s: float | None = None
    waits: str = ""
    health: int | None = None
    running: float | None = None
    waiting: float | None = None
    waiting_capacity: float | None = None
    waiting_deferred: float | None = None
    paused: float | None = None
    kv_usage: float | None = None
    preemptions_per_s: float | None = None
    steps_per_s: float | None = None
    step_s: float | None = None
    step_tokens: float | None = None
    first_token_s: float | None = None
    request_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """One engine of a push, as Fleet reads it; `resource` holds the attributes of the node."""

    resource: dict[str, Plain]
    engine: EngineId
    report: EngineReport


_KINDS: Final = {str(kind): kind for kind in EngineKind}
_FIELDS: Final = {metric: field for field, metric in names.ENGINE_METRICS.items()}
REPORTED: Final = tuple(
    field.name for field in fields(EngineReport) if field.name in names.ENGINE_METRICS
)


def encode_engine(
    identity: Identity, engine: EngineId, report: EngineReport, at_ns: int
) -> ResourceMetrics:
    """Return the resource of one engine; what the engine does not say is left out."""
    values = {
        names.ENGINE_METRICS[name]: value
        for name in REPORTED
        if (value := getattr(report, name)) is not None
    }
    metrics = [_gauge(names.ENGINE_UP, float(report.is_up), at_ns)]
    if report.stalled_s is not None:
        about: dict[str, Plain] = {names.ENGINE_WAITS: report.waits[:MAX_TEXT]}
        if report.health is not None:
            about[names.ENGINE_HEALTH] = report.health
        metrics.append(_gauge(names.ENGINE_STALLED, report.stalled_s, at_ns, about))
    metrics += [_gauge(name, float(value), at_ns) for name, value in values.items()]
    return ResourceMetrics(
        resource=_resource(identity, engine),
        scope_metrics=(ScopeMetrics(scope=Scope(name=SCOPE), metrics=tuple(metrics)),),
    )


def decode_engines(request: MetricsRequest) -> Iterator[MeasuredEngine]:
    """Yield the engines of a push; values that make no sense are left out."""
    for each in request.resource_metrics:
        resource = plain_attributes(each.resource.attributes) if each.resource else {}
        engine = _engine_of(resource)
        if engine is None:
            continue
        found: dict[str, float] = {}
        is_up, stalled_s, about = True, None, dict[str, Plain]()
        for metric in (metric for scope in each.scope_metrics for metric in scope.metrics):
            value = _last(metric.numbers)
            if value is None:
                continue
            if metric.name in _FIELDS:
                found[_FIELDS[metric.name]] = value
            elif metric.name == names.ENGINE_UP:
                is_up = value > 0
            elif metric.name == names.ENGINE_STALLED:
                stalled_s, about = value, plain_attributes(metric.numbers[-1].attributes)
        health = about.get(names.ENGINE_HEALTH)
        report = EngineReport(
            is_up=is_up,
            stalled_s=stalled_s,
            waits=printable(about.get(names.ENGINE_WAITS), MAX_TEXT),
            health=health if isinstance(health, int) else None,
            **found,
        )
        yield MeasuredEngine(resource, engine, report)


def is_of_engines(request: MetricsRequest) -> bool:
    """Return whether a push is about engines only."""
    return all(
        any(
            each.key == names.ENGINE_KIND
            for each in (one.resource.attributes if one.resource else ())
        )
        for one in request.resource_metrics
    )


def printable(text: Plain, most: int) -> str:
    """Return the printable characters of a text from outside, at most so many."""
    return "".join(c for c in text if c.isprintable())[:most] if isinstance(text, str) else ""


def _resource(identity: Identity, engine: EngineId) -> Resource:
    values: dict[str, Plain] = {
        names.ENGINE_KIND: str(engine.kind),
        names.ENGINE_MODEL: engine.model,
        names.ENGINE_PORT: engine.port,
        names.ENGINE_PID: engine.pid,
    }
    if engine.rank is not None:
        values[names.ENGINE_RANK] = engine.rank
    if engine.gpus:
        values[names.GPU_COUNT] = engine.gpus
    node = identity_resource(identity)
    return Resource(attributes=(*node.attributes, *attributes(values)))


def _engine_of(resource: dict[str, Plain]) -> EngineId | None:
    kind = _KINDS.get(str(resource.get(names.ENGINE_KIND)))
    port, pid = resource.get(names.ENGINE_PORT), resource.get(names.ENGINE_PID)
    rank, gpus = resource.get(names.ENGINE_RANK), resource.get(names.GPU_COUNT)
    if kind is None or not isinstance(port, int) or not isinstance(pid, int):
        return None
    return EngineId(
        kind=kind,
        model=printable(resource.get(names.ENGINE_MODEL), MAX_NAME).strip(),
        port=port,
        pid=pid,
        rank=rank if isinstance(rank, int) else None,
        gpus=gpus if isinstance(gpus, int) and 0 < gpus <= 1024 else 0,
    )


def _gauge(name: str, value: float, at_ns: int, about: dict[str, Plain] | None = None) -> Metric:
    point = NumberPoint(
        attributes=attributes(about or {}), time_unix_nano=at_ns, as_double=float(value)
    )
    return Metric(name=name, gauge=Gauge(data_points=(point,)))


def _last(points: Sequence[NumberPoint]) -> float | None:
    if not points:
        return None
    value = points[-1].as_double if points[-1].as_double is not None else points[-1].as_int
    is_known = value is not None and math.isfinite(value) and value >= 0
    return float(value) if is_known and value is not None else None
