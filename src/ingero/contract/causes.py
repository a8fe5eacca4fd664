"""Why a rank is slow: signals that agents push, what Fleet asks them, and what they answer."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from ingero.contract import names
from ingero.contract.otlp.values import (
    Gauge,
    Metric,
    MetricsRequest,
    NumberPoint,
    Plain,
    ResourceMetrics,
    Scope,
    ScopeMetrics,
    attributes,
    plain_attributes,
)
from ingero.contract.push.encode import identity_resource
from ingero.contract.types import Identity

MAX_ASK_BYTES: Final = 2048  # of the whole list in the reply to a push
MAX_TEXT: Final = 240  # characters of a finding
SCOPE: Final = "ingero.causes"


class Signal(StrEnum):
    """What an agent reads of a rank, its GPU and its node; shares are between 0 and 1."""

    SM_CLOCK = "sm_clock"  # MHz
    THROTTLE = "throttle"  # the driver's bit mask
    POWER = "power"  # W
    TEMPERATURE = "temperature"  # degrees Celsius
    ECC_ERRORS = "ecc_errors"  # uncorrected, of the last ten to twenty minutes
    ECC_CORRECTED = "ecc_corrected"
    PCIE_WIDTH = "pcie_width"  # lanes
    PCIE_GENERATION = "pcie_generation"
    XID = "xid"  # number of the driver's last error, 0 without one
    CPU_SHARE = "cpu_share"
    RUNQUEUE_SHARE = "runqueue_share"  # ready to run, but without a CPU
    PREEMPTIONS = "preemptions"  # per second
    MAJOR_FAULTS = "major_faults"  # per second
    QUOTA_SHARE = "quota_share"  # stopped by the CPU quota of its cgroup
    MEMORY_PRESSURE = "memory_pressure"
    IO_PRESSURE = "io_pressure"
    DISK_SHARE = "disk_share"  # waits for block devices
    RETRANSMIT_SHARE = "retransmit_share"  # of the TCP segments that the node sent
    NIC_ERRORS = "nic_errors"  # per second
    NIC_SPEED = "nic_speed"  # Gb/s of all ports that are up
    GC_SHARE = "gc_share"  # Python's garbage collection


class CauseKind(StrEnum):
    """What a finding is about; a label of metrics, and what the next step is chosen by."""

    GPU_CLOCK = "gpu_clock"
    GPU_MEMORY = "gpu_memory"
    GPU_ERROR = "gpu_error"
    PCIE = "pcie"
    CPU = "cpu"
    QUOTA = "quota"
    MEMORY = "memory"
    DISK = "disk"
    NETWORK = "network"
    GC = "gc"
    LOCK = "lock"
    INTERPRETER_LOCK = "interpreter_lock"
    READER = "reader"
    WAIT = "wait"
    PYTHON = "python"
    UNKNOWN = "unknown"


class PeerValue(msgspec.Struct, frozen=True, array_like=True):
    """One signal of the peers: median, robust standard deviation, and the number of peers."""

    median: float
    spread: float
    count: int


class Ask(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"class_": "class"}
):
    """Fleet's question about one rank of the node that it replies to.

    `late` is the share of the time that the rank is behind, `period` is in steps, and `number`
    counts the asks of an episode: an agent answers each number once.
    """

    episode: str
    number: int = 1
    job: str | None = None
    rank: int | None = None
    cause_class: str = ""
    late: float | None = None
    step_ms: float | None = None
    period: int | None = None
    peers: dict[str, PeerValue] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An agent's answer to an ask; `explains` is a share of the lateness, None where unknown."""

    episode: str
    number: int
    kind: CauseKind
    text: str
    explains: float | None = None


@dataclass(frozen=True, slots=True)
class RankSignals:
    """Signals and findings of one resource of a push; `step_ms` is its latest step, if any."""

    resource: dict[str, Plain]
    signals: dict[Signal, float]
    findings: tuple[Finding, ...]
    step_ms: float | None


_DECODER = msgspec.json.Decoder(list[Ask])
_SIGNALS: Final = {str(signal): signal for signal in Signal}
_KINDS: Final = {str(kind): kind for kind in CauseKind}


def encode_asks(asks: Sequence[Ask]) -> str:
    """Return ASCII JSON for a reply; asks that do not fit are left for a later reply."""
    kept = list(asks)
    while kept:
        text = json.dumps(msgspec.to_builtins(kept), separators=(",", ":"))
        if len(text) <= MAX_ASK_BYTES:
            return text
        kept.pop()
    return ""


