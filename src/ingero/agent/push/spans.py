"""One trace span per episode, from its start to its end, for any tracing backend."""

from ingero.contract import names
from ingero.contract.otlp.values import (
    Plain,
    Resource,
    ResourceSpans,
    Scope,
    ScopeSpans,
    Span,
    SpanEvent,
    SpanStatus,
    TracesRequest,
    attributes,
)
from ingero.contract.push.encode import StragglerEvent
from ingero.contract.types import Identity

SPAN_NAME = "ingero.detection.straggler"
_INTERNAL = 1


class EpisodeSpans:
    """Keeps when the open episode started; a closed episode becomes a request."""

    def __init__(self, identity: Identity, workload: str, cgroup_hash: str, version: str) -> None:
        self._identity = identity
        self._workload = workload
        self._cgroup_hash = cgroup_hash
        self._version = version
        self._started_ns: dict[str, int] = {}

    def add(self, event: StragglerEvent, gpu_model: str) -> TracesRequest | None:
        """Return the span of the episode that this event ends; None while it lasts."""
        if event.is_straggler:
            self._started_ns.setdefault(event.event_id, event.at_ns)
            return None
        started_ns = self._started_ns.pop(event.event_id, None)
        return None if started_ns is None else self._request(event, started_ns, gpu_model)

    def _request(self, event: StragglerEvent, started_ns: int, gpu_model: str) -> TracesRequest:
        trace_id = event.event_id.replace("-", "")  # an episode id is a UUID: the same 128 bits
        values: dict[str, Plain] = {
            names.CGROUP_HASH: self._cgroup_hash,
            names.WORKLOAD_TYPE: self._workload,
            names.GPU_MODEL: gpu_model,
            names.CLUSTER_ID: self._identity.cluster,
            names.EVENT_ID: event.event_id,
        }
        outcome = SpanEvent(
            time_unix_nano=event.at_ns,
            name="outcome",
            attributes=attributes({"status": "resolved"}),
        )
        span = Span(
            trace_id=trace_id,
            span_id=trace_id[:16],
            name=SPAN_NAME,
            kind=_INTERNAL,
            start_time_unix_nano=started_ns,
            end_time_unix_nano=event.at_ns,
            attributes=attributes(values),
            events=(outcome,),
            status=SpanStatus(),
        )
        resource: dict[str, Plain] = {
            names.CLUSTER_ID: self._identity.cluster,
            names.NODE_ID: self._identity.node,
            "service.name": "ingero",
            "service.version": self._version,
        }
        scope = ScopeSpans(scope=Scope(name="ingero"), spans=(span,))
        return TracesRequest(
            resource_spans=(
                ResourceSpans(
                    resource=Resource(attributes=attributes(resource)), scope_spans=(scope,)
                ),
            )
        )
