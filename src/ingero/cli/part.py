"""A part of `ingero agent`, run by its supervisor: `python -m ingero.cli.part LINK ORDER`."""

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from ingero.agent.service.link import PartLink
from ingero.agent.service.plan import API, PUSHER, RECORDER, Order, pusher_settings
from ingero.cli.show.logs import set_up_logging
from ingero.config.ingero import IngeroConfig, load_ingero
from ingero.errors import IngeroError


def main() -> int:
    """Run the part that the order names; an error is one line in the log."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the part handles it
    link, order = PartLink(int(sys.argv[1])), msgspec.json.decode(sys.argv[2], type=Order)
    try:
        _run(order, link)
    except (IngeroError, OSError) as error:
        print(f"ingero agent: {order.part}: {error}", file=sys.stderr)
        return 1
    return 0


def _run(order: Order, link: PartLink) -> None:
    def read() -> IngeroConfig:
        return load_ingero(Path(order.config) if order.config else None)

    config, database = read(), Path(order.database)
    set_up_logging(config.agent.log_level)
    if order.part == RECORDER:
        from ingero.agent.service.recorder import run_recorder

        run_recorder(config, database, link)
    elif order.part == PUSHER:
        import asyncio

        from ingero.agent.service.pusher import run_pusher

        settings, beside = pusher_settings(config, order), order.is_beside_recorder
        reread = partial(_reread_pusher, read, order)
        asyncio.run(run_pusher(settings, reread, link, is_beside_recorder=beside))
    elif order.part == API:
        import asyncio

        from ingero.agent.service.node_api import run_api

        asyncio.run(run_api(config, database, link))


def _reread_pusher(read: Callable[[], IngeroConfig], order: Order) -> IngeroConfig:
    return pusher_settings(read(), order)


if __name__ == "__main__":
    sys.exit(main())
