"""Fleet's HTTP applications: OTLP, the threshold API, diagnostics, health and metrics."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from http import HTTPStatus

import msgspec
from msgspec import UNSET
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ingero.contract.api_paths import (
    FLEET_DEBUG_CLUSTERS,
    FLEET_DEBUG_SCORES,
    FLEET_DEBUG_SERVICEZ,
    FLEET_DEBUG_TRACEZ,
    FLEET_STATUS,
    FLEET_THRESHOLD,
    HEALTHZ,
    OTLP_LOGS,
    OTLP_METRICS,
    OTLP_TRACES,
    PAGE,
    PROMETHEUS,
    READYZ,
)
from ingero.contract.exposition import CONTENT_TYPE
from ingero.contract.fleet_api import (
    ClusterList,
    ClusterScores,
    ClusterStatus,
    ClusterSummary,
    NodeStatus,
    Status,
)
from ingero.contract.names import CLUSTER_QUERY, DEFAULT_CLUSTER, QUORUM_REASON_HEADER
from ingero.contract.otlp.values import Kind, LogsRequest, MetricsRequest, TracesRequest
from ingero.contract.threshold import encode_answer
from ingero.fleet.allowed_clusters import not_allowed
from ingero.fleet.page.cluster_view import summary_fields
from ingero.fleet.processor import Cluster, FleetProcessor
from ingero.fleet.receive import STOPPING, Receiver
from ingero.fleet.roster import NodeRow
from ingero.fleet.silences.api import Share, silence_routes
from ingero.fleet.silences.book import Silences
from ingero.fleet.verdicts import VerdictService
from ingero.fleet.zpages.operations import Operations
from ingero.fleet.zpages.pages import service_page, trace_page
from ingero.transport.access import Access
from ingero.transport.bearer import TokenScope
from ingero.transport.browsers import page_response
from ingero.transport.http import (
    Endpoint,
    error_response,
    http_error,
    json_response,
    key_of,
    require_all_clusters,
    require_token,
)
from ingero.transport.otlp.server_http import otlp_endpoint
from ingero.web.assets import sign_endpoint

MAX_LISTED_NODES = 10_000
PAGE_IS_ELSEWHERE = "The page is on the port of the threshold API, 8080 unless configured."
_SLICE = 200
_encode = msgspec.json.Encoder().encode


def receiver_app(receiver: Receiver, access: Access, max_body_bytes: int) -> Starlette:
    """Return the application of the OTLP listener, for all but plain pushes."""
    service = receiver.http_service(access)

    def endpoint(kind: Kind) -> Endpoint:
        return otlp_endpoint(kind, service, max_body_bytes)

    return Starlette(
        routes=[
            Route(OTLP_METRICS, endpoint(MetricsRequest), methods=["POST"]),
            Route(OTLP_TRACES, endpoint(TracesRequest), methods=["POST"]),
            Route(OTLP_LOGS, endpoint(LogsRequest), methods=["POST"]),
            Route(PAGE, sign_endpoint(f"Fleet receives OTLP here, by POST. {PAGE_IS_ELSEWHERE}")),
        ]
    )


def threshold_app(
    processor: FleetProcessor,
    access: Access,
    verdicts: VerdictService,
    more_routes: Sequence[Route],
    *,
    clock: Callable[[], float],
    refuses: Callable[[], str],
    share: Share | None,
) -> Starlette:
    """Return the API for agents whose push brought no threshold back, and for operators.

    While `refuses` says why, no threshold is served. Several replicas `share` an operator's change.
    """

    async def threshold(request: Request) -> Response:
        if refuses():
            return error_response(refuses(), HTTPStatus.SERVICE_UNAVAILABLE)
        cluster = request.query_params.get(CLUSTER_QUERY, DEFAULT_CLUSTER)
        if not key_of(request).may_see(cluster):
            return error_response(not_allowed(cluster), HTTPStatus.FORBIDDEN)
        served = processor.served(cluster)
        reason = {QUORUM_REASON_HEADER: str(served.reason)} if served.reason else None
        return Response(encode_answer(served), media_type="application/json", headers=reason)

    async def status(request: Request) -> Response:
        now_s = clock()
        clusters = [
            ClusterStatus(
                **summary_fields(cluster),
                nodes=await _nodes(cluster, now_s, processor.policy.ttl_s, verdicts.silences),
                ranks=verdicts.rank_counts(name),
                verdicts=verdicts.recent_verdicts(name),
            )
            for name, cluster in sorted(processor.clusters.items())
            if key_of(request).may_see(name)
        ]
        return json_response(Status(clusters))

    return Starlette(
        routes=[
            Route(
                FLEET_THRESHOLD, require_token(access, threshold, TokenScope.PUSH, TokenScope.READ)
            ),
            Route(FLEET_STATUS, require_token(access, status, TokenScope.READ)),
            *silence_routes(verdicts, processor, access, share),
            *more_routes,
        ],
        exception_handlers={HTTPException: http_error},
    )


def admin_app(processor: FleetProcessor, access: Access, clock: Callable[[], float]) -> Starlette:
    """Return the diagnostics of every cluster and node; served on loopback only."""

    async def clusters(request: Request) -> Response:
        found = [cluster for _, cluster in sorted(processor.clusters.items())]
        return json_response(ClusterList([ClusterSummary(**summary_fields(c)) for c in found]))

    async def scores(request: Request) -> Response:
        name = request.query_params.get(CLUSTER_QUERY, DEFAULT_CLUSTER)
        cluster = processor.clusters.get(name)
        if cluster is None:
            known = ", ".join(sorted(processor.clusters)[:20]) or "none has pushed yet"
            return error_response(f"no cluster {name!r}; known: {known}", HTTPStatus.NOT_FOUND)
        scores = ClusterScores(
            **summary_fields(cluster),
            nodes=await _nodes(cluster, clock(), processor.policy.ttl_s),
            truncated=len(cluster.roster.rows) > MAX_LISTED_NODES,
        )
        return json_response(scores)

    return Starlette(
        routes=[
            Route(FLEET_DEBUG_CLUSTERS, require_all_clusters(access, clusters)),
            Route(FLEET_DEBUG_SCORES, require_all_clusters(access, scores)),
            Route(
                PAGE,
                sign_endpoint(
                    f"Diagnostics of Fleet: {FLEET_DEBUG_CLUSTERS} and {FLEET_DEBUG_SCORES}. "
                    f"{PAGE_IS_ELSEWHERE}"
                ),
            ),
        ],
        exception_handlers={HTTPException: http_error},
    )


async def _nodes(
    cluster: Cluster, now_s: float, ttl_s: float, silences: Silences | None = None
) -> list[msgspec.Raw]:
    """Encode the nodes one by one, with pauses, so that pushes do not wait for a large cluster."""
    rows = []
    for number, node in enumerate(sorted(cluster.roster.rows)[:MAX_LISTED_NODES], 1):
        if node in cluster.roster.rows:  # it may have been dropped during a pause
            row = cluster.roster.row(node, now_s)
            silenced = (
                UNSET
                if silences is None
                else silences.about(cluster.name, node, row.report.job, time.time())
            )
            rows.append(msgspec.Raw(_encode(_node(cluster, row, ttl_s, silenced))))
        if number % _SLICE == 0:
            await asyncio.sleep(0)
    return rows


def _node(
    cluster: Cluster, row: NodeRow, ttl_s: float, silenced: str | msgspec.UnsetType
) -> NodeStatus:
    report = row.report
    is_silent = row.age_s > ttl_s
    is_compared = row.state == "active" and not is_silent and row.score is not None
    return NodeStatus(
        node_id=row.node,
        score=row.score,
        state="silent" if is_silent else row.state,
        below_threshold=bool(
            is_compared and row.score is not None and row.score < cluster.served.value
        ),
        straggler=row.straggling,
        straggler_for_s=row.straggling_for_s,
        mode=report.mode,
        workload_type=report.workload,
        last_push_s_ago=round(row.age_s, 3),
        known_for_s=round(row.known_for_s, 3),
        pushes=row.pushes,
        sent_unix_ns=row.sent_ns,
        degraded=report.degraded,
        job_id=report.job,
        rank=report.rank,
        world_size=report.world_size,
        provider=report.provider,
        gpu_model=report.gpu_model,
        gpu_count=report.gpu_count,
        silenced=silenced,
    )


def health_app(
    receiver: Receiver, is_ready: Callable[[], bool], access: Access, operations: Operations
) -> Starlette:
    """Return the probes for orchestrators and two pages for people."""

    async def health(request: Request) -> Response:
        if receiver.refuses == STOPPING:
            return PlainTextResponse("draining\n", 503)
        return PlainTextResponse("ok\n")

    async def ready(request: Request) -> Response:
        if receiver.refuses or not is_ready():
            why = f": {receiver.refuses}" if receiver.refuses else ""
            return PlainTextResponse(f"not ready{why}\n", 503)
        return PlainTextResponse("ready\n")

    async def status(request: Request) -> Response:
        return page_response(service_page(receiver.processor))

    async def times(request: Request) -> Response:
        return page_response(trace_page(operations, receiver.plain_pushes[0]))

    return Starlette(
        routes=[
            Route(HEALTHZ, health),
            Route(READYZ, ready),
            Route("/", require_all_clusters(access, status)),
            Route(FLEET_DEBUG_SERVICEZ, require_all_clusters(access, status)),
            Route(FLEET_DEBUG_TRACEZ, require_all_clusters(access, times)),
        ]
    )


async def _one_by_one(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)


def metrics_app(
    render: Callable[[str | None], Awaitable[bytes | list[bytes]]], access: Access
) -> Starlette:
    """Return an application that serves metrics to a Prometheus server.

    `render` gets the cluster that the query names: a large Fleet is scraped cluster by cluster.
    It may return the text in pieces, between which pushes are answered.
    """

    async def metrics(request: Request) -> Response:
        cluster = request.query_params.get(CLUSTER_QUERY) or None
        text = await render(cluster)
        pieces = [text] if isinstance(text, bytes) else text
        size = str(sum(len(piece) for piece in pieces))
        headers = {"Content-Length": size}
        return StreamingResponse(_one_by_one(pieces), media_type=CONTENT_TYPE, headers=headers)

    sign = sign_endpoint(f"Metrics of Fleet: {PROMETHEUS}. {PAGE_IS_ELSEWHERE}")
    return Starlette(
        routes=[Route(PROMETHEUS, require_all_clusters(access, metrics)), Route(PAGE, sign)]
    )
