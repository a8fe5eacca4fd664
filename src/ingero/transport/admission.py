"""A limit on what is received at once, in all and from one address: connections and bodies.

Bytes count when they arrive, not when they are declared, so that a declared length holds nothing.
An application that checks the token before it reads the body holds nothing for strangers either.
"""

from collections import defaultdict
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingero.transport.connections import ConnectionRoom
from ingero.transport.rate_limit import address_group

MAX_RECEIVING_BYTES: Final = 256 * 1024 * 1024
ADDRESS_SHARE: Final = 4  # one address may hold a quarter
RETRY_AFTER_S: Final = 2


class Admission:
    """Counts the bodies that requests hold until they are answered; listeners may share one.

    Where there is no room, the oldest unfinished body of the address that holds most is refused, so
    that senders who stop half way cannot keep others out.
    """

    def __init__(self, limit_bytes: int = MAX_RECEIVING_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._by_address: defaultdict[str, int] = defaultdict(int)
        self._unfinished: dict[str, dict[_Exchange, None]] = {}
        self.receiving_bytes = 0
        self.refused = 0
        self.connections = ConnectionRoom()

    def has_room(self, address: str, size: int) -> bool:
        """Return whether a body from this address may hold `size` more bytes."""
        return self.receiving_bytes + size <= self._limit_bytes and not self._is_over(address, size)

    def hold(self, address: str, size: int) -> None:
        """Count bytes that arrived; a negative size releases them."""
        self.receiving_bytes += size
        self._by_address[address] += size
        if not self._by_address[address]:
            del self._by_address[address]

    def begin(self, exchange: "_Exchange") -> None:
        """Note a body that has begun to arrive."""
        self._unfinished.setdefault(exchange.address, {})[exchange] = None

    def end(self, exchange: "_Exchange") -> None:
        """Note that a body is complete, or given up."""
        bodies = self._unfinished.get(exchange.address)
        if bodies is not None and exchange in bodies:
            del bodies[exchange]
            if not bodies:
                del self._unfinished[exchange.address]

    async def make_room(self, exchange: "_Exchange", size: int) -> bool:
        """Refuse older unfinished bodies until there is room; False if that is not enough."""
        while not self.has_room(exchange.address, size):
            victim = self._oldest(exchange, size)
            if victim is None:
                return False
            await victim.refuse()
        return True

    def _is_over(self, address: str, size: int) -> bool:
        held = self._by_address.get(address, 0)
        return held + size > self._limit_bytes // ADDRESS_SHARE

    def _oldest(self, exchange: "_Exchange", size: int) -> "_Exchange | None":
        if self._is_over(exchange.address, size):
            address = exchange.address
        else:
            address = max(self._unfinished, key=self._by_address.__getitem__, default="")
        bodies = self._unfinished.get(address, ())
        return next((body for body in bodies if body is not exchange), None)


class AdmittedApp:
    """An ASGI application whose requests hold bodies only within the limit of an `Admission`."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = _Exchange(scope, receive, send, self._admission)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:  # nobody is left to answer
            pass
        finally:
            exchange.release()


class _Exchange:
    """One request with its reply."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, admission: Admission) -> None:
        client = scope.get("client")
        self.address = address_group(client[0] if client else None)
        self._declared = _declared(scope)
        self._receive = receive
        self._send = send
        self._admission = admission
        self._held = 0
        self._is_refused = False
        self._has_answered = False

    async def receive(self) -> Message:
        """Receive a part of the body, or refuse the request where there is no room for it."""
        declared, self._declared = self._declared, 0
        if declared and not await self._admission.make_room(self, declared):
            await self.refuse()
        message: Message = {} if self._is_refused else await self._receive()
        size = len(message.get("body", b""))
        if size and not self._is_refused and not await self._admission.make_room(self, size):
            await self.refuse()
        if self._is_refused:
            return {"type": "http.disconnect"}
        if size:
            self._admission.hold(self.address, size)
            self._held += size
        if message.get("more_body"):
            self._admission.begin(self)
        else:
            self._admission.end(self)
        return message

    async def send(self, message: Message) -> None:
        """Send the reply of the application, unless the request was refused meanwhile."""
        if not self._is_refused:
            self._has_answered = True
            await self._send(message)

    def release(self) -> None:
        """Give back what the request held."""
        self._admission.end(self)
        if self._held:
            self._admission.hold(self.address, -self._held)
            self._held = 0

    async def refuse(self) -> None:
        """Answer with status 429 and drop what has arrived."""
        self._is_refused = True
        self._admission.refused += 1
        self.release()
        if not self._has_answered:
            await _send_refusal(self._send)


def _declared(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


async def _send_refusal(send: Send) -> None:
    body = b"too much is being received at once; send it again\n"
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", str(RETRY_AFTER_S).encode()),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})
