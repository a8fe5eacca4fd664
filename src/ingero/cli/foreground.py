"""Run a service in the foreground: event loop, log, and the line with its addresses."""

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import click

from ingero.children.service_manager import (
    READY,
    STOPPING,
    feed_watchdog,
    tell_manager,
)
from ingero.cli.event_loop import new_event_loop
from ingero.cli.show.logs import set_up_logging


class Started(Protocol):
    """A service that listens."""

    addresses: dict[str, str]


def run_service(
    name: str,
    serve: Callable[[Callable[[Started], None]], Awaitable[None]],
    *,
    as_json: bool,
    log_level: str,
) -> int:
    """Run `serve` until it ends; `serve` calls its argument once its listeners are open."""

    def announce(service: Started) -> None:
        if as_json:
            click.echo(json.dumps({"addresses": service.addresses}))
        else:
            where = "  ".join(
                f"{listener} {address}" for listener, address in service.addresses.items()
            )
            click.echo(f"{name} is up: {where}")
        tell_manager(READY)

    async def whole() -> None:
        alive = asyncio.create_task(feed_watchdog())
        try:
            await serve(announce)
        finally:
            alive.cancel()
            tell_manager(STOPPING)

    set_up_logging(log_level)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(whole())
    return 0


def run_stdio(server: Any) -> int:
    """Serve MCP on standard input and output until the client closes it.

    Ctrl-C ends the process at once: the SDK reads in a thread that no exception reaches, and there
    is nothing to save.
    """
    from ingero.transport.tools.mcp import serve_stdio

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.stdin.isatty():
        click.echo(
            "serving MCP on standard input and output, for an AI assistant; Ctrl-C ends it",
            err=True,
        )
    asyncio.run(serve_stdio(server))
    return 0
