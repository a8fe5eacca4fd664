"""Sends the collectives of the trace database over OTLP, as they are recorded: entry, exit and GPU time of each.

The recorder and the push loop are two processes that meet in one file. Rows are followed by their number; what Fleet
cannot take in time is skipped and counted, never piled up.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from ingero.contract.collective import CollectiveRecord
from ingero.contract.collective_otlp import encode_batches
from ingero.contract.otlp import MetricsRequest
from ingero.contract.types import Identity
from ingero.core.modes import PushOutcome
from ingero.errors import IngeroError
from ingero.storage.collective_table import follow_collectives
from ingero.transport.otlp_client import PushReply

MAX_ROWS_PER_ROUND: Final = 10_000
MAX_BEHIND: Final = 100_000  # rows: older ones are of no use to a verdict about now


class Client(Protocol):
    """What a push client of either protocol does."""

    async def push(self, request: MetricsRequest) -> PushReply: ...


@dataclass(slots=True)
class ExportCounters:
    """What became of the rows."""

    sent: int = 0
    skipped: int = 0  # too far behind
    rejected: int = 0
    failed_rounds: Counter[str] = field(default_factory=Counter)


class CollectiveExporter:
    """One round per interval: new rows, in requests of bounded size, in order."""

    def __init__(self, path: Path, client: Client, identity: Identity, interval_s: float) -> None:
        self.counters = ExportCounters()
        self._path, self._client, self._identity, self._interval_s = path, client, identity, interval_s
        self._after: int | None = None  # None: begin with what comes next
        self._not_before_s = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped; a database that is not there yet is waited for."""
        while not stop.is_set():
            if time.monotonic() >= self._not_before_s:
                await self.round()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._interval_s)

    async def round(self) -> int:
        """Send what is new; returns how many rows were taken."""
        try:
            newest, rows = await asyncio.to_thread(
                follow_collectives, self._path, self._after, MAX_ROWS_PER_ROUND, MAX_BEHIND
            )
        except (IngeroError, sqlite3.Error):
            self.counters.failed_rounds["database"] += 1
            return 0
        if self._after is None:
            self._after = newest
            return 0
        if newest < self._after:  # the file was moved aside or pruned: numbers began anew
            self._after = 0
            return 0
        if rows:
            self.counters.skipped += max(rows[0][0] - self._after - 1, 0)
        return await self._send(rows)

    async def _send(self, rows: list[tuple[int, CollectiveRecord]]) -> int:
        records = [record for _, record in rows]
        taken = 0
        for request, points in encode_batches(records, self._identity.cluster, self._identity.node):
            reply = await self._client.push(request)
            if reply.outcome is not PushOutcome.OK:
                self.counters.failed_rounds[str(reply.outcome)] += 1
                if reply.retry_after_s:
                    self._not_before_s = time.monotonic() + min(reply.retry_after_s, 300.0)
                break
            self.counters.sent += points - reply.rejected_points
            self.counters.rejected += reply.rejected_points
            taken += points
            self._after = rows[taken - 1][0]
        return taken
