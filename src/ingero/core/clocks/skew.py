"""Clock skew between nodes, estimated from request and reply times, with its uncertainty."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_WARNINGS = 10


@dataclass(frozen=True, slots=True)
class TimeSample:
    """One time request: when it was sent and answered here, and the time of the remote clock."""

    sent_ns: int
    received_ns: int
    remote_ns: int

    @property
    def rtt_ns(self) -> int:
        return self.received_ns - self.sent_ns

    @property
    def offset_ns(self) -> float:
        """How far the remote clock is ahead, if both directions took equally long."""
        return self.remote_ns - (self.sent_ns + self.rtt_ns / 2)


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Offset of a node's clock from ours, accurate to half a round trip."""

    offset_ms: float
    rtt_ms: float


@dataclass(frozen=True, slots=True)
class SkewWarning:
    """Two clocks that differ by more than the limit."""

    node: str
    other: str
    offset_ms: float  # positive: `other` is ahead of `node`
    rtt_ms: float
    is_uncertain: bool

    def __str__(self) -> str:
        relation = "ahead of" if self.offset_ms > 0 else "behind"
        text = (
            f"{self.other} is {abs(self.offset_ms):.0f} ms {relation} {self.node} "
            f"(round trip {self.rtt_ms:.0f} ms)"
        )
        if self.is_uncertain:
            text += "; the round trip is too long to be sure"
        return text


def estimate_offset(samples: Sequence[TimeSample]) -> ClockOffset:
    """Return the medians of offset and round trip, so that one slow reply does not count."""
    offset = statistics.median(sample.offset_ns for sample in samples)
    rtt = statistics.median(sample.rtt_ns for sample in samples)
    return ClockOffset(offset / 1e6, rtt / 1e6)


def skew_warnings(offsets: Mapping[str, ClockOffset], limit_ms: float) -> list[SkewWarning]:
    """Return the pairs of clocks that differ by more than the limit.

    With many nodes, each is compared only with the node of the median offset.
    """
    names = list(offsets)
    if len(names) <= MAX_WARNINGS:
        pairs = [(one, other) for i, one in enumerate(names) for other in names[i + 1 :]]
    else:
        middle = sorted(names, key=lambda name: offsets[name].offset_ms)[len(names) // 2]
        pairs = [(middle, name) for name in names if name != middle]
    found = []
    for one, other in pairs:
        offset_ms = offsets[other].offset_ms - offsets[one].offset_ms
        rtt_ms = max(offsets[one].rtt_ms, offsets[other].rtt_ms)
        if abs(offset_ms) > limit_ms:
            found.append(SkewWarning(one, other, offset_ms, rtt_ms, rtt_ms / 2 > limit_ms))
    return sorted(found, key=lambda warning: -abs(warning.offset_ms))


def unsure_nodes(offsets: Mapping[str, ClockOffset], limit_ms: float) -> list[str]:
    """Return nodes whose round trip is too long to detect an offset of `limit_ms`."""
    return [name for name, offset in offsets.items() if offset.rtt_ms / 2 > limit_ms]
