"""Clock differences between nodes, from request and reply times: no node's clock is trusted, and the error is said."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_WARNINGS = 10


@dataclass(frozen=True, slots=True)
class TimeSample:
    """One question for the time: when it was sent and answered here, and what the other clock said."""

    sent_ns: int
    received_ns: int
    remote_ns: int

    @property
    def rtt_ns(self) -> int:
        return self.received_ns - self.sent_ns

    @property
    def offset_ns(self) -> float:
        """How far the other clock is ahead, if both ways took equally long."""
        return self.remote_ns - (self.sent_ns + self.rtt_ns / 2)


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """A node's clock against ours; the truth lies within half a round trip of it."""

    offset_ms: float
    rtt_ms: float


@dataclass(frozen=True, slots=True)
class SkewWarning:
    """Two clocks that differ by more than allowed."""

    node: str
    other: str
    offset_ms: float  # positive: `other` is ahead of `node`
    rtt_ms: float
    is_uncertain: bool

    def __str__(self) -> str:
        relation = "ahead of" if self.offset_ms > 0 else "behind"
        text = f"{self.other} is {abs(self.offset_ms):.0f} ms {relation} {self.node} (round trip {self.rtt_ms:.0f} ms)"
        if self.is_uncertain:
            text += "; the round trip is too long to be sure"
        return text


def estimate_offset(samples: Sequence[TimeSample]) -> ClockOffset:
    """Medians of offset and round trip, so that one slow reply does not count."""
    offset = statistics.median(sample.offset_ns for sample in samples)
    rtt = statistics.median(sample.rtt_ns for sample in samples)
    return ClockOffset(offset / 1e6, rtt / 1e6)


def skew_warnings(offsets: Mapping[str, ClockOffset], threshold_ms: float) -> list[SkewWarning]:
    """Pairs beyond the threshold. With many nodes, each deviating one is compared with the middle one only."""
    names = list(offsets)
    if len(names) <= MAX_WARNINGS:
        pairs = [(one, other) for i, one in enumerate(names) for other in names[i + 1 :]]
    else:
        middle = sorted(names, key=lambda name: offsets[name].offset_ms)[len(names) // 2]
        pairs = [(middle, name) for name in names if name != middle]
    found = [_compare(one, other, offsets) for one, other in pairs]
    beyond = [warning for warning in found if abs(warning.offset_ms) > threshold_ms]
    return [
        SkewWarning(w.node, w.other, w.offset_ms, w.rtt_ms, w.rtt_ms / 2 > threshold_ms)
        for w in sorted(beyond, key=lambda warning: -abs(warning.offset_ms))
    ]


def unsure_nodes(offsets: Mapping[str, ClockOffset], threshold_ms: float) -> list[str]:
    """Nodes whose round trip is too long to find a clock that is `threshold_ms` off."""
    return [name for name, offset in offsets.items() if offset.rtt_ms / 2 > threshold_ms]


def _compare(one: str, other: str, offsets: Mapping[str, ClockOffset]) -> SkewWarning:
    difference = offsets[other].offset_ms - offsets[one].offset_ms
    return SkewWarning(
        one, other, difference, max(offsets[one].rtt_ms, offsets[other].rtt_ms), False
    )
