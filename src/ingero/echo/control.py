"""The operator's socket beside the database, through which commands ask the running Echo.

Each connection carries one JSON object in each direction. Only the owner of the database may open
the socket.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
from pathlib import Path
from typing import Any, Final

from ingero.echo.engine import Engine
from ingero.errors import IngeroError, StoreError

log = logging.getLogger(__name__)

MAX_LINE_BYTES: Final = 64 * 1024
MAX_ANSWER_BYTES: Final = 16 << 20
WAIT_S: Final = 60.0


def control_path(database: Path) -> Path:
    """Return the path of the socket."""
    return database.with_name(database.name + ".sock")


class Control:
    """Serves the socket while Echo runs."""

    def __init__(self, engine: Engine, database: Path) -> None:
        self._engine = engine
        self._path = control_path(database)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        # left by a process that was killed; this one holds the lock of the database
        self._path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._serve, self._path, limit=MAX_LINE_BYTES
            )
        except (
            OSError
            # the path is over 107 bytes; Echo serves anyway, and only a backup needs it stopped
        ) as error:
            log.warning("no_control_socket", extra={"path": str(self._path), "reason": str(error)})
        finally:
            os.umask(mask)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            answer = await self._answer(request)
        except (IngeroError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            answer = {"error": str(error) or type(error).__name__}
        with contextlib.suppress(ConnectionError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "quarantine":
            return {
                "requests": await self._engine.store.quarantine(request["what"], request["ids"])
            }
        if request["do"] != "backup":
            raise StoreError(f"unknown request {request['do']!r}")
        durable = self._engine.ingest.durable_seq
        # the copy then holds everything acknowledged so far
        await self._engine.store.wait_applied(durable, WAIT_S)
        return {"applied_seq": await self._engine.store.backup(request["path"])}


def ask_running(database: Path, request: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
    """Ask the Echo that runs on `database`; None if none runs. A refusal raises StoreError."""
    path = control_path(database)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
        except OSError as error:
            if isinstance(error, FileNotFoundError | ConnectionRefusedError) or not error.errno:
                # nobody listens; an error without a number means that the path is too long for a
                # socket
                return None
            raise StoreError(
                f"cannot reach the Echo that listens on {path}: {error.strerror}; run this as its "
                "user"
            ) from None
        try:
            with connection.makefile("rwb") as stream:
                stream.write(json.dumps(request).encode() + b"\n")
                stream.flush()
                line = stream.readline(MAX_ANSWER_BYTES)
        except OSError as error:
            reason = (
                f"no answer within {timeout_s:g} s"
                if isinstance(error, TimeoutError)
                else error.strerror
            )
            raise StoreError(
                f"the Echo that listens on {path}: {reason}; its log has details"
            ) from None
    answer = _decode(line) if line else {"error": "Echo stopped before it answered"}
    if answer is None:
        raise StoreError(f"what listens on {path} does not answer like an Echo")
    if "error" in answer:
        raise StoreError(answer["error"])
    return answer


def _decode(line: bytes) -> dict[str, Any] | None:
    """Return an answer; None where another program beside the database sent something else."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None
