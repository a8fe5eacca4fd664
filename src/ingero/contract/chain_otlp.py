"""Causal chains as OTLP log records: how agents tell Fleet and Echo why a node was slow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ingero.contract import names
from ingero.contract.chain import Chain, Severity
from ingero.contract.otlp.values import (
    AnyValue,
    LogRecord,
    LogsRequest,
    Resource,
    ResourceLogs,
    ScopeLogs,
    attributes,
)
from ingero.contract.timestamps import rfc3339_ns

MAX_STACKS: Final = 3
MAX_FRAMES: Final = 12
_MAX_TEXT: Final = 2000  # characters of one text
_MAX_FRAME: Final = 200
_MAX_LINES: Final = 40  # of a timeline, and recommendations
_ERROR, _WARN, _INFO = 17, 13, 9  # severity numbers of OTLP
_NUMBERS: Final = {Severity.HIGH: _ERROR, Severity.MEDIUM: _WARN, Severity.LOW: _INFO}


@dataclass(frozen=True, slots=True)
class ChainStack:
    """A stack from which the slow calls came; `frames` begin with the innermost."""

    operation: str
    calls: int
    total_us: int
    frames: tuple[str, ...]
    top_frame: str


@dataclass(frozen=True, slots=True)
class ReportedChain:
    """A chain as it leaves a node; the first stack cost the most time."""

    id: str
    node: str
    detected_at_ns: int
    chain: Chain
    stacks: tuple[ChainStack, ...] = ()
    process: str = ""


def encode_chain_logs(cluster: str, node: str, reported: Sequence[ReportedChain]) -> LogsRequest:
    """Return a request with one record per chain; `node` is for chains that do not name theirs."""
    by_node: dict[str, list[LogRecord]] = {}
    for chain in reported:
        by_node.setdefault(chain.node or node, []).append(_record(chain, chain.node or node))
    return LogsRequest(
        tuple(
            ResourceLogs(
                resource=Resource(
                    attributes=attributes({names.CLUSTER_ID: cluster, names.NODE_ID: name})
                ),
                scope_logs=(ScopeLogs(log_records=tuple(records)),),
            )
            for name, records in by_node.items()
        )
    )


def _record(reported: ReportedChain, node: str) -> LogRecord:
    severity = reported.chain.severity
    return LogRecord(
        time_unix_nano=max(reported.detected_at_ns, 0),
        observed_time_unix_nano=max(reported.detected_at_ns, 0),
        severity_number=_NUMBERS[severity],
        severity_text=str(severity),
        body=AnyValue(string_value=msgspec.json.encode(_object(reported, node)).decode()),
        attributes=attributes({names.CAUSAL_CHAIN_ID: reported.id}),
        event_name=names.CAUSAL_CHAIN_EVENT,
    )


def _object(reported: ReportedChain, node: str) -> dict[str, object]:
    chain = reported.chain
    values: dict[str, object] = {
        "id": reported.id,
        "node": node,
        "detected_at": rfc3339_ns(reported.detected_at_ns),
        "severity": str(chain.severity),
        "summary": chain.summary[:_MAX_TEXT],
        "root_cause": chain.root_cause[:_MAX_TEXT],
        "explanation": chain.explanation[:_MAX_TEXT],
        "recommendations": [line[:_MAX_TEXT] for line in chain.recommendations[:_MAX_LINES]],
        "cuda_op": chain.cuda_op[:_MAX_FRAME],
        "cuda_p99_us": chain.p99_ns // 1000,
        "cuda_p50_us": chain.p50_ns // 1000,
        "tail_ratio": chain.tail_ratio,
        "timeline": [
            {
                "layer": str(line.layer),
                "op": line.op[:_MAX_FRAME],
                "detail": line.detail[:_MAX_TEXT],
            }
            for line in chain.timeline[-_MAX_LINES:]  # the symptom is the last line
        ],
        "pid": chain.pid,
        "process": reported.process[:_MAX_FRAME],
        "confidence": chain.confidence,
        "stacks": [_stack(stack) for stack in reported.stacks[:MAX_STACKS]],
        "top_frame": reported.stacks[0].top_frame[:_MAX_FRAME] if reported.stacks else None,
    }
    return {name: value for name, value in values.items() if value not in (None, "", 0, [])}


def _stack(stack: ChainStack) -> dict[str, object]:
    return {
        "op": stack.operation[:_MAX_FRAME],
        "calls": stack.calls,
        "total_us": stack.total_us,
        "frames": [frame[:_MAX_FRAME] for frame in stack.frames[:MAX_FRAMES]],
    }
