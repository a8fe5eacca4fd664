"""The page from which Prometheus scrapes `ingero fleet-push`, served only with --metrics-listen."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ingero.agent.push.collectives import LiveCollectives
from ingero.agent.push.loop import PushLoop
from ingero.agent.push.metrics import agent_families
from ingero.contract import api_paths
from ingero.contract.exposition import CONTENT_TYPE, Family, render
from ingero.transport.uds import LineServer


def metrics_app(
    loop: PushLoop,
    socket: LineServer | None,
    live: Callable[[], LiveCollectives | None],
    others: Callable[[], list[Family]],
) -> Starlette:
    """Return an app with `/metrics` for Prometheus and `/healthz` for a supervisor."""

    async def metrics(_: Request) -> Response:
        families = agent_families(loop, socket, live()) + others()
        return Response(render(families), media_type=CONTENT_TYPE)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Starlette(
        routes=[Route(api_paths.PROMETHEUS, metrics), Route(api_paths.HEALTHZ, healthz)]
    )
