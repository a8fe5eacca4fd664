"""The agent's own metrics, computed when somebody asks; served only where `--metrics-listen` says so."""

import math
import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ingero.agent.push.collectives import LiveCollectives
from ingero.agent.push.loop import PushLoop
from ingero.contract.exposition import (
    CONTENT_TYPE,
    Family,
    Labels,
    counter,
    gauge,
    metric_name,
    render,
)
from ingero.contract.otlp.values import MetricsRequest, NumberPoint, plain_attributes
from ingero.contract.types import DetectionMode, NodeState
from ingero.core.health.lifecycle import recent_launches
from ingero.core.health.score import SIGNAL_NAMES
from ingero.core.health.throttle import ThrottleReason
from ingero.transport.uds import LineServer


def agent_families(
    loop: PushLoop, socket: LineServer | None, live: LiveCollectives | None = None
) -> list[Family]:
    """Everything an agent knows about itself. What was not measured is left out."""
    monitor, counters = loop.monitor, loop.counters
    node: Labels = (("cluster_id", monitor.identity.cluster), ("node_id", monitor.identity.node))
    last = monitor.last
    score = last.score if last else None
    mode = last.decision.mode if last else DetectionMode.NONE
    threshold = last.decision.threshold if last else None
    signals = dict(score.signals.items()) if score else {}
    own = [
        gauge("ingero_agent_health_score", "Health score of this node", [(node, score.value)] if score else []),
        gauge(
            "ingero_agent_signal",
            "Clamped signals the score is made of",
            [((*node, ("signal", name)), v) for name in SIGNAL_NAMES if (v := signals.get(name)) is not None],
        ),
        gauge(
            "ingero_agent_detection_mode",
            "1 for the mode in force",
            [((*node, ("mode", each.value)), float(each is mode)) for each in DetectionMode],
        ),
        gauge("ingero_agent_threshold", "Threshold in force", [(node, threshold)] if threshold is not None else []),
        gauge("ingero_agent_fleet_reachable", "1 while pushes get through", [(node, float(monitor.is_reachable))]),
        gauge(
            "ingero_agent_state",
            "1 for the lifecycle state of this node",
            [((*node, ("state", each.value)), float(each is monitor.life.state)) for each in NodeState],
        ),
        gauge("ingero_agent_straggler", "1 in an episode", [(node, float(monitor.classification.is_straggler))]),
        gauge("ingero_agent_degradation_warning", "1 far below the long-term level", [
            (node, float(bool(last and last.is_degraded)))
        ]),
        gauge("ingero_agent_verdict", "1 for each kind of open verdict about this node", _verdicts(loop, node)),
        gauge(
            "ingero_agent_gpu_throttled",
            "1 for each reason a GPU runs below its clocks",
            [
                ((*node, ("gpu_uuid", gpu), ("reason", reason.value)), float(reason in active))
                for gpu, active in sorted(loop.throttle.active.items())
                for reason in ThrottleReason
            ],
        ),
        *_delivery_families(loop, node),
        *_counter_families(loop, socket),
        counter("ingero_agent_episodes_total", "Times this node was named", [((), counters.episodes)]),
        counter("ingero_agent_straggles_total", "Times a process was found without CPU", [((), counters.straggles)]),
        *(_collective_families(live) if live is not None else ()),
    ]  # fmt: skip
    known = {family.name for family in own}
    return [
        *own,
        *(twin for twin in _pushed_families(loop.last_push, node) if twin.name not in known),
    ]


def _pushed_families(pushed: MetricsRequest | None, node: Labels) -> list[Family]:
    """The last push as Prometheus spells it, so that both ways out carry the same set."""
    metrics = (
        [m for each in pushed.resource_metrics for s in each.scope_metrics for m in s.metrics]
        if pushed
        else []
    )
    return [
        (gauge if metric.sum is None else counter)(
            metric_name(metric.name),
            "As pushed to Fleet",
            [((*node, *_point_labels(point)), _value(point)) for point in metric.numbers],
        )
        for metric in metrics
    ]


def _point_labels(point: NumberPoint) -> Labels:
    return tuple(
        (metric_name(key), str(value))
        for key, value in sorted(plain_attributes(point.attributes).items())
    )


def _value(point: NumberPoint) -> float:
    return point.as_double if point.as_double is not None else point.as_int or 0


