"""Metrics of the agent, computed for each scrape."""

import math
import time
from typing import Final

from ingero.agent.push.collectives import LiveCollectives
from ingero.agent.push.loop import PushLoop
from ingero.contract.exposition import (
    Family,
    Labels,
    by_label,
    counter,
    gauge,
    metric_name,
    total,
)
from ingero.contract.otlp.values import MetricsRequest, NumberPoint, plain_attributes
from ingero.contract.types import DetectionMode, NodeState
from ingero.core.health.lifecycle import recent_launches
from ingero.core.health.score import SIGNAL_NAMES
from ingero.core.health.throttle import ThrottleReason
from ingero.transport.uds import LineServer

Samples = list[tuple[Labels, float]]

# (metric, help, field of LoopCounters)
LOOP_TOTALS: Final = (
    ("ingero_agent_ticks_total", "Evaluations", "ticks"),
    ("ingero_agent_late_ticks_total", "Evaluations that began late", "late_ticks"),
    ("ingero_agent_failed_reads_total", "Reads of the signals that failed", "failed_reads"),
    ("ingero_agent_rejected_points_total", "Points that Fleet rejected", "rejected_points"),
    ("ingero_agent_evicted_cgroups_total", "Containers no longer counted", "evicted_cgroups"),
    ("ingero_agent_episodes_total", "Episodes of this node", "episodes"),
    ("ingero_agent_straggles_total", "Times a process was found without CPU", "straggles"),
)
# (metric, help, label, field of LoopCounters)
LOOP_COUNTS: Final = (
    ("ingero_agent_pushes_total", "Pushes by outcome", "outcome", "pushes"),
    ("ingero_agent_skipped_pushes_total", "Pushes skipped, by reason", "reason", "skipped_pushes"),
    ("ingero_agent_verdicts_total", "New or changed verdicts, by state", "state", "verdicts"),
    ("ingero_agent_events_total", "Straggler events pushed, by outcome", "outcome", "events"),
    ("ingero_agent_threshold_headers_total", "Replies by threshold header", "delivery", "headers"),
    ("ingero_agent_polls_total", "Threshold polls by outcome", "outcome", "polls"),
)
# (metric, help, label, field of LiveCounters)
RANK_COUNTS: Final = (
    ("ingero_agent_collectives_total", "Collectives read, by source", "source", "records"),
    ("gpu_nccl_collective_count", "Collectives by operation", "op_type", "operations"),
    ("gpu_nccl_collective_bytes_total", "Bytes in collectives, by operation", "op_type", "bytes"),
    (
        "gpu_nccl_collective_barrier_events",
        "Times the host waited for a collective",
        "op_type",
        "barriers",
    ),
    ("ingero_agent_rank_pushes_total", "Pushes of ranks by outcome", "outcome", "pushes"),
)
# (metric, help, label, {value of the label: field of LiveCounters})
RANK_GROUPS: Final = (
    (
        "ingero_agent_rank_points_total",
        "Points sent, by kind",
        "kind",
        {"collective": "collectives", "own_time": "own_times"},
    ),
    (
        "ingero_agent_rank_points_unsent_total",
        "Points that were not sent, by reason",
        "reason",
        {name: name for name in ("incomplete", "thinned", "dropped", "rejected")},
    ),
    (
        "ingero_agent_rank_failures_total",
        "Rounds that failed and ranks above the limit",
        "reason",
        {"failed_round": "failed_rounds", "refused_rank": "refused_ranks"},
    ),
)


def agent_families(
    loop: PushLoop, socket: LineServer | None, live: LiveCollectives | None
) -> list[Family]:
    """Return every metric of an agent. What was not measured is left out."""
    identity = loop.monitor.identity
    node: Labels = (("cluster_id", identity.cluster), ("node_id", identity.node))
    own = [
        *_health_families(loop, node),
        *_state_families(loop, node),
        *_delivery_families(loop, node),
        *(total(name, help, getattr(loop.counters, field)) for name, help, field in LOOP_TOTALS),
        *(
            by_label(name, help, label, getattr(loop.counters, field))
            for name, help, label, field in LOOP_COUNTS
        ),
        *_throttle_families(loop, node),
        *(_socket_families(socket) if socket is not None else ()),
        *(_collective_families(live) if live is not None else ()),
    ]
    own_names = {family.name for family in own}
    pushed = _pushed_families(loop.last_push, node)
    return [*own, *(family for family in pushed if family.name not in own_names)]


def _health_families(loop: PushLoop, node: Labels) -> list[Family]:
    last = loop.monitor.last
    score = last.score if last else None
    threshold = last.decision.threshold if last else None
    signals = dict(score.signals.items()) if score else {}
    values: Samples = [
        ((*node, ("signal", name)), value)
        for name in SIGNAL_NAMES
        if (value := signals.get(name)) is not None
    ]
    known: Samples = [] if threshold is None else [(node, threshold)]
    return [
        gauge(
            "ingero_agent_health_score",
            "Health score of this node",
            [(node, score.value)] if score else [],
        ),
        gauge("ingero_agent_signal", "Clamped signals the score is made of", values),
        gauge("ingero_agent_threshold", "Threshold in force", known),
    ]


