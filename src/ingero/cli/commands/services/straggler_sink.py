"""`straggler-sink`: read an agent's remediation socket and serve its stragglers as metrics."""

import asyncio
import logging
import sys
from typing import Any

import click

from ingero.agent.host.sockets import find_socket
from ingero.cli.dispatch import run_click
from ingero.cli.settings import LOG_LEVEL, options_of
from ingero.cli.show.logs import set_up_logging
from ingero.config.merge import merged
from ingero.contract.straggler import SOCKET_NAME
from ingero.sink import Sink, SinkSettings, follow_socket, sink_app
from ingero.stopping import stop_on_signals
from ingero.transport.file_limit import raise_file_limit
from ingero.transport.http import HttpListener
from ingero.transport.listen import bind
from ingero.transport.tls import is_loopback

log = logging.getLogger(__name__)


@click.command()
@options_of(SinkSettings)
@click.option(
    "--listen",
    default="127.0.0.1:9464",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the metrics, /healthz and /readyz; `:PORT` is every address.",
)
@LOG_LEVEL
def command(listen: str, log_level: str, **flags: Any) -> None:
    """Count the messages of a remediation socket and serve them as metrics.

    The socket is the one that `ingero fleet-push --remediate` opens. The sink only observes: it
    takes no action on a node. A slow node that is not reported for the time of --forget-after is
    removed from the metrics.

    \b
    Examples:
      straggler-sink
      straggler-sink --socket-path /run/ingero/ingero-remediate.sock --listen :9464
    """
    set_up_logging(log_level)
    flags["socket_path"] = flags["socket_path"] or find_socket(SOCKET_NAME)
    asyncio.run(_serve(Sink(merged(SinkSettings, None, {}, flags)), listen))


async def _serve(sink: Sink, listen: str) -> None:
    raise_file_limit()
    stop = stop_on_signals()
    listener = HttpListener(sink_app(sink), bind(listen))
    await listener.start()
    log.info("sink_started", extra={"metrics": listener.address})
    if not is_loopback(listen):
        reason = "everybody who can reach this address can read the metrics"
        log.warning("metrics_open", extra={"listen": listen, "reason": reason})
    try:
        await follow_socket(sink, stop)
    finally:
        await listener.stop()


def main() -> int:
    """Run the console script."""
    return run_click(command, sys.argv[1:], "straggler-sink")
