"""Causal chains of the trace database, sent to Fleet so that Echo knows why this node was slow."""

import asyncio
import logging
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ingero.contract.chain_otlp import ReportedChain, encode_chain_logs
from ingero.contract.types import Identity
from ingero.core.chains.reports import Finding, ReportBook
from ingero.core.health.modes import PushOutcome
from ingero.errors import IngeroError
from ingero.stopping import is_set_within
from ingero.storage.trace.chains import NEWEST_FIRST, read_chains
from ingero.storage.trace.reading import reading
from ingero.storage.trace.stacks import report_chain
from ingero.transport.otlp.client import LogsClient

INTERVAL_S: Final = 10.0
READ_S: Final = 5.0
SINCE_NS: Final = 3600 * 10**9  # a restart sends the last hour again; Echo knows what it has
MAX_READ: Final = 256
REFUSED_PAUSE_S: Final = 3600.0  # a Fleet that takes no logs is asked again after this
log = logging.getLogger(__name__)


@dataclass(slots=True)
class ChainCounters:
    """What became of the chains of this node."""

    sent: int = 0
    pushes: Counter[str] = field(default_factory=Counter)  # by outcome
    failed_reads: int = 0


class ChainReports:
    """Reads new chains every ten seconds and sends them."""

    def __init__(self, database: Path, client: LogsClient, identity: Identity) -> None:
        self.counters = ChainCounters()
        self._database, self._client, self._identity = database, client, identity
        self._book = ReportBook()
        self._not_before_s = 0.0
        self._problem = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Send now, every ten seconds until `stop`, and once more before the end."""
        await self.send(time.time_ns(), time.monotonic())
        while not stop.is_set():
            await is_set_within(stop, INTERVAL_S)
            await self.send(time.time_ns(), time.monotonic())

    async def send(self, now_ns: int, now_s: float) -> None:
        """Send what is new; whatever was not accepted is tried again the next time."""
        if now_s < self._not_before_s or not self._database.exists():
            return
        try:
            due, reported = await asyncio.to_thread(self._read, now_ns, now_s)
        except (IngeroError, sqlite3.Error) as error:
            self.counters.failed_reads += 1
            self._warn("chains_not_read", str(error))
            return
        if not due:
            return
        request = encode_chain_logs(self._identity.cluster, self._identity.node, reported)
        reply = await self._client.push_logs(request)
        self.counters.pushes[reply.outcome.value] += 1
        if reply.outcome is PushOutcome.OK:
            self._problem = ""
            self.counters.sent += len(due)
            self._book.sent(due, now_s)
            return
        refused = reply.outcome in (PushOutcome.REFUSED, PushOutcome.AUTH)
        self._not_before_s = now_s + (reply.retry_after_s or (REFUSED_PAUSE_S if refused else 0.0))
        self._warn("chains_not_sent", f"{reply.outcome.value}: {reply.detail}")

    def _read(self, now_ns: int, now_s: float) -> tuple[list[Finding], list[ReportedChain]]:
        with reading(self._database, READ_S) as connection:
            found = {
                chain.id: chain
                for chain in read_chains(
                    connection, now_ns - SINCE_NS, limit=MAX_READ, order=NEWEST_FIRST
                )
            }
            findings = [
                Finding(chain.id, chain.detected_at_ns, chain.chain.severity)
                for chain in found.values()
            ]
            due = self._book.due(findings, now_s)
            return due, [report_chain(connection, found[finding.id]) for finding in due]

    def _warn(self, event: str, problem: str) -> None:
        """Log a problem once, until it changes."""
        if problem != self._problem:
            log.warning(event, extra={"detail": problem[:200]})
        self._problem = problem
