"""What Fleet reads from a push: the nodes, their health, and the points that must be rejected.

`decode_push` reads decoded values. `decode_plain_push` reads the common push (one resource, gauges
and sums, nothing unusual) straight from its bytes in compiled code, and returns None for others.
"""

import math
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from ingero.compiled import CODECS, compiled_or_pure
from ingero.contract import names
from ingero.contract.otlp.values import (
    KeyValue,
    Metric,
    MetricsRequest,
    NumberPoint,
    Plain,
    plain_attributes,
)
from ingero.contract.types import NodeState

MAX_ID_BYTES = 253  # a DNS name; longer ids are refused, because cutting them would merge them
MAX_LABEL_CHARACTERS = 253  # of a GPU model, workload, provider or mode; longer ones are cut
_MAX_NS = 2**64 - 1  # larger numbers, which JSON can carry, are cut to this
STATES = (NodeState.ACTIVE.value, NodeState.CALIBRATING.value, NodeState.IDLE.value)


class Reject(StrEnum):
    """Why a point of a push is rejected; each is a label value of the rejection counter."""

    SCORE_NOT_FINITE = "score_not_finite"
    SCORE_OUT_OF_RANGE = "score_out_of_range"
    STATE_UNKNOWN = "state_unknown"
    NODE_ID_MISSING = "node_id_missing"
    IDENTITY_INVALID = "identity_invalid"
    TOO_MANY_NODES = "too_many_nodes"
    TOO_MANY_CLUSTERS = "too_many_clusters"


class NodeReport(msgspec.Struct, frozen=True, gc=False):
    """One resource of a push; fields that it did not carry are None."""

    node: str
    cluster: str | None = None
    job: str | None = None
    rank: int | None = None
    world_size: int | None = None
    provider: str | None = None
    score: float | None = None
    state: str = ""
    workload: str = ""
    mode: str | None = None
    degraded: bool | None = None
    straggling: bool | None = None
    gpu_model: str | None = None
    gpu_count: int | None = None
    sent_ns: int = 0
    version: str | None = None
    lost_records: int | None = None
    ready_s: int | None = None


class Push(msgspec.Struct, frozen=True, gc=False):
    """A whole request: its reports, what was rejected, and `lead`, the name of its first metric."""

    reports: tuple[NodeReport, ...]
    has_measurements: bool
    rejected: tuple[tuple[Reject, int], ...]
    lead: str


PlainPush = tuple[NodeReport, str]  # the only report, and the name of the first metric


def _never_plain(body: bytes, is_json: bool, report: type[NodeReport]) -> PlainPush | None:
    return None


_decode_plain_push = compiled_or_pure(CODECS, "decode_plain_push", _never_plain)


def decode_plain_push(body: bytes, is_json: bool) -> PlainPush | None:
    """Return the report of a plain push and the name of its first metric, straight from the bytes.

    None means that the body must be decoded and given to `decode_push`; without compiled codecs
    that holds for every body.
    """
    return _decode_plain_push(body, is_json, NodeReport)


def decode_push(request: MetricsRequest) -> Push:
    """Return everything Fleet needs of a request.

    Never raises; rejected points are counted by reason.
    """
    rejected: dict[Reject, int] = {}
    reports: list[NodeReport] = []
    has_measurements = False
    lead = ""
    for resource in request.resource_metrics:
        metrics = [metric for scope in resource.scope_metrics for metric in scope.metrics]
        lead = lead or (metrics[0].name if metrics else "")
        identity = plain_attributes(resource.resource.attributes) if resource.resource else {}
        refusal = _refuse_identity(identity, metrics)
        if refusal is not None:
            reason, points = refusal
            if points:
                rejected[reason] = rejected.get(reason, 0) + points
            continue
        health = _Health(rejected)
        for metric in metrics:
            health.read(metric)
        has_measurements = has_measurements or health.has_measurements
        reports.append(health.report(identity))
    return Push(tuple(reports), has_measurements, tuple(sorted(rejected.items())), lead)


def problem_with_id(value: str) -> bool:
    """Return whether an id could forge a header, a label or a log line."""
    return (
        not 0 < len(value) <= MAX_ID_BYTES
        or not value.isprintable()
        or value != value.strip()
        or len(value.encode()) > MAX_ID_BYTES
    )


def cut_label(text: str) -> str:
    """Return a text for people; where it is too long, its end is replaced by an ellipsis."""
    if len(text) <= MAX_LABEL_CHARACTERS:
        return text
    return f"{text[: MAX_LABEL_CHARACTERS - 1]}…"


def _refuse_identity(
    identity: Mapping[str, Plain], metrics: list[Metric]
) -> tuple[Reject, int] | None:
    """Return why a whole resource is rejected, and how many points that rejects.

    A resource without a node may carry metrics, but not a score.
    """
    node, cluster, job = (
        _text(identity, key) for key in (names.NODE_ID, names.CLUSTER_ID, names.JOB_ID)
    )
    if node is None or not node.strip():
        scores = sum(len(metric.numbers) for metric in metrics if metric.name == names.HEALTH_SCORE)
        return Reject.NODE_ID_MISSING, scores
    if (
        problem_with_id(node)
        or (cluster and problem_with_id(cluster))
        or (job and problem_with_id(job))
    ):
        return Reject.IDENTITY_INVALID, max(1, sum(len(metric.numbers) for metric in metrics))
    return None


