"""The health of an agent: which parts run, served as HTTP on a Unix socket of this machine."""

import asyncio
import contextlib
import http.client
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from ingero.contract.api_paths import HEALTHZ, PROMETHEUS, READYZ
from ingero.contract.exposition import CONTENT_TYPE
from ingero.contract.names import JSON_TYPE
from ingero.errors import Unavailable
from ingero.transport.bounded import read_response_body
from ingero.transport.connect import plain_reason
from ingero.transport.local.listener import open_listener

SOCKET_NAME: Final = "agent.sock"
TIMEOUT_S: Final = 5.0
MAX_REPLY_BYTES: Final = 16 << 20
_MAX_HEAD_BYTES: Final = 8192


class PartHealth(msgspec.Struct):
    """One part: `off`, `starting`, `running` or `waiting` for its next start."""

    name: str
    state: str
    restarts: int = 0
    pid: int | None = None
    why: str = ""  # why it is off, or how it ended last
    notes: list[str] = []
    addresses: dict[str, str] = {}


class AgentHealth(msgspec.Struct):
    """The whole agent; it is healthy while every part that is not off runs."""

    healthy: bool
    ready: bool
    node: str
    version: str
    pid: int
    database: str
    parts: list[PartHealth]
    addresses: dict[str, str] = {}


class HealthServer:
    """Answers `/healthz`, `/readyz` and `/metrics` to root and the user of the agent."""

    def __init__(
        self, path: Path, health: Callable[[], AgentHealth], metrics: Callable[[], bytes]
    ) -> None:
        self.path = path
        self._health, self._metrics = health, metrics
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Bind the socket; raise Unavailable where another agent serves it."""
        listener = open_listener(self.path, -1)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=_MAX_HEAD_BYTES
        )

    async def close(self) -> None:
        """Stop serving and remove the socket."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(OSError):
                self.path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except TimeoutError:
            writer.transport.abort()  # closing would wait for a client that reads nothing
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that asks nothing is not answered
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        path = (head.split(b" ", 2)[1:2] or [b""])[0].decode("latin-1").partition("?")[0]
        if path == PROMETHEUS:
            return _reply(200, CONTENT_TYPE, self._metrics())
        health = self._health()
        if path == HEALTHZ:
            return _reply(200 if health.healthy else 503, JSON_TYPE, msgspec.json.encode(health))
        if path == READYZ:
            return _reply(200 if health.ready else 503, JSON_TYPE, msgspec.json.encode(health))
        return _reply(404, "text/plain", b"not found\n")


def _reply(status: int, kind: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {http.client.responses[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


def ask_agent(path: Path, question: str = HEALTHZ) -> tuple[int, bytes]:
    """Return status and body of an agent's answer; raise Unavailable if no agent answers."""
    connection = _UnixConnection(path)
    try:
        connection.request("GET", question)
        reply = connection.getresponse()
        return reply.status, read_response_body(reply, MAX_REPLY_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"no agent answers on {path}: {plain_reason(error)}; start it with `ingero agent`"
        ) from None
    finally:
        connection.close()


def agent_health(path: Path) -> AgentHealth:
    """Return the health of the agent that serves `path`; raise Unavailable."""
    _, body = ask_agent(path)
    try:
        return msgspec.json.decode(body, type=AgentHealth)
    except msgspec.DecodeError:
        raise Unavailable(f"{path} answers, but not like an agent") from None
