"""The audit trail: one structured log line and one row per question, with digests of tokens.

Requests without a valid token share one line and one row per address and minute, so that strangers
cannot fill the log. Texts that a client chooses are cut.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from ingero.echo.store.api import StoreApi
from ingero.errors import IngeroError
from ingero.stopping import end_tasks

log = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
FLUSH_EVERY_S: Final = 1.0
FLUSH_ROWS: Final = 1_000
MAX_ADDRESSES: Final = 1_000  # per minute; further addresses share one row
OTHER_ADDRESSES: Final = "others"
LONGEST_TEXT: Final = 256
MAX_CLUSTERS: Final = 64


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
    address: str = ""
    began_s: float = field(default_factory=time.perf_counter)


class AuditTrail:
    """Collects entries and stores them once a second.

    The number waiting is bounded; entries that do not fit are counted.
    """

    def __init__(self, store: StoreApi) -> None:
        self._store = store
        self._waiting: deque[list[Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._minute = 0
        self._refused: Counter[tuple[str, str]] = Counter()  # by address and transport
        self.dropped = 0
        self.written = 0

    def add(self, entry: Entry) -> None:
        """Log the entry now and queue it for the store."""
        if entry.status == HTTPStatus.UNAUTHORIZED and not entry.token_digest:
            self._add_refused(entry, int(time.time()) // 60)
            return
        took_ms = round((time.perf_counter() - entry.began_s) * 1e3, 3)
        log.info(
            "audit",
            extra={
                "request_id": entry.request_id,
                "token_sha256_12": entry.token_digest,
                "bearer_key_name": entry.key_name,
                "transport": entry.transport,
                "tool": _cut(entry.tool),
                "clusters": _cut(",".join(entry.clusters)),
                "status": entry.status,
                "rows": entry.rows,
                "ms": took_ms,
            },
        )
        at = datetime.now(UTC).replace(tzinfo=None).isoformat(sep=" ")
        who = [_cut(entry.request_id), entry.token_digest, entry.key_name or None, entry.transport]
        clusters = [_cut(cluster) for cluster in entry.clusters[:MAX_CLUSTERS]]
        answer = [entry.status, entry.rows, took_ms]
        self._queue([at, *who, _cut(entry.tool), clusters, *answer, None, 1])

    def _add_refused(self, entry: Entry, minute: int) -> None:
        """Count a request without a valid token; the first of a minute is logged."""
        if minute != self._minute:
            self._end_minute()
            self._minute = minute
        key = (entry.address, entry.transport)
        if key not in self._refused and len(self._refused) >= MAX_ADDRESSES:
            key = (OTHER_ADDRESSES, entry.transport)
        if key not in self._refused:
            where = {"address": key[0], "transport": key[1], "tool": _cut(entry.tool)}
            log.info("audit", extra={**where, "status": entry.status})
        self._refused[key] += 1

    def _end_minute(self) -> None:
        """Queue one row per address that was refused in the minute that is over."""
        at = datetime.fromtimestamp(self._minute * 60, UTC).replace(tzinfo=None).isoformat(sep=" ")
        for (address, transport), requests in self._refused.items():
            who = ["", "", None, transport]
            answer = ["", [], int(HTTPStatus.UNAUTHORIZED), None, None]
            self._queue([at, *who, *answer, _cut(address), requests])
        self._refused.clear()

    def _queue(self, row: list[Any]) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        self._waiting.append(row)

    def start(self) -> None:
        """Start the writing task in the running loop."""
        self._task = asyncio.create_task(self._run(), name="audit")

    async def stop(self) -> None:
        """Write the waiting entries, if the store accepts them."""
        if self._task is not None:
            await end_tasks([self._task])
        self._end_minute()
        await self._flush()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            if int(time.time()) // 60 != self._minute:
                self._end_minute()
            await self._flush()

    async def _flush(self) -> None:
        while self._waiting:
            rows = [self._waiting.popleft() for _ in range(min(FLUSH_ROWS, len(self._waiting)))]
            try:
                await self._store.audit(rows)
            except (IngeroError, asyncio.CancelledError) as error:
                # the store is being replaced: keep the rows
                self._waiting.extendleft(reversed(rows))
                if isinstance(error, asyncio.CancelledError):
                    raise
                return
            except Exception:  # rows that fail must not stop all later ones
                self.dropped += len(rows)
                log.exception("audit_failed")
                continue
            self.written += len(rows)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