class _Health:
    """Collects the health metrics of one resource."""

    def __init__(self, rejected: dict[Reject, int]) -> None:
        self.rejected = rejected
        self.has_measurements = False
        self.score: float | None = None
        self.state = self.workload = ""
        self.mode: str | None = None
        self.degraded: bool | None = None
        self.straggling: bool | None = None
        self.gpu_model: str | None = None
        self.gpu_count: int | None = None
        self.version: str | None = None
        self.lost_records: int | None = None
        self.ready_s: int | None = None
        self.sent_ns = 0

    def read(self, metric: Metric) -> None:
        reader = _READERS.get(metric.name)
        if reader is not None:
            for point in metric.numbers:
                reader(self, point)
        elif (
            metric.name.startswith(("nccl.collective.", names.RANK_PREFIX, names.ENGINE_PREFIX))
            or metric.name == names.STEP_OWN_TIME_MS
        ):
            self.has_measurements |= bool(metric.numbers)  # the verdict engine reads these

    def report(self, identity: Mapping[str, Plain]) -> NodeReport:
        rank = _number(identity, names.RANK)
        return NodeReport(
            _text(identity, names.NODE_ID) or "",
            _text(identity, names.CLUSTER_ID) or None,
            _text(identity, names.JOB_ID) or None,
            rank if rank is not None else _number(identity, names.NODE_RANK),
            _number(identity, names.WORLD_SIZE),
            _label(identity, names.PROVIDER),
            self.score,
            self.state,
            self.workload,
            self.mode,
            self.degraded,
            self.straggling,
            self.gpu_model,
            self.gpu_count,
            self.sent_ns,
            self.version,
            self.lost_records,
            self.ready_s,
        )

    def read_mode(self, point: NumberPoint) -> None:
        found = plain_attributes(point.attributes)
        # the second is an older spelling
        self.mode = _label(found, names.DETECTION_MODE) or _label(found, "mode")

    def read_degraded(self, point: NumberPoint) -> None:
        self.degraded = bool(_value(point))

    def read_event(self, point: NumberPoint) -> None:
        self.straggling = bool(_value(point))
        self.sent_ns = self.sent_ns or min(point.time_unix_nano, _MAX_NS)

    def read_info(self, point: NumberPoint) -> None:
        found = plain_attributes(point.attributes)
        self.gpu_model, self.gpu_count = (
            _label(found, names.GPU_MODEL),
            _number(found, names.GPU_COUNT),
        )

    def read_agent(self, point: NumberPoint) -> None:
        self.version = _label(plain_attributes(point.attributes), names.AGENT_VERSION)
        lost = point.as_int
        self.lost_records = lost if lost is not None and lost >= 0 else None

    def read_ready(self, point: NumberPoint) -> None:
        left_s = point.as_int
        self.ready_s = left_s if left_s is not None and left_s >= 0 else None

    def read_score(self, point: NumberPoint) -> None:
        score = _value(point)
        state, workload = _state_and_workload(point.attributes)
        if not math.isfinite(score):
            self.refuse(Reject.SCORE_NOT_FINITE)
        elif not 0.0 <= score <= 1.0:
            self.refuse(Reject.SCORE_OUT_OF_RANGE)
        elif state not in STATES:
            self.refuse(Reject.STATE_UNKNOWN)
        else:
            self.score, self.state, self.workload = score, state, cut_label(workload)
            self.sent_ns = min(point.time_unix_nano, _MAX_NS)

    def refuse(self, reason: Reject) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1


_READERS = {
    names.HEALTH_SCORE: _Health.read_score,
    names.AGENT_DETECTION_MODE: _Health.read_mode,
    names.DEGRADATION_WARNING: _Health.read_degraded,
    names.STRAGGLER_EVENT: _Health.read_event,
    names.NODE_INFO: _Health.read_info,
    names.AGENT_LOST_RECORDS: _Health.read_agent,
    names.AGENT_READY_S: _Health.read_ready,
}


def _state_and_workload(attributes: tuple[KeyValue, ...]) -> tuple[str, str]:
    """Return state and workload; a score without a state counts as that of an active node."""
    state, workload = NodeState.ACTIVE.value, "unknown"
    for attribute in attributes:
        text = attribute.value.string_value if attribute.value else None
        if text is not None:
            if attribute.key == names.NODE_STATE:
                state = text
            elif attribute.key == names.WORKLOAD_TYPE:
                workload = text
    return state, workload


def _value(point: NumberPoint) -> float:
    if point.as_double is not None:
        return point.as_double
    return float(point.as_int) if point.as_int is not None else math.nan


def _text(found: Mapping[str, Plain], key: str) -> str | None:
    value = found.get(key)
    return value if isinstance(value, str) else None


def _label(found: Mapping[str, Plain], key: str) -> str | None:
    text = _text(found, key)
    return None if text is None else cut_label(text)


def _number(found: Mapping[str, Plain], key: str) -> int | None:
    value = found.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