def decode_asks(text: str | bytes) -> tuple[Ask, ...]:
    """Read what `encode_asks` returned; raises msgspec.DecodeError."""
    if len(text) > MAX_ASK_BYTES:
        raise msgspec.DecodeError(f"asks are longer than {MAX_ASK_BYTES} bytes")
    return tuple(_DECODER.decode(text))


def encode_signals(
    identity: Identity, signals: Mapping[Signal, float], at_ns: int
) -> ResourceMetrics:
    """Return the resource of one rank with one point per signal."""
    points = tuple(
        NumberPoint(
            attributes=attributes({names.SIGNAL: str(signal)}),
            time_unix_nano=at_ns,
            as_double=float(value),
        )
        for signal, value in signals.items()
    )
    return _resource(identity, Metric(name=names.RANK_SIGNAL, gauge=Gauge(data_points=points)))


def encode_findings(identity: Identity, findings: Iterable[Finding], at_ns: int) -> ResourceMetrics:
    """Return the resource of one rank with one point per finding."""
    points = tuple(
        NumberPoint(
            attributes=attributes(
                {
                    names.EPISODE_ID: finding.episode,
                    names.ASK_NUMBER: finding.number,
                    names.CAUSE_KIND: str(finding.kind),
                    names.CAUSE_TEXT: finding.text,
                }
            ),
            time_unix_nano=at_ns,
            as_double=-1.0 if finding.explains is None else finding.explains,
        )
        for finding in findings
    )
    return _resource(identity, Metric(name=names.RANK_CAUSE, gauge=Gauge(data_points=points)))


def decode_signals(request: MetricsRequest) -> Iterator[RankSignals]:
    """Yield what each resource says about causes; points that make no sense are left out."""
    for each in request.resource_metrics:
        resource = plain_attributes(each.resource.attributes) if each.resource else {}
        signals: dict[Signal, float] = {}
        findings: list[Finding] = []
        step_ms: float | None = None
        for metric in (metric for scope in each.scope_metrics for metric in scope.metrics):
            if metric.name == names.RANK_SIGNAL:
                signals |= _decode_values(metric.numbers)
            elif metric.name == names.RANK_CAUSE:
                findings += filter(None, map(_decode_finding, metric.numbers))
            elif metric.name == names.STEP_OWN_TIME_MS and metric.numbers:
                step_ms = _step_ms(metric.numbers[-1])
        if signals or findings or step_ms is not None:
            yield RankSignals(resource, signals, tuple(findings), step_ms)


def _resource(identity: Identity, metric: Metric) -> ResourceMetrics:
    scope = ScopeMetrics(scope=Scope(name=SCOPE), metrics=(metric,))
    return ResourceMetrics(resource=identity_resource(identity), scope_metrics=(scope,))


def _decode_values(points: Sequence[NumberPoint]) -> dict[Signal, float]:
    found: dict[Signal, float] = {}
    for point in points:
        signal = _SIGNALS.get(str(plain_attributes(point.attributes).get(names.SIGNAL)))
        value = _number(point)
        if signal is not None and value is not None:
            found[signal] = value
    return found


def _decode_finding(point: NumberPoint) -> Finding | None:
    values = plain_attributes(point.attributes)
    episode, text = values.get(names.EPISODE_ID), values.get(names.CAUSE_TEXT)
    number, share = values.get(names.ASK_NUMBER), _number(point)
    if not isinstance(episode, str) or not isinstance(text, str) or not isinstance(number, int):
        return None
    return Finding(
        episode=episode,
        number=number,
        kind=_KINDS.get(str(values.get(names.CAUSE_KIND)), CauseKind.UNKNOWN),
        text="".join(c for c in text if c.isprintable())[:MAX_TEXT],
        explains=None if share is None or not 0.0 <= share <= 1.0 else share,
    )


def _step_ms(point: NumberPoint) -> float | None:
    value = plain_attributes(point.attributes).get(names.STEP_SPAN_MS)
    is_time = isinstance(value, int | float) and math.isfinite(value) and value > 0
    return float(value) if is_time and isinstance(value, int | float) else None


def _number(point: NumberPoint) -> float | None:
    value = point.as_double if point.as_double is not None else point.as_int
    return float(value) if value is not None and math.isfinite(value) else None
