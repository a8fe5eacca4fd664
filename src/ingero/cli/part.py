"""A part of `ingero agent`, in a copy of the process that supervises it.

Everything that any part needs is imported here, once, and shared by all of them.
"""

import asyncio
import signal
import sys
from functools import partial
from pathlib import Path

from ingero.agent.service.link import PartLink
from ingero.agent.service.node_api import run_api
from ingero.agent.service.plan import API, PUSHER, RECORDER, Order, pusher_settings
from ingero.agent.service.pusher import run_pusher
from ingero.agent.service.recorder import run_recorder
from ingero.cli.show.logs import set_up_logging
from ingero.config.ingero import IngeroConfig, load_ingero
from ingero.errors import IngeroError


def run_part(order: Order, link: int) -> int:
    """Run the part that the order names; an error is one line in the log."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the part handles it
    try:
        _run(order, PartLink(link))
    except (IngeroError, OSError) as error:
        print(f"ingero agent: {order.part}: {error}", file=sys.stderr)
        return 1
    return 0


def _read(order: Order) -> IngeroConfig:
    return load_ingero(Path(order.config) if order.config else None)


def _read_pusher(order: Order) -> IngeroConfig:
    return pusher_settings(_read(order), order)


def _run(order: Order, link: PartLink) -> None:
    config, database = _read(order), Path(order.database)
    set_up_logging(config.agent.log_level)
    if order.part == RECORDER:
        run_recorder(config, database, link)
    elif order.part == PUSHER:
        settings, beside = pusher_settings(config, order), order.is_beside_recorder
        reread = partial(_read_pusher, order)
        asyncio.run(run_pusher(settings, reread, link, is_beside_recorder=beside))
    elif order.part == API:
        asyncio.run(run_api(config, database, link))
