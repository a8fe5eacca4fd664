"""Lines of the remediation socket: newline-delimited JSON, `type` first, contract version 1.

Readers ignore unknown types and unknown fields. Within this version no required field of a stable
type (`memory`, `straggle`) is removed or renamed.
"""

from typing import TypeAlias

import msgspec

from ingero.contract.timestamps import rfc3339_ns
from ingero.contract.verdict import Verdict
from ingero.errors import MalformedInput

SOCKET_NAME = "ingero-remediate.sock"
MAX_LINE_BYTES = 64 * 1024


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The base of all lines, which have a type."""


class Memory(Line, frozen=True, tag="memory"):
    """The device memory that one process holds after an allocation or a free."""

    pid: int
    gpu_id: int
    allocated_bytes: int
    total_vram: int
    utilization_pct: float
    last_alloc_size: int
    timestamp_ns: int
    comm: str = ""


class Straggle(Line, frozen=True, tag="straggle"):
    """A process whose launch rate fell while other processes used its CPU."""

    pid: int
    throughput_drop_pct: float
    sched_switch_count: int
    preempting_pids: list[int]
    timestamp_ns: int
    sustained: bool
    comm: str = ""
    event_id: str = ""
    rank: int | None = None
    world_size: int | None = None


class StragglerState(Line, frozen=True, tag="straggler_state"):
    """This node is a straggler; sent at every evaluation, with one `event_id` per episode."""

    node_id: str
    cluster_id: str
    score: float
    threshold: float
    detection_mode: str
    dominant_signal: str
    timestamp: str
    event_id: str = ""
    rank: int | None = None
    world_size: int | None = None
    sequence: int | None = None  # counts the lines of the episode, so that a reader notices a gap


class StragglerResolved(Line, frozen=True, tag="straggler_resolved"):
    """The episode is over; `reason` is set where the node did not simply recover."""

    node_id: str
    cluster_id: str
    timestamp: str
    event_id: str = ""
    rank: int | None = None
    world_size: int | None = None
    sequence: int | None = None
    reason: str = ""


class InferenceOutlier(Line, frozen=True, tag="inference_outlier"):
    """One inference step took much longer than its baseline."""

    node_id: str
    cluster_id: str
    timestamp: str
    pid: int
    step_duration_ns: int
    baseline_p95_ns: int
    bucket: str
    event_id: str = ""
    cgroup_path_hash: str = ""
    stream_handle: int | None = None
    baseline_mean_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    phase: str = ""
    memfrag_events_in_step: int | None = None
    throttle_reasons: list[str] = []
    min_sm_clock_mhz: int | None = None
    kv_cache_top_alloc_ages_ms: list[float] = []


class InferenceSamplerDegraded(Line, frozen=True, tag="inference_sampler_degraded"):
    """The sampler of inference steps pauses until `cooldown_end`."""

    node_id: str
    cluster_id: str
    timestamp: str
    pid: int
    bucket: str
    cause: str
    cooldown_end: str
    cgroup_path_hash: str = ""
    stream_handle: int | None = None
    phase: str = ""
    rank: int | None = None
    world_size: int | None = None


class VerdictLine(
    Verdict, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="verdict"
):
    """A verdict from the reply to a push, with the cluster and the time of reception."""

    cluster_id: str
    timestamp: str


class Heartbeat(Line, frozen=True, tag="heartbeat"):
    """The agent is running; a reader that misses several of these may assume that it is not."""

    node_id: str
    cluster_id: str
    timestamp: str
    state: str
    detection_mode: str
    score: float | None = None


SocketLine: TypeAlias = (
    Memory
    | Straggle
    | StragglerState
    | StragglerResolved
    | InferenceOutlier
    | InferenceSamplerDegraded
    | VerdictLine
    | Heartbeat
)


class Envelope(msgspec.Struct, frozen=True):
    """The fields that a reader needs of a line of any type."""

    type: str
    node_id: str = ""
    cluster_id: str = ""
    event_id: str = ""


_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[SocketLine] = msgspec.json.Decoder(SocketLine)
_ENVELOPE = msgspec.json.Decoder(Envelope)


def encode_line(line: SocketLine) -> bytes:
    """Return a line with its newline."""
    return _ENCODER.encode(line) + b"\n"


def decode_line(line: bytes) -> SocketLine:
    """Read a line; raises MalformedInput, also for an unknown type."""
    try:
        return _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedInput(f"not a line of the remediation socket: {error}") from None


def decode_envelope(line: bytes) -> Envelope:
    """Read the common fields of a line, also of an unknown type.

    Raises MalformedInput for anything but a JSON object with a type.
    """
    try:
        envelope = _ENVELOPE.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedInput(f"not a line of the remediation socket: {error}") from None
    if not envelope.type:
        raise MalformedInput("not a line of the remediation socket: its type is empty")
    return envelope


def verdict_line(verdict: Verdict, cluster: str, received_ns: int) -> VerdictLine:
    """Return a verdict as a line of the socket."""
    values = {name: getattr(verdict, name) for name in verdict.__struct_fields__}
    return VerdictLine(**values, cluster_id=cluster, timestamp=rfc3339_ns(received_ns))
