"""A limit on open connections below the one on open files, and a fair choice of which to close."""

import asyncio
import errno
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from ingero.transport.listen import plain_peer
from ingero.transport.rate_limit import address_group

_WITHOUT_LIMIT: Final = 1 << 20
HTTP_SHARE: Final = 0.5
GRPC_SHARE: Final = 0.375  # the rest is for files and for connections of our own
HANDSHAKE_S: Final = 10.0  # from connecting to the end of the TLS handshake, as of gRPC
BACKLOG: Final = 2048
FILES_AGAIN_S: Final = 1.0  # when no file is free, accept again after this time
_NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Abortable(Protocol):
    """A connection, encrypted or not."""

    def abort(self) -> None: ...


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
        self._by_address: dict[str, dict[Abortable, None]] = {}

    def enter(
        self, address: str | None, transport: Abortable, instead_of: Abortable | None = None
    ) -> None:
        """Note a new connection, or the next stage of one.

        Where there is no room for it, another one is closed.
        """
        if instead_of is not None:
            self._remove(address_group(address), instead_of)
        self._by_address.setdefault(address_group(address), {})[transport] = None
        self.open += 1
        if self.open > self.limit:
            group = max(self._by_address, key=lambda each: len(self._by_address[each]))
            oldest = next(iter(self._by_address[group]))
            self._remove(group, oldest)
            self.closed += 1
            oldest.abort()

    def leave(self, address: str | None, transport: Abortable) -> None:
        """Note that a connection is closed."""
        self._remove(address_group(address), transport)

    def _remove(self, group: str, transport: Abortable) -> None:
        transports = self._by_address.get(group, {})
        if transport in transports:
            del transports[transport]
            self.open -= 1
            if not transports:
                del self._by_address[group]


class TlsAcceptor:
    """Accepts connections and counts them before their TLS handshake, not after it.

    A server that leaves accepting to the event loop first hears of a connection after its
    handshake, so that connections that never finish theirs would hold files beyond every limit.
    """

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext, room: ConnectionRoom
    ) -> None:
        self._listener = listener
        self._context = context
        self._room = room
        self._handshakes: set[Handshake] = set()

    async def run(self, make: Callable[["Handshake"], asyncio.Protocol]) -> None:
        """Accept until cancelled; `make` returns the protocol of a connection."""
        loop = asyncio.get_running_loop()
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        try:
            while True:
                try:
                    connection, peer = await loop.sock_accept(self._listener)
                except OSError as error:  # the peer may be gone, or no file may be free
                    await asyncio.sleep(FILES_AGAIN_S if error.errno in _NO_FILES else 0)
                    continue
                handshake = Handshake(connection, plain_peer(peer[0]))
                self._handshakes.add(handshake)
                self._room.enter(handshake.address, handshake)
                loop.create_task(self._shake(handshake, make))  # noqa: RUF006 - the handshake holds it
        finally:
            for handshake in list(self._handshakes):
                handshake.abort()

    async def _shake(
        self, handshake: "Handshake", make: Callable[["Handshake"], asyncio.Protocol]
    ) -> None:
        handshake.task = asyncio.current_task()
        try:
            if handshake.is_aborted:
                raise ConnectionAbortedError
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: make(handshake),
                handshake.connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except OSError:  # of TLS and of time
            handshake.connection.close()
        except asyncio.CancelledError:
            handshake.connection.close()
            raise
        finally:
            self._room.leave(handshake.address, handshake)
            self._handshakes.discard(handshake)


class Handshake:
    """A connection that is not yet encrypted; `task` runs its handshake, once that has begun."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.connection = connection
        self.address = address
        self.is_aborted = False
        self.task: asyncio.Task[None] | None = None

    def abort(self) -> None:
        """Close the connection."""
        self.is_aborted = True
        if self.task is not None:
            self.task.cancel()
