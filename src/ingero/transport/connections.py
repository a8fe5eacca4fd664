"""A limit on open connections below the one on open files, and a fair choice of which to close."""

import asyncio
import resource
from typing import Final

from ingero.transport.rate_limit import address_group

_WITHOUT_LIMIT: Final = 1 << 20
HTTP_SHARE: Final = 0.5
GRPC_SHARE: Final = 0.375  # the rest is for files and for connections of our own


def share_of_files(share: float) -> int:
    """Return a share of the files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _WITHOUT_LIMIT if soft == resource.RLIM_INFINITY else soft
    return max(int(files * share), 16)


class ConnectionRoom:
    """The open HTTP connections of a service, by address; its listeners share one.

    Beyond the limit, the address with the most connections loses the one that was opened first. So
    somebody who opens connections without end closes only their own. `closed` counts these.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit or share_of_files(HTTP_SHARE)
        self.closed = 0
        self.open = 0
        self._by_address: dict[str, dict[asyncio.Transport, None]] = {}

    def enter(self, address: str | None, transport: asyncio.Transport) -> None:
        """Note a new connection; close another one where there is no room for it."""
        self._by_address.setdefault(address_group(address), {})[transport] = None
        self.open += 1
        if self.open > self.limit:
            group = max(self._by_address, key=lambda each: len(self._by_address[each]))
            oldest = next(iter(self._by_address[group]))
            self._remove(group, oldest)
            self.closed += 1
            oldest.abort()

    def leave(self, address: str | None, transport: asyncio.Transport) -> None:
        """Note that a connection is closed."""
        self._remove(address_group(address), transport)

    def _remove(self, group: str, transport: asyncio.Transport) -> None:
        transports = self._by_address.get(group, {})
        if transport in transports:
            del transports[transport]
            self.open -= 1
            if not transports:
                del self._by_address[group]