def _state_families(loop: PushLoop, node: Labels) -> list[Family]:
    monitor, last = loop.monitor, loop.monitor.last
    mode = last.decision.mode if last else DetectionMode.NONE
    modes: Samples = [
        ((*node, ("mode", each.value)), float(each is mode)) for each in DetectionMode
    ]
    states: Samples = [
        ((*node, ("state", each.value)), float(each is monitor.lifecycle.state))
        for each in NodeState
    ]
    is_degraded = last is not None and last.is_degraded
    flags = (
        ("ingero_agent_fleet_reachable", "1 while pushes reach Fleet", monitor.is_reachable),
        ("ingero_agent_straggler", "1 during an episode", monitor.classification.is_straggler),
        ("ingero_agent_degradation_warning", "1 far below the long-term level", is_degraded),
    )
    return [
        gauge("ingero_agent_detection_mode", "1 for the mode in force", modes),
        gauge("ingero_agent_state", "1 for the lifecycle state of this node", states),
        *(gauge(name, help, [(node, float(value))]) for name, help, value in flags),
        gauge(
            "ingero_agent_verdict",
            "1 for each kind of open verdict about this node",
            _verdicts(loop, node),
        ),
    ]


def _verdicts(loop: PushLoop, node: Labels) -> Samples:
    kinds = {
        (
            ("state", verdict.state.value),
            ("class", verdict.cause_class.value),
            ("rank", "" if verdict.rank is None else str(verdict.rank)),
        )
        for verdict in loop.reporter.verdicts.values()
    }
    return [((*node, *kind), 1.0) for kind in sorted(kinds)]


def _delivery_families(loop: PushLoop, node: Labels) -> list[Family]:
    """Return the age of the threshold by each way it is delivered, and the recent launches."""
    now_s, delivery = time.monotonic(), loop.monitor.delivery
    ways = (("header", delivery.header_at_s), ("poll", delivery.poll_at_s))
    ages: Samples = [
        ((*node, ("via", way)), round(now_s - at_s, 3)) for way, at_s in ways if at_s is not None
    ]
    recent = recent_launches(loop.monitor.lifecycle, -math.inf)
    return [
        gauge("ingero_agent_threshold_age_seconds", "Time since a threshold arrived", ages),
        gauge(
            "ingero_agent_recent_launches",
            "Kernel launches in the last observations",
            [(node, recent)],
        ),
    ]


def _throttle_families(loop: PushLoop, node: Labels) -> list[Family]:
    active: Samples = [
        ((*node, ("gpu_uuid", gpu), ("reason", reason.value)), float(reason in reasons))
        for gpu, reasons in sorted(loop.throttle.active.items())
        for reason in ThrottleReason
    ]
    began: Samples = [
        ((("gpu_uuid", gpu), ("reason", reason.value)), count)
        for (gpu, reason), count in sorted(loop.throttle.counts.items())
    ]
    return [
        gauge("ingero_agent_gpu_throttled", "1 for each reason a GPU is throttled", active),
        counter("ingero_agent_gpu_throttle_events_total", "Times a GPU became throttled", began),
    ]


def _socket_families(socket: LineServer) -> list[Family]:
    return [
        gauge(
            "ingero_agent_socket_consumers",
            "Readers of the remediation socket",
            [((), socket.consumers)],
        ),
        total("ingero_agent_socket_lines_total", "Lines sent to readers", socket.sent),
        by_label(
            "ingero_agent_socket_dropped_total",
            "Lines dropped, by reason",
            "reason",
            socket.dropped,
        ),
        total("ingero_agent_socket_refused_total", "Readers turned away", socket.refused),
    ]


def _collective_families(live: LiveCollectives) -> list[Family]:
    """Return what was measured of the ranks on this node, and what was not sent."""
    counters, lost = live.counters, sum(feed.lost for feed in live.feeds)
    return [
        gauge(
            "ingero_agent_ranks",
            "Ranks whose collectives are measured here",
            [((), len(live.ranks))],
        ),
        gauge(
            "ingero_agent_rank_points_queued",
            "Points that wait to be sent to Fleet",
            [((), live.queued_points)],
        ),
        total(
            "ingero_agent_collectives_lost_total",
            "Collectives overwritten before they were read",
            lost,
        ),
        *(
            by_label(name, help, label, getattr(counters, field))
            for name, help, label, field in RANK_COUNTS
        ),
        *(
            by_label(
                name, help, label, {key: getattr(counters, field) for key, field in fields.items()}
            )
            for name, help, label, fields in RANK_GROUPS
        ),
    ]


def _pushed_families(pushed: MetricsRequest | None, node: Labels) -> list[Family]:
    """Return the last push under Prometheus names, so that a scrape has all that Fleet receives."""
    scopes = [
        scope
        for each in (pushed.resource_metrics if pushed else ())
        for scope in each.scope_metrics
    ]
    return [
        (gauge if metric.sum is None else counter)(
            metric_name(metric.name),
            "As pushed to Fleet",
            [((*node, *_point_labels(point)), _value(point)) for point in metric.numbers],
        )
        for scope in scopes
        for metric in scope.metrics
    ]


def _point_labels(point: NumberPoint) -> Labels:
    return tuple(
        (metric_name(key), str(value))
        for key, value in sorted(plain_attributes(point.attributes).items())
    )


def _value(point: NumberPoint) -> float:
    return point.as_double if point.as_double is not None else point.as_int or 0
