"""The page from which Prometheus scrapes a recording."""

import asyncio
import threading

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingero.agent.ebpf.metrics import TracerView, tracer_families
from ingero.agent.nccl.rings import Rings
from ingero.agent.recording.app import TraceApp
from ingero.agent.recording.metrics import recording_families, ring_families
from ingero.contract import api_paths
from ingero.contract.exposition import CONTENT_TYPE, render
from ingero.transport.http import HttpListener
from ingero.transport.listen import bind


def serve_metrics(endpoint: str, app: TraceApp, tracer: TracerView, rings: Rings) -> str:
    """Serve the metrics of tracer, recording and rings on HOST:PORT until the process ends.

    Return the address, because the kernel may choose the port.
    """

    async def page(_: Request) -> Response:
        families = tracer_families(tracer) + recording_families(app) + ring_families(rings)
        return Response(render(families), media_type=CONTENT_TYPE)

    listener = HttpListener(Starlette(routes=[Route(api_paths.PROMETHEUS, page)]), bind(endpoint))
    threading.Thread(target=asyncio.run, args=(_serve(listener),), daemon=True).start()
    return f"http://{listener.address}{api_paths.PROMETHEUS}"


async def _serve(listener: HttpListener) -> None:
    await listener.start()
    await asyncio.Event().wait()
