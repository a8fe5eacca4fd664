"""`straggler-sink`: reads an agent's remediation socket and shows Prometheus who is slow."""

import asyncio
import signal
import sys
from pathlib import Path

import click

from ingero.cli.dispatch import run_click
from ingero.cli.params import Duration, log_level_option


@click.command()
@click.option(
    "--socket-path",
    type=click.Path(path_type=Path),
    help="Socket of `ingero fleet-push --remediate`.  [default: the agent's own default]",
)
@click.option(
    "--listen",
    default="127.0.0.1:9464",
    show_default=True,
    metavar="HOST:PORT",
    help="Metrics, /healthz and /readyz; :PORT is everywhere.",
)
@click.option(
    "--reconnect-delay",
    type=Duration(),
    default="2s",
    show_default=True,
    help="Between tries to reach the agent.",
)
@click.option(
    "--max-tracked-nodes",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="The oldest goes first.",
)
@click.option(
    "--readiness-window",
    type=Duration(),
    default="60s",
    show_default=True,
    help="Silence before /readyz says no.",
)
@click.option(
    "--forget-after",
    type=Duration(),
    default="60s",
    show_default=True,
    help="A slow node nobody mentions for this long is forgotten.",
)
@log_level_option()
def command(
    socket_path: Path | None,
    listen: str,
    reconnect_delay: float,
    max_tracked_nodes: int,
    readiness_window: float,
    forget_after: float,
    log_level: str,
) -> None:
    """Count the lines of a remediation socket and serve them as metrics. Acts on nothing.

    \b
    Examples:
      straggler-sink
      straggler-sink --socket-path /run/ingero/ingero-remediate.sock --listen :9464
    """
    from ingero.agent.host.sockets import find_socket
    from ingero.cli.show.logs import set_up_logging
    from ingero.contract.straggler import SOCKET_NAME
    from ingero.sink import Sink, SinkSettings

    set_up_logging(log_level)
    settings = SinkSettings(
        socket_path=socket_path or find_socket(SOCKET_NAME),
        reconnect_delay_s=reconnect_delay,
        max_tracked_nodes=max_tracked_nodes,
        readiness_window_s=readiness_window,
        silence_s=forget_after,
    )
    asyncio.run(_serve(Sink(settings), listen))


async def _serve(sink: object, listen: str) -> None:
    import logging

    from ingero.sink import Sink, follow_socket, sink_app
    from ingero.transport.http import HttpListener
    from ingero.transport.listen import bind
    from ingero.transport.tls import is_loopback

    assert isinstance(sink, Sink)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    listener = HttpListener(sink_app(sink), bind(listen))
    await listener.start()
    log = logging.getLogger(__name__)
    log.info("sink_started", extra={"metrics": listener.address})
    if not is_loopback(listen):
        log.warning(
            "metrics_open",
            extra={"listen": listen, "reason": "anybody who reaches it can read them"},
        )
    try:
        await follow_socket(sink, stop)
    finally:
        await listener.stop()


def main() -> int:
    """The console script."""
    return run_click(command, sys.argv[1:], "straggler-sink")
