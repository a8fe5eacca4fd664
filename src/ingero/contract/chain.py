"""A causal chain: what is slow, what happened at the same time, and what to do.

Chains are stored, exported and printed in this shape.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ingero.contract.events import Layer


class Severity(StrEnum):
    """How bad a finding is, worst first."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


# How far before the detection of a chain its events may lie.
CHAIN_WINDOW_NS: Final = 60_000_000_000
SEVERITIES = ("CRITICAL", *(str(severity) for severity in Severity))  # other agents send CRITICAL


def severity_order(severity: str) -> int:
    """Return the position in a list that begins with the worst; unknown severities come last."""
    text = severity.upper()
    return SEVERITIES.index(text) if text in SEVERITIES else len(SEVERITIES)


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of evidence; the symptom is the last line of a timeline."""

    layer: Layer
    op: str
    detail: str
    duration_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One finding about one process.

    `name` identifies the finding and is the same each time it is found again.
    """

    name: str
    severity: Severity
    summary: str
    root_cause: str
    explanation: str
    recommendations: tuple[str, ...] = ()
    cuda_op: str = ""
    p99_ns: int = 0
    p50_ns: int = 0
    tail_ratio: float = 0.0
    timeline: tuple[TimelineEntry, ...] = ()
    pid: int = 0
    # The share of slow calls that overlap the evidence; None where nothing could be compared.
    confidence: float | None = None


def chain_id(node: str, name: str) -> str:
    """Return `node:name`, or the plain name for a trace without a node."""
    return f"{node}:{name}" if node else name
