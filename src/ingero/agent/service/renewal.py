"""When the agent renews the certificate that Fleet signed for this node."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from ingero.children.aio import start_helper
from ingero.children.process import module_command
from ingero.config.ingero import IngeroConfig

NOT_DUE, FAILED, RENEWED = 0, 1, 10  # exit status of what renews
CHECK_S: Final = 6 * 3600.0
FIRST_CHECK_S: Final = 5.0
RETRY_S: Final = 600.0
_ENTRY: Final = "ingero.cli.renew"
log = logging.getLogger(__name__)


def membership_folder(config: IngeroConfig) -> Path | None:
    """Return where `ingero join` keeps the certificate; None where this node has not joined."""
    token = config.fleet.token_file
    folder = token.parent if token is not None else None
    return folder if folder is not None and (folder / "joined.json").exists() else None


async def renew_forever(
    config: Callable[[], IngeroConfig], on_renewed: Callable[[], Awaitable[None]]
) -> None:
    """Renew the certificate in time, until cancelled."""
    pause_s = FIRST_CHECK_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = CHECK_S
        folder = membership_folder(config())
        if folder is None:
            continue
        process = await start_helper(module_command(_ENTRY, str(folder)))
        status = await process.wait()
        if status == RENEWED:
            log.info("certificate_renewed", extra={"folder": str(folder)})
            await on_renewed()
        elif status != NOT_DUE:
            log.warning("certificate_not_renewed", extra={"again_in_s": RETRY_S})
            pause_s = RETRY_S
