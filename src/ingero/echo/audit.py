"""The audit trail: one structured log line and one row per question, with digests of tokens."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from ingero.echo.store.api import StoreApi
from ingero.errors import IngeroError

log = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
FLUSH_EVERY_S: Final = 1.0
FLUSH_ROWS: Final = 1_000


@dataclass(slots=True)
class Entry:
    """One request; its fields are filled in while it is handled."""

    request_id: str
    token_digest: str = ""
    key_name: str = ""
    transport: str = "http"
    tool: str = ""
    clusters: list[str] = field(default_factory=list)
    status: int = 0
    rows: int | None = None
    began_s: float = field(default_factory=time.perf_counter)


class AuditTrail:
    """Collects entries and stores them once a second.

    The number waiting is bounded; entries that do not fit are counted.
    """

    def __init__(self, store: StoreApi) -> None:
        self._store = store
        self._waiting: deque[list[Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0
        self.written = 0

    def add(self, entry: Entry) -> None:
        """Log the entry now and queue it for the store."""
        took_ms = round((time.perf_counter() - entry.began_s) * 1e3, 3)
        log.info(
            "audit",
            extra={
                "request_id": entry.request_id,
                "token_sha256_12": entry.token_digest,
                "bearer_key_name": entry.key_name,
                "transport": entry.transport,
                "tool": entry.tool,
                "clusters": ",".join(entry.clusters),
                "status": entry.status,
                "rows": entry.rows,
                "ms": took_ms,
            },
        )
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        at = datetime.now(UTC).replace(tzinfo=None).isoformat(sep=" ")
        who = [entry.request_id, entry.token_digest, entry.key_name or None, entry.transport]
        self._waiting.append(
            [at, *who, entry.tool, entry.clusters, entry.status, entry.rows, took_ms]
        )

    def start(self) -> None:
        """Start the writing task in the running loop."""
        self._task = asyncio.create_task(self._run(), name="audit")

    async def stop(self) -> None:
        """Write the waiting entries, if the store accepts them."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._flush()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            await self._flush()

    async def _flush(self) -> None:
        while self._waiting:
            rows = [self._waiting.popleft() for _ in range(min(FLUSH_ROWS, len(self._waiting)))]
            try:
                await self._store.audit(rows)
            except (
                IngeroError,
                asyncio.CancelledError,
            ) as error:  # the store is being replaced: keep the rows
                self._waiting.extendleft(reversed(rows))
                if isinstance(error, asyncio.CancelledError):
                    raise
                return
            self.written += len(rows)
