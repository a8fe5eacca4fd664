"""One replica of Fleet on a cluster log: tells what it received, and follows what all received.

Four times a second the replica appends what changed here. One task reads the log and applies it,
also the replica's own entries. Without the log, pushes are answered as before until nodes would
count as silent; then agents are told that there is no quorum.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ingero.contract.replicas import entries
from ingero.errors import ForeignFile, IngeroError, Unavailable
from ingero.fleet.replicas.intake import Intake
from ingero.fleet.replicas.outbox import Outbox
from ingero.fleet.replicas.shared import SharedState
from ingero.fleet.replicas.snapshot import decode_snapshot, encode_snapshot, install
from ingero.stopping import end_tasks, is_set_within
from ingero.transport.cluster_log.port import BEGINNING, PAUSED_S, Appended, ClusterLog, Snapshot

FLUSH_S: Final = 0.25
HERE_S: Final = 1.0
READ_WAIT_S: Final = 1.0
CAUGHT_UP_S: Final = 2.0  # behind the end of the log, within which a replica may answer
RETRY_S: Final = 0.5
SHARED_WITHIN_S: Final = 5.0  # an operator waits no longer for a change
log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReplicaCounters:
    """What happened between this replica and its log."""

    applied: int = 0
    appended_bytes: int = 0
    failures: int = 0  # calls of the log
    reloads: int = 0  # of a snapshot, after entries were missed or the state differed
    snapshots: int = 0  # written by this replica
    missed: int = 0  # gaps in the log


class Replica:
    """Owns the tasks between intake, log and shared state; `rules` must be the same for all."""

    def __init__(
        self,
        cluster_log: ClusterLog,
        shared: SharedState,
        intake: Intake,
        rules: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log, self.shared, self.intake, self.rules = cluster_log, shared, intake, rules
        self.clock = clock
        self.name = shared.agreement.name
        self.outbox = Outbox(self.name)
        self.counters = ReplicaCounters()
        self.is_ready = False
        self.why_not = "catching up with the cluster log"
        self.send_record: Callable[[bytes, Callable[[], None]], bool] = lambda body, done: False
        self._position, self._number = BEGINNING, 0
        self._clock = (0.0, 0.0)  # time of the log, and of this process when it was told
        self._ticked_at_s = 0.0  # of this process
        self._here_at_s = self._caught_up_s = 0.0
        self._sending: set[int] = set()
        self._has_news = asyncio.Event()  # that the others should hear at once
        self._must_join = True
        self._tasks: list[asyncio.Task[None]] = []

    # --- What others see ---
    @property
    def now_s(self) -> float:
        """The time of the log, estimated between two calls; 0 before the first."""
        told_s, at_s = self._clock
        return told_s + self.clock() - at_s if told_s else 0.0

    @property
    def lag_s(self) -> float:
        """How far behind the end of the log this replica is."""
        return max(self.now_s - self.shared.at_s, 0.0) if self.shared.at_s else 0.0

    @property
    def is_away(self) -> bool:
        """Whether the log has not been reached lately."""
        return self.clock() - self._clock[1] > 2 * HERE_S

    def start(self) -> None:
        """Begin to follow the log, and to append."""
        self._ticked_at_s = self.clock()
        for work in (self._follow, self._tell):
            self._tasks.append(asyncio.create_task(self._forever(work)))

    async def stop(self) -> None:
        """Append what is left, and tell the other replicas that this one leaves."""
        await end_tasks(self._tasks)
        if self.is_ready:
            self.is_ready = False
            with contextlib.suppress(IngeroError):
                await self.log.append([*await self._batch(), self._here()], None)
        with contextlib.suppress(Exception):  # the process ends anyway
            await self.log.close()

    async def share(self, entry: entries.Entry) -> None:
        """Append an operator's change and wait until it is applied here; raises Unavailable."""
        if not self.is_ready:
            raise Unavailable(f"this replica is not ready: {self.why_not}")
        try:
            async with asyncio.timeout(SHARED_WITHIN_S):
                await asyncio.shield(self.outbox.add_awaited(entry))
        except TimeoutError:
            raise Unavailable("the cluster log is away; the change may be made later") from None

    @property
    def is_current(self) -> bool:
        """Whether this replica knows what the log holds, and may act on it."""
        return self.is_ready and not self.is_away and self.lag_s <= CAUGHT_UP_S

    def may_send(self, made_s: float) -> bool:
        """Tell whether this replica tells others what was decided at a time of the log."""
        return self.is_current and self.shared.agreement.may_send(made_s, self.shared.at_s)

    def freeze(self, now_s: float) -> None:
        """Say that there is no quorum once the log has been away for as long as nodes may be."""
        is_old = now_s - self._ticked_at_s > self.intake.policy.ttl_s
        if is_old != self.intake.is_frozen:
            self.intake.is_frozen = is_old
            log.warning("cluster_log_away" if is_old else "cluster_log_back")

    # --- Appending ---
    async def _tell(self) -> None:
        while True:
            await is_set_within(self._has_news, FLUSH_S)
            self._has_news.clear()
            await self.flush()
            self._send_owed()

    async def flush(self) -> None:
        """Append what is new here, and a tick where one is due."""
        bodies = await self._batch()
        if self.clock() - self._here_at_s >= HERE_S:
            bodies.append(self._here())
        tick = entries.encode_entry(entries.Tick(self.name)) if self.is_ready else None
        try:
            now_s = await self.log.append(bodies, tick)
        except IngeroError as error:
            self._failed(error)
            self.intake.tell_all(self.clock())
            return
        self._hear_clock(now_s)
        self.counters.appended_bytes += sum(map(len, bodies))
        self.outbox.note_appended()

    def _hear_clock(self, told_s: float) -> None:
        """Note the time of the log; where it jumped, every node would seem to have been silent."""
        if self._clock[0] and told_s - self.now_s > PAUSED_S:
            log.warning("cluster_log_clock_jumped", extra={"by_s": round(told_s - self.now_s)})
            self.intake.tell_all(self.clock())
        self._clock = (told_s, self.clock())

    async def _batch(self) -> list[bytes]:
        """Return what is new here, encoded."""
        last_number = self.shared.batches.get(self.name, 0)
        waiting = await self.outbox.batch(self.clock(), last_number)
        rows: list[bytes] = []
        if self.is_ready:
            for change in self.intake.changes(self.clock()):
                rows += self.outbox.encode_rows(*change)
        return rows + waiting

    def _here(self) -> bytes:
        self._here_at_s = self.clock()
        digests, self.shared.digests = self.shared.digests, {}
        return entries.encode_entry(
            entries.Here(
                self.name, self.rules, self.is_ready, digests, self.shared.agreement.process
            )
        )

    def _send_owed(self) -> None:
        self._sending &= self.shared.owed.keys()
        for made_ms, body in self.shared.owed.items():
            if made_ms not in self._sending and self.may_send(made_ms / 1e3):
                done = partial(self._sent, made_ms)
                if self.send_record(body, done):
                    self._sending.add(made_ms)

    def _sent(self, made_ms: int) -> None:
        self.outbox.add(entries.Said(self.name, records_ms=(made_ms,)))
        self._has_news.set()  # a sender that dies before it said so has its records sent twice

    def alert_sent(self, target: str, key: tuple[str, str]) -> None:
        """Tell the other replicas that an alert was delivered."""
        self.outbox.add(entries.Said(self.name, alerts=((target, *key),)))
        self._has_news.set()

    # --- Following ---
    async def _follow(self) -> None:
        while True:
            await self.read(READ_WAIT_S)

    async def _join(self) -> None:
        """Start from the last snapshot, where there is one that the log continues."""
        found = await self.log.get_snapshot()
        if found is None:
            return
        try:
            size = self.shared.processor.max_nodes
            decoded = await asyncio.to_thread(decode_snapshot, found.content, size)
        except ForeignFile as error:
            log.error("snapshot_not_used", extra={"why": str(error)})
            return
        install(decoded, self.shared)
        self._position, self._number = found.position, found.number
        self.counters.reloads += 1
        log.info("snapshot_loaded", extra={"position": found.position})

    async def read(self, wait_s: float) -> None:
        """Apply the next entries; where entries are missing, start from a snapshot."""
        if self._must_join:
            await self._join()
            self._must_join = False
        found = await self.log.read_after(self._position, wait_s)
        self._hear_clock(max(self.now_s, found[-1].at_s if found else 0.0))
        for entry in found:
            is_next = not self._number or entry.number == self._number + 1
            if not is_next and await self._must_restart(entry):
                self._must_join = True
                return
            await self._apply(entry)
            if self._must_join:
                return
        self._settle(is_at_end=not found)

    async def _apply(self, entry: Appended) -> None:
        applied = None
        try:
            applied = await self.shared.apply(entry.body, entry.at_s)
        except Exception:  # every replica fails here alike, and goes on behind it
            self.counters.failures += 1
            log.exception("log_entry_failed")
        self._position, self._number = entry.position, entry.number
        self.counters.applied += 1
        self.outbox.note_applied(entry.body)
        if isinstance(applied, entries.Tick):
            self._ticked_at_s = self.clock()
            await self._after_tick()

    async def _must_restart(self, entry: Appended) -> bool:
        """Decide what follows a gap: a snapshot that lies behind it, or going on as well as we can.

        A number that was there before means that the engine lost the end of the log.
        """
        self.counters.missed += 1
        log.warning("log_entries_missed", extra={"expected": self._number + 1, "got": entry.number})
        snapshot = await self.log.get_snapshot()
        if snapshot is None:
            return False
        return entry.number <= self._number or snapshot.number > self._number

    async def _after_tick(self) -> None:
        """Keep a snapshot where it is due; start again where the state differs from the others'."""
        shared, agreement = self.shared, self.shared.agreement
        if self.lag_s > CAUGHT_UP_S:
            agreement.forget_digests(shared.at_s)
            return
        if agreement.is_mistaken(shared.at_s):
            log.error("state_differs", extra={"next": "starting again from the last snapshot"})
            agreement.forget_digests(shared.at_s)
            self._must_join = True
            return
        if self.is_current and agreement.keeps_snapshot(shared.at_s, shared.kept_s):
            await self._keep_snapshot()

    async def _keep_snapshot(self) -> None:
        """Encode in a thread, while nothing is applied, and store."""
        self.shared.kept_s = self.shared.at_s  # a failure is not tried again every second
        try:
            content = await asyncio.to_thread(encode_snapshot, self.shared)
            await self.log.put_snapshot(Snapshot(self._position, self._number, content))
        except (IngeroError, TypeError) as error:
            log.error("snapshot_not_kept", extra={"why": str(error)})
            return
        self.counters.snapshots += 1
        self.outbox.add(entries.Kept(self.name, self._position))

    def _settle(self, *, is_at_end: bool) -> None:
        """Decide whether this replica may answer."""
        shared = self.shared
        if is_at_end or self.lag_s <= CAUGHT_UP_S:
            self._caught_up_s = self._caught_up_s or self.clock()
        waited_s = self.clock() - self._caught_up_s if self._caught_up_s else 0.0
        other = shared.agreement.conflict(self.rules, self.is_ready, self.now_s)
        if shared.agreement.gives_way_to_namesake(self.is_ready, self.now_s):
            why = f"another replica is named {self.name}, too; each needs a name of its own"
            self._set_ready(False, why)
        elif other:
            self._set_ready(False, f"{other} runs with another version or other settings")
        elif waited_s > 2 * HERE_S:  # those who are alive have said so
            self._set_ready(True, "")

    def _set_ready(self, is_ready: bool, why: str) -> None:
        if (is_ready, why) != (self.is_ready, self.why_not):
            log.info("replica_ready" if is_ready else "replica_not_ready", extra={"why": why})
        self.is_ready, self.why_not = is_ready, why

    # --- Failing ---
    async def _forever(self, work: Callable[[], Any]) -> None:
        while True:
            try:
                await work()
            except IngeroError as error:
                self._failed(error)
            except Exception:  # a replica that cannot go on must say so and try again
                self.counters.failures += 1
                log.exception("replica_failed")
            await asyncio.sleep(RETRY_S)

    def _failed(self, error: IngeroError) -> None:
        self.counters.failures += 1
        if not self.is_ready:
            self.why_not = str(error)
        if self.counters.failures % 20 == 1:
            log.warning("cluster_log_failed", extra={"why": str(error)})
