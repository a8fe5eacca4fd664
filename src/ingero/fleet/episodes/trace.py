"""An episode as a timeline for Perfetto: its states, and the steps of the ranks around it."""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ingero.contract import names
from ingero.contract.collective import CollectiveRecord
from ingero.contract.episodes.episode import Episode
from ingero.contract.measurements.own_time import OwnTime
from ingero.contract.measurements.ranks import decode_ranks
from ingero.contract.otlp.codec import decode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.verdict import Verdict
from ingero.core.live.headline import who
from ingero.fleet.episodes.segment import Segment
from ingero.storage.input_log import PUSH, read_frames

MAX_SLICES: Final = 100_000  # some 15 MB
_STATES, _FIRST_NODE = 1, 2  # numbers of processes in the timeline
_COLLECTIVES: Final = 1 << 20  # added to the number of a rank's thread
_encode = msgspec.json.Encoder().encode


def encode_trace(episode: Episode, segments: list[Segment]) -> bytes:
    """Return Trace Event JSON; this takes a while, so call it in a thread."""
    trace = _Trace(list(_states(episode)))
    for segment in segments:
        for entry in read_frames(zlib.decompress(segment.pack())):
            if entry.kind == PUSH and not trace.is_full:
                trace.push(decode_protobuf(MetricsRequest, entry.body), entry.at_s)
    return trace.encode()


@dataclass(slots=True)
class _Trace:
    events: list[dict[str, Any]]
    _nodes: dict[str, int] = field(default_factory=dict)
    _threads: set[tuple[int, int]] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        return len(self.events) >= MAX_SLICES

    def push(self, request: MetricsRequest, at_s: float) -> None:
        """Add the steps and collectives of one push."""
        for measured in decode_ranks(request):
            rank = measured.resource.get(names.RANK, measured.resource.get(names.NODE_RANK))
            number = rank if isinstance(rank, int) and rank >= 0 else 0
            node = self._node(str(measured.resource.get(names.NODE_ID) or "unknown"))
            if measured.own_times:
                self._thread(node, number, f"rank {number}")
            for own in measured.own_times:
                self.events += _step(own, node, number, at_s)
            if measured.collectives:
                self._thread(node, number + _COLLECTIVES, f"rank {number}: collectives")
            for record in measured.collectives:
                self.events.append(_collective(record, node, number + _COLLECTIVES))

    def encode(self) -> bytes:
        """Return everything as one document."""
        if self.is_full:
            last = max(event.get("ts", 0.0) for event in self.events)
            text = f"only the first {MAX_SLICES} slices are here"
            self.events.append(_instant(text, last, ""))
        return _encode({"traceEvents": self.events, "displayTimeUnit": "ms"})

    def _node(self, name: str) -> int:
        if name not in self._nodes:
            self._nodes[name] = _FIRST_NODE + len(self._nodes)
            self.events.append(_named("process_name", self._nodes[name], 0, name))
        return self._nodes[name]

    def _thread(self, node: int, thread: int, name: str) -> None:
        if (node, thread) not in self._threads:
            self._threads.add((node, thread))
            self.events.append(_named("thread_name", node, thread, name))


def _states(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield a slice for each state of the episode, and its evidence as a marker."""
    yield _named("process_name", _STATES, 0, f"episode {episode.episode}")
    times = [moment.at for moment in episode.verdicts]
    ends = [*times[1:], episode.ended or (times[-1] if times else 0.0)]
    for moment, end_s in zip(episode.verdicts, ends, strict=True):
        text = f"{who(moment.verdict)}: {moment.verdict.state}"
        begin_us, args = moment.at * 1e6, _details(moment.verdict)
        yield _slice(text, _STATES, 0, begin_us, max(end_s * 1e6 - begin_us, 1.0), args)
        yield _instant(text, begin_us, moment.verdict.evidence)


def _details(verdict: Verdict) -> dict[str, str]:
    found = {
        "class": str(verdict.cause_class),
        "cause": verdict.cause,
        "collective": verdict.collective,
        "evidence": verdict.evidence,
        "next": verdict.next_step,
    }
    return {name: text for name, text in found.items() if text}


def _step(own: OwnTime, node: int, rank: int, at_s: float) -> list[dict[str, Any]]:
    """Return the slice of a step or of several, and the own time at its beginning."""
    own_us = own.own_ms * 1e3 * own.count
    span_us = own_us if math.isnan(own.span_ms) else own.span_ms * 1e3 * own.count
    begin_us = (own.end_ns / 1e3 or at_s * 1e6) - span_us
    number = "" if own.step is None else f" {own.step}"
    many = f"steps{number} and {own.count - 1} more" if own.count > 1 else f"step{number}"
    args = {"own_ms": round(own.own_ms, 3), "steps": own.count}
    return [
        _slice(many, node, rank, begin_us, span_us, args),
        _slice("own time", node, rank, begin_us, min(own_us, span_us), {}),
    ]


def _collective(record: CollectiveRecord, node: int, thread: int) -> dict[str, Any]:
    args = {"bytes": record.size_bytes, "communicator": f"{record.comm:x}", "ranks": record.nranks}
    end_ns = record.end_ns if record.end_ns is not None else record.start_ns
    return _slice(
        record.op, node, thread, record.start_ns / 1e3, (end_ns - record.start_ns) / 1e3, args
    )


def _slice(
    name: str, process: int, thread: int, begin_us: float, for_us: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name, "ph": "X", "ts": round(begin_us, 3), "dur": round(max(for_us, 0.001), 3),
        "pid": process, "tid": thread, "args": args,
    }  # fmt: skip


def _instant(name: str, at_us: float, evidence: str) -> dict[str, Any]:
    args = {"evidence": evidence} if evidence else {}
    return {"name": name, "ph": "i", "s": "g", "ts": at_us, "pid": _STATES, "tid": 0, "args": args}


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, "pid": process, "tid": thread, "args": {"name": name}}
