"""The state that all replicas share: entries of the log are applied to it, in their order.

Only the task that follows the log changes it. Two replicas that applied the same entries have the
same state, down to the last bit.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingero.contract.measurements.own_time_columns import decode_own_time_columns
from ingero.contract.otlp.codec import decode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.decode import STATES, problem_with_id
from ingero.contract.replicas import entries
from ingero.contract.replicas.rows import Packed, name_check, unpack_rows
from ingero.contract.threshold import encode_answer
from ingero.contract.verdict import encode_one
from ingero.core.replicas.agreement import Agreement
from ingero.errors import ConfigError, MalformedInput, TooLarge
from ingero.fleet.processor import Cluster, FleetProcessor
from ingero.fleet.roster import REORDER_NS, Roster

if TYPE_CHECKING:
    from ingero.fleet.judgement import Judgement

SLICE_S: Final = 0.001  # pushes wait no longer than this for entries that are applied
MAX_AUTHORS: Final = 256
MAX_OWED: Final = 1000
log = logging.getLogger(__name__)


class SharedState:
    """Rosters, thresholds and verdicts as the log made them; `on_tick` advances them."""

    def __init__(
        self,
        processor: FleetProcessor,
        judgement: "Judgement",
        agreement: Agreement,
        on_tick: Callable[[float], None],
    ) -> None:
        self.processor, self.judgement, self.agreement = processor, judgement, agreement
        self._on_tick = on_tick
        self.owed: dict[int, bytes] = {}  # verdict records that nobody has sent, by their tick
        self.at_s = 0.0  # time of the last entry
        self.ticked_s = 0.0  # time of the last tick
        self.kept_s = 0.0  # time at which the last snapshot was announced
        self.malformed = self.dropped_records = 0
        self.digests: dict[int, bytes] = {}  # of ticks that no replica was told about yet
        self.checks: dict[str, NDArray[np.uint32]] = {}  # `name_check` of each row
        self.batches: dict[str, int] = {}  # the last batch of each replica

    def checks_of(self, cluster: str) -> NDArray[np.uint32]:
        """Return the checks of a cluster's rows, as many as its roster has."""
        found = self.processor.clusters.get(cluster)
        size = 0 if found is None else len(found.roster.reports)
        known = self.checks.get(cluster)
        if known is None or len(known) != size:
            grown = np.zeros(size, np.uint32)
            if known is not None:
                grown[: min(len(known), size)] = known[:size]
            known = self.checks[cluster] = grown
        return known

    async def apply(self, body: bytes, at_s: float) -> entries.Entry | None:
        """Apply one entry, with pauses in long ones; an unreadable one is counted and skipped."""
        self.at_s = at_s
        try:
            entry = entries.decode_entry(body)
            if isinstance(entry, entries.Measured):
                if self._is_first(entry):
                    await self._measure(entry, at_s)
            else:
                self._apply(entry, at_s)
        except (MalformedInput, TooLarge, ConfigError, ValueError) as error:
            self.malformed += 1
            log.warning("log_entry_skipped", extra={"why": str(error)})
            return None
        return entry

    def _is_first(self, entry: entries.Measured) -> bool:
        """Tell whether measurements are new."""
        if entry.batch <= self.batches.get(entry.author, 0):
            return False
        self.batches.pop(entry.author, None)
        self.batches[entry.author] = entry.batch
        while len(self.batches) > MAX_AUTHORS:
            del self.batches[next(iter(self.batches))]
        return True

    def _apply(self, entry: entries.Entry, at_s: float) -> None:
        match entry:
            case entries.Rows():
                self._take_rows(entry, at_s)
            case entries.Tick():
                self._tick(at_s)
            case entries.Here():
                self.agreement.hear(
                    entry.author, entry.rules, entry.is_ready, entry.digests, at_s, entry.process
                )
            case entries.SilenceBegun():
                self.judgement.verdicts.silences.take(entry.silence, at_s)
            case entries.SilenceLifted():
                self.judgement.verdicts.silences.lift(entry.lifted)
            case entries.LimitsSet():
                limits = {
                    k: v for k, v in msgspec.structs.asdict(entry.limits).items() if v is not None
                }
                self.processor.set_limits(replace(self.processor.policy, **limits))
            case entries.Said():
                for tick_ms in entry.records_ms:
                    self.owed.pop(tick_ms, None)
                if self.judgement.alerts is not None:
                    self.judgement.alerts.delivered_elsewhere(entry.alerts, at_s)
            case entries.Kept():
                self.kept_s = at_s

    async def _measure(self, entry: entries.Measured, at_s: float) -> None:
        """Take the measurements of an entry; one that cannot be read is skipped alone."""
        until_s = time.perf_counter() + SLICE_S
        for cluster, body in entries.unpack_bodies(entry.packed):
            if problem_with_id(cluster):
                self.malformed += 1
                continue
            try:
                columns = decode_own_time_columns(body)
                if columns is not None:
                    self.judgement.take_own_times(columns, body, cluster, at_s)
                else:
                    request = decode_protobuf(MetricsRequest, body)
                    self.judgement.take(request, cluster, at_s)
            except (MalformedInput, TooLarge) as error:
                self.malformed += 1
                log.warning("log_entry_skipped", extra={"why": str(error)})
            if time.perf_counter() > until_s:
                await asyncio.sleep(0)
                until_s = time.perf_counter() + SLICE_S

    def _take_rows(self, entry: entries.Rows, at_s: float) -> None:
        if problem_with_id(entry.cluster):
            raise MalformedInput("a cluster of the log has no valid name")
        packed = unpack_rows(entry.packed)
        for named in entry.named:
            self._take_named(entry.cluster, named, at_s)
        cluster = self.processor.clusters.get(entry.cluster)
        if cluster is not None and len(packed):
            checks = self.checks_of(entry.cluster)
            inside = packed["row"] < len(checks)
            packed = packed[inside]
            packed = packed[checks[packed["row"]] == packed["check"]]
            _put_rows(cluster.roster, packed, at_s)

    def _take_named(self, name: str, named: entries.Named, at_s: float) -> None:
        report = named.report
        if problem_with_id(report.node) or not 0 <= named.age_ms <= 65_535:
            raise MalformedInput("a node of the log has no valid name or age")
        if report.score is not None and not (0.0 <= report.score <= 1.0 and report.state in STATES):
            raise MalformedInput("a node of the log has no valid score or state")
        seen_s = at_s - named.age_ms / 1e3
        if not self.processor.put_shared(name, report, named.pushes, seen_s):
            return
        row = self.processor.clusters[name].roster.rows[report.node]
        self.checks_of(name)[row] = name_check(report.node)

    def owe(self, body: bytes) -> None:
        """Note verdict records of this tick, which one of the replicas must send."""
        self.owed[round(self.at_s * 1e3)] = body
        while len(self.owed) > MAX_OWED:
            del self.owed[next(iter(self.owed))]
            self.dropped_records += 1

    def _tick(self, at_s: float) -> None:
        self.ticked_s = at_s
        self._on_tick(at_s)
        for name in [name for name in self.checks if name not in self.processor.clusters]:
            del self.checks[name]
        for name, cluster in self.processor.clusters.items():
            self.checks_of(name)[cluster.roster.seen_s == -np.inf] = 0
        self.agreement.settle_sender(at_s)
        self.digests[round(at_s * 1e3)] = self.digest()
        while len(self.digests) > 64:
            del self.digests[next(iter(self.digests))]

    def digest(self) -> bytes:
        """Return a digest of what agents are told: thresholds, scores and open verdicts."""
        found = hashlib.blake2b(digest_size=8)
        for name, cluster in sorted(self.processor.clusters.items()):
            found.update(name.encode() + encode_answer(cluster.served))
            found.update(_digested(cluster))
        for name, verdict in self.judgement.verdicts.current():
            found.update(name.encode() + encode_one(verdict))
        return found.digest()


def _digested(cluster: Cluster) -> bytes:
    roster = cluster.roster
    return b"".join(column.tobytes() for column in (roster.score, roster.state, roster.sent_ns))


def _put_rows(roster: Roster, packed: Packed, at_s: float) -> None:
    """Do what `Roster.put` does with each row, all at once."""
    row = packed["row"].astype(np.intp)
    seen_s = at_s - packed["age_ms"] / 1e3
    roster.seen_s[row] = np.maximum(roster.seen_s[row], seen_s)
    roster.pushes[row] += packed["pushes"]
    sent, last = packed["sent_ns"], roster.sent_ns[row]
    is_set_back = (sent < last) & (last - np.minimum(sent, last) >= np.uint64(REORDER_NS))
    newer = (packed["state"] >= 0) & ((sent > last) | (sent == 0) | is_set_back)
    row, packed = row[newer], packed[newer]
    roster.score[row] = packed["score"]
    roster.state[row] = packed["state"]
    roster.sent_ns[row] = packed["sent_ns"]
