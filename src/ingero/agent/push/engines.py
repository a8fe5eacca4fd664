"""Inference engines beside the push loop: the watch, its readiness listener and its metrics."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ingero.agent.engines.watch import EngineWatch
from ingero.agent.push.collective_feed import CollectiveFeed, RankBatch
from ingero.contract import api_paths
from ingero.contract.exposition import Family, Labels, counter, gauge
from ingero.contract.names import ENGINE_METRICS
from ingero.transport.listen import bind
from ingero.transport.tls import is_loopback

log = logging.getLogger(__name__)


class EngineFeed:
    """A feed of collectives in which the ranks of an inference engine are a job of their own.

    Engines set no job, and the ranks of each are numbered from 0.
    """

    def __init__(self, feed: CollectiveFeed, job_of: Callable[[int], str | None]) -> None:
        self.lost, self.problem = feed.lost, feed.problem
        self._feed, self._job_of = feed, job_of

    def poll(self) -> list[RankBatch]:
        """Return what the feed returns, with the jobs of engines."""
        batches = self._feed.poll()
        self.lost, self.problem = self._feed.lost, self._feed.problem
        return [
            batch if batch.job or not batch.pid else replace(batch, job=self._job_of(batch.pid))
            for batch in batches
        ]

    def close(self) -> None:
        """Close the feed."""
        self._feed.close()


async def watch_engines(
    watch: EngineWatch,
    ready_listen: str | None,
    opened: contextlib.AsyncExitStack,
    stop: asyncio.Event,
) -> None:
    """Watch the engines of this node until `stop`; say whether they are ready where asked to."""
    opened.push_async_callback(asyncio.wait, {asyncio.create_task(watch.run(stop))})
    if ready_listen:
        opened.push_async_callback(await _serve_ready(watch, ready_listen))


async def _serve_ready(watch: EngineWatch, address: str) -> Callable[[], Awaitable[None]]:
    """Serve whether the engine on a port is ready, and nothing else; return how to stop."""
    from starlette.applications import Starlette  # noqa: PLC0415 - slow to import
    from starlette.requests import Request  # noqa: PLC0415 - slow to import
    from starlette.responses import PlainTextResponse  # noqa: PLC0415 - slow to import
    from starlette.routing import Route  # noqa: PLC0415 - slow to import

    from ingero.transport.http import HttpListener  # noqa: PLC0415 - slow to import

    async def ready(request: Request) -> PlainTextResponse:
        port = request.query_params.get("port", "")
        if not (port.isascii() and port.isdigit() and len(port) <= 5):
            return PlainTextResponse("give ?port=N\n", 400)
        if watch.is_ready(int(port), time.monotonic()):
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready\n", 503)

    listener = HttpListener(Starlette(routes=[Route(api_paths.READY_ENGINE, ready)]), bind(address))
    await listener.start()
    log.info("readiness_served", extra={"listen": listener.address})
    if not is_loopback(address):
        log.warning(
            "readiness_open",
            extra={"listen": address, "reason": "anyone who can connect can ask"},
        )
    return listener.stop


def engine_families(watch: EngineWatch | None) -> list[Family]:
    """Return the metrics of every engine; none where engines are not watched."""
    if watch is None:
        return []
    values: dict[str, list[tuple[Labels, float]]] = {field: [] for field in ENGINE_METRICS}
    up: list[tuple[Labels, float]] = []
    stalled: list[tuple[Labels, float]] = []
    for engine in list(watch.engines.values()):
        for rank, report in list(engine.reports.items()):
            place = engine.place
            labels: Labels = (
                ("engine", str(place.kind)),
                ("model", engine.model),
                ("port", str(place.at.port)),
                *((("rank", str(rank)),) if rank is not None else ()),
            )
            up.append((labels, float(report.is_up)))
            stalled.append((labels, report.stalled_s or 0.0))
            for field, rows in values.items():
                value = getattr(report, field)
                if value is not None:
                    rows.append((labels, value))
    return [
        gauge("ingero_engine_up", "1 while the metrics page of an engine answers", up),
        gauge("ingero_engine_stalled_seconds", "Time without a step while requests wait", stalled),
        *(
            gauge(name.replace(".", "_"), "As the engine reports it, over the last second", rows)
            for name, rows in ((ENGINE_METRICS[field], rows) for field, rows in values.items())
        ),
        *_counters(watch),
    ]


def _counters(watch: EngineWatch) -> list[Family]:
    counters = watch.counters
    pages = {"answered": counters.pages, "unanswered": counters.unanswered}
    engines = {"found": counters.found, "gone": counters.gone, "refused": counters.refused}
    return [
        counter(
            "ingero_agent_engine_pages_total",
            "Metrics pages of engines that were asked for, by outcome",
            [((("outcome", outcome),), value) for outcome, value in pages.items()],
        ),
        counter(
            "ingero_agent_engines_total",
            "Engines that were found, that ended, or that were too many",
            [((("outcome", outcome),), value) for outcome, value in engines.items()],
        ),
        counter(
            "ingero_agent_engine_failures_total",
            "Rounds of watching engines that failed",
            [((), counters.failed)],
        ),
    ]