def _collective_families(live: LiveCollectives) -> list[Family]:
    """What was measured of the ranks on this node, and what did not travel."""
    counters = live.counters
    unsent = {"incomplete": counters.incomplete, "thinned": counters.thinned}
    unsent |= {"dropped": counters.dropped, "rejected": counters.rejected}
    sent = {"collective": counters.collectives, "own_time": counters.own_times}
    failed = {"failed_round": counters.failed_rounds, "refused_rank": counters.refused_ranks}
    return [
        gauge(
            "ingero_agent_ranks",
            "Ranks whose collectives are measured here",
            [((), len(live.ranks))],
        ),
        gauge(
            "ingero_agent_rank_points_queued",
            "Points that wait for Fleet",
            [((), live.queued_points)],
        ),
        _by(
            "ingero_agent_collectives_total",
            "Collectives read, by source",
            "source",
            counters.records,
        ),
        counter(
            "ingero_agent_collectives_lost_total",
            "Collectives that were gone before they were read",
            [((), sum(feed.lost for feed in live.feeds))],
        ),
        _by(
            "gpu_nccl_collective_count", "Collectives by operation", "op_type", counters.operations
        ),
        _by(
            "gpu_nccl_collective_bytes_total",
            "Bytes in them, by operation",
            "op_type",
            counters.bytes,
        ),
        _by(
            "gpu_nccl_collective_barrier_events",
            "Times the host waited for one",
            "op_type",
            counters.barriers,
        ),
        _by("ingero_agent_rank_points_total", "Points sent, by kind", "kind", sent),
        _by(
            "ingero_agent_rank_points_unsent_total",
            "Points that did not travel, by reason",
            "reason",
            unsent,
        ),
        _by(
            "ingero_agent_rank_pushes_total",
            "Pushes of ranks by outcome",
            "outcome",
            counters.pushes,
        ),
        _by(
            "ingero_agent_rank_failures_total",
            "Rounds that failed, ranks beyond the bound",
            "reason",
            failed,
        ),
    ]


def _delivery_families(loop: PushLoop, node: Labels) -> list[Family]:
    """How old the threshold is by each way it can come, and how much work was seen lately."""
    now_s, delivery = time.monotonic(), loop.monitor.delivery
    ways = (("header", delivery.header_at_s), ("poll", delivery.poll_at_s))
    recent = recent_launches(loop.monitor.life, -math.inf)
    return [
        gauge(
            "ingero_agent_threshold_age_seconds",
            "Time since a threshold came by this way",
            [
                ((*node, ("via", way)), round(now_s - at_s, 3))
                for way, at_s in ways
                if at_s is not None
            ],
        ),
        gauge(
            "ingero_agent_recent_launches", "Kernel launches in the last looks", [(node, recent)]
        ),
    ]


def _verdicts(loop: PushLoop, node: Labels) -> list[tuple[Labels, float]]:
    kinds = {
        (
            ("state", v.state.value),
            ("class", v.cause.value),
            ("rank", "" if v.rank is None else str(v.rank)),
        )
        for v in loop.verdicts.values()
    }
    return [((*node, *kind), 1.0) for kind in sorted(kinds)]


def _counter_families(loop: PushLoop, socket: LineServer | None) -> list[Family]:
    counters = loop.counters
    families = [
        counter("ingero_agent_ticks_total", "Evaluations", [((), counters.ticks)]),
        counter(
            "ingero_agent_late_ticks_total",
            "Evaluations that began late",
            [((), counters.late_ticks)],
        ),
        counter(
            "ingero_agent_failed_reads_total",
            "Looks at the signals that failed",
            [((), counters.failed_looks)],
        ),
        _by("ingero_agent_pushes_total", "Pushes by outcome", "outcome", counters.pushes),
        _by(
            "ingero_agent_skipped_pushes_total",
            "Pushes left out, by reason",
            "reason",
            counters.skipped_pushes,
        ),
        _by(
            "ingero_agent_verdicts_total",
            "Verdicts that were news, by state",
            "state",
            counters.verdicts,
        ),
        _by(
            "ingero_agent_events_total",
            "Straggler events pushed, by outcome",
            "outcome",
            counters.events,
        ),
        _by(
            "ingero_agent_threshold_headers_total",
            "Replies by what their headers were",
            "delivery",
            counters.headers,
        ),
        _by("ingero_agent_polls_total", "Threshold polls by outcome", "outcome", counters.polls),
        counter(
            "ingero_agent_gpu_throttle_events_total",
            "Times a reason began",
            [
                ((("gpu_uuid", gpu), ("reason", reason.value)), count)
                for (gpu, reason), count in sorted(loop.throttle.counts.items())
            ],
        ),
        counter(
            "ingero_agent_rejected_points_total",
            "Points Fleet did not take",
            [((), counters.rejected_points)],
        ),
        counter(
            "ingero_agent_evicted_cgroups_total",
            "Containers forgotten",
            [((), counters.evicted_cgroups)],
        ),
    ]
    if socket is not None:
        families += [
            gauge(
                "ingero_agent_socket_consumers",
                "Readers of the remediation socket",
                [((), socket.consumers)],
            ),
            counter(
                "ingero_agent_socket_lines_total", "Lines sent to readers", [((), socket.sent)]
            ),
            _by(
                "ingero_agent_socket_dropped_total",
                "Lines dropped, by reason",
                "reason",
                socket.dropped,
            ),
            counter(
                "ingero_agent_socket_refused_total", "Readers turned away", [((), socket.refused)]
            ),
        ]
    return families


def _by(name: str, help: str, label: str, counts: dict[str, int]) -> Family:
    return counter(name, help, [(((label, key),), count) for key, count in sorted(counts.items())])


def metrics_app(
    loop: PushLoop,
    socket: LineServer | None,
    live: Callable[[], LiveCollectives | None] = lambda: None,
) -> Starlette:
    """`/metrics` for Prometheus and `/healthz` for a supervisor."""

    async def metrics(_: Request) -> Response:
        return Response(render(agent_families(loop, socket, live())), media_type=CONTENT_TYPE)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Starlette(routes=[Route("/metrics", metrics), Route("/healthz", healthz)])
