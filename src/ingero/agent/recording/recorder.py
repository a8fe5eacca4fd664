"""Turns traced events into statistics, causal chains and rows of the trace database.

`take` is called once per poll, `tick` once per second. Every event is counted;
`core/recording/row_selection.py` chooses which become rows. The recorder reads no clock: both calls
get the time as an argument.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.layout import CgroupWait
from ingero.agent.processes.info import ProcessCache
from ingero.agent.recording.aggregator import Aggregator, CountedRow
from ingero.agent.recording.schedstat import INSERT_SCHEDSTAT, CgroupWaits
from ingero.contract.chain import Chain
from ingero.contract.events import FIRST_SUMMARY_OP, GPU_SOURCES, PROCESS_EXEC, PROCESS_EXIT, Source
from ingero.core.chains.evidence import SystemSample, contended
from ingero.core.chains.finder import CgroupWaitTimes, ChainFinder, weight
from ingero.core.chains.neighbours import Host
from ingero.core.chains.rules import TRAINING_WINDOW_NS
from ingero.core.recording.event_columns import EventColumns, source_table
from ingero.core.recording.latency import OpSummary, TraceStats
from ingero.core.recording.row_selection import CallSampler, KeepPolicy, choose_rows
from ingero.core.recording.stacks import Frame, encode_frames, stack_hash
from ingero.storage.trace.chains import UPSERT_CHAIN, UPSERT_HISTORY, chain_row, history_row
from ingero.storage.trace.database import (
    COLLECTIVE_COLUMNS,
    EVENT_COLUMNS,
    Batch,
    Row,
    insert_sql,
    signed64,
)

MAX_STACKS: Final = 10_000
MAX_ACTIVE: Final = 4096
MAX_CHAINS: Final = 4096  # names of findings; those about graphs contain a handle
FLUSH_EVERY: Final = 10_000  # events, kept or not
MAX_PENDING_ROWS: Final = 1000
MAX_LOOKUPS: Final = 5  # stacks resolved again per poll
_IS_CALL: Final = source_table((*GPU_SOURCES, Source.GRAPH))
CHAIN_RESOLVED_NS: Final = 120_000_000_000
_INSERT_EVENT: Final = insert_sql("events", EVENT_COLUMNS)
_INSERT_COLLECTIVE: Final = insert_sql("collectives", COLLECTIVE_COLUMNS)
_UPSERT_NAME: Final = insert_sql("process_names", ("pid", "name", "seen_at"), "INSERT OR REPLACE")
_UPSERT_STACK: Final = insert_sql("stack_traces", ("hash", "ips", "frames"))
_UPSERT_PROCESS: Final = insert_sql(
    "processes",
    ("node", "pid", "start_time", "name", "seen_at", "rank", "local_rank", "world_size",
     "cgroup_id"),
    "INSERT OR REPLACE",
)  # fmt: skip
_INSERT_CGROUP: Final = insert_sql("cgroup_metadata", ("cgroup_id", "container_id", "cgroup_path"))
_INSERT_SNAPSHOT: Final = insert_sql(
    "system_snapshots", ("timestamp", "cpu_pct", "mem_pct", "mem_avail", "swap_mb", "load_avg")
)
_RESOLVE_CHAINS: Final = (
    "UPDATE chain_history SET resolved_at = ?1 WHERE resolved_at IS NULL AND last_seen < ?1 - ?2"
)

StackKey = tuple[int, tuple[int, ...]] | None  # pid and addresses
Resolver = Callable[[int, int, tuple[int, ...]], Sequence[Frame]]  # pid, tid, addresses


class Sink(Protocol):
    """The destination of rows: the writer thread, or a list in tests."""

    def submit(self, batch: Batch) -> bool: ...


class IdSource(Protocol):
    """Assigns ids to new events."""

    def next_ids(self, count: int) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class TracedEvents:
    """One poll in wall-clock time.

    The fields besides `columns` are read only for rows that are kept.
    """

    columns: EventColumns
    gpu_id: NDArray[np.int64]
    comm: NDArray[np.bytes_]
    stack: NDArray[np.int64]  # key in `stacks`, negative for none
    stacks: dict[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderPolicy:
    """Settings of one recording."""

    node: str
    since_ns: int
    record_all: bool = False
    stack_samples: int = 100
    window_ns: int = TRAINING_WINDOW_NS
    cpus: int = 0
    max_active: int = MAX_ACTIVE
    max_chains: int = MAX_CHAINS


@dataclass(slots=True)
class Totals:
    """Totals of a recording."""

    events: int = 0
    stored: int = 0
    collectives: int = 0
    anomalies: int = 0


@dataclass(slots=True)
class _Pending:
    events: list[Row] = field(default_factory=list)
    collectives: list[Row] = field(default_factory=list)
    stacks: list[Row] = field(default_factory=list)
    waits: list[Row] = field(default_factory=list)


def _stack_key(traced: TracedEvents, pid: int, number: int) -> StackKey:
    addresses = traced.stacks.get(number)
    return None if addresses is None else (pid, addresses)


def unresolved(_pid: int, _tid: int, addresses: tuple[int, ...]) -> list[Frame]:
    """Return the addresses without symbols."""
    return [Frame(address) for address in addresses]


class Recorder:
    """One recording. Without a `sink` it keeps statistics and chains and stores nothing."""

    def __init__(
        self,
        policy: RecorderPolicy,
        sink: Sink | None,
        ids: IdSource | None,
        *,
        resolve: Resolver = unresolved,
        processes: ProcessCache | None = None,
    ) -> None:
        self.policy = policy
        self.totals = Totals()
        self.processes = processes or ProcessCache()
        self.chains: list[Chain] = []
        self._sink, self._ids, self._resolve = sink, ids, resolve
        self._keep = KeepPolicy(policy.since_ns, policy.record_all)
        self._samples = CallSampler()
        self._stats = TraceStats()
        self._finder = ChainFinder(policy.window_ns, Host(policy.cpus))
        self._aggregator = Aggregator(policy.node)
        self._waits = CgroupWaits(policy.since_ns, lambda pid: self.processes.get(pid).cgroup_id)
        self._active: set[int] = set()
        self._stack_uses: dict[StackKey, int] = {}
        self._resolved: dict[StackKey, int] = {}
        self._lookups = 0
        self._since_flush = 0
        self._unsaved: list[Chain] = []
        self._kept_chains: dict[str, Chain] = {}
        self._pending = _Pending()

    def take(self, traced: TracedEvents) -> NDArray[np.bool_]:
        """Count events, search for causes and keep the rows worth keeping.

        Return which events were unusually slow.
        """
        events = traced.columns
        self.totals.events += len(events)
        self._since_flush += len(events)
        if not len(events):
            return np.zeros(0, bool)
        self._note_processes(events)
        unusual = self._stats.add(events) & (events.op < FIRST_SUMMARY_OP)
        self._finder.add(events)
        self.totals.anomalies += int(unusual.sum())
        familiar = self._familiar(traced)
        sampled = self._samples.choose(events)
        keep = choose_rows(events, unusual, sampled, familiar, self._active, self._keep) & (
            self._sink is not None
        )
        self._aggregator.add_records(events, keep)
        self._store_rows(traced, keep)
        return unusual

    def take_collectives(self, rows: Sequence[Row]) -> None:
        """Take rows in the order of `COLLECTIVE_COLUMNS`.

        All are kept, because lateness needs every one.
        """
        self.totals.collectives += len(rows)
        if self._sink is not None:
            self._pending.collectives += rows

    def take_neighbours(self, rows: Sequence[CgroupWait], floors_ns: NDArray[np.int64]) -> None:
        """Take CPU waits of all cgroups, traced or not."""
        self._waits.add_others(rows, floors_ns)

    def _note_processes(self, events: EventColumns) -> None:
        # their names appear in recommendations
        preemptors = np.unique(events.arg1[contended(events)])[:16]
        for pid in (*np.unique(events.pid), *preemptors):
            if pid:
                self.processes.get(int(pid))
        self._active.update(np.unique(events.pid[_IS_CALL[events.code]]).tolist())
        # some ends were not recorded; processes that are alive call again
        if len(self._active) > self.policy.max_active:
            self._active = set(np.unique(events.pid[_IS_CALL[events.code]]).tolist())
        ended = events.is_op(*PROCESS_EXIT) & (events.pid == events.tid)
        for pid in set(events.pid[ended | events.is_op(*PROCESS_EXEC)].tolist()):
            self.processes.mark_stale(pid)
            self._active.discard(pid)

    def _familiar(self, traced: TracedEvents) -> NDArray[np.bool_]:
        """Return which events have a stack of which enough rows were kept."""
        familiar = np.zeros(len(traced.columns), bool)
        with_stack = np.flatnonzero(traced.stack >= 0)
        if not len(with_stack):
            return familiar
        packed = (traced.columns.pid[with_stack] << 32) | traced.stack[with_stack]
        distinct, codes = np.unique(packed, return_inverse=True)
        uses = [
            self._stack_uses.get(_stack_key(traced, int(one) >> 32, int(one) & 0xFFFFFFFF), 0)
            for one in distinct
        ]
        familiar[with_stack] = (np.array(uses) >= self.policy.stack_samples)[codes]
        return familiar

    def _stack_of(self, key: StackKey, tid: int) -> int:
        """Return the hash under which a stack is stored, 0 without one.

        Python frames differ under equal addresses, so stacks are resolved again, but only a few per
        poll, because reading another process takes time.
        """
        if key is None:
            return 0
        if len(self._stack_uses) > MAX_STACKS:
            self._stack_uses.clear()
            self._resolved.clear()
        self._stack_uses[key] = self._stack_uses.get(key, 0) + 1
        if key not in self._resolved or self._lookups < MAX_LOOKUPS:
            self._lookups += 1
            frames = self._resolve(key[0], tid, key[1])
            self._resolved[key] = stack_hash(frames)
            self._pending.stacks.append((self._resolved[key], *encode_frames(frames)))
        return self._resolved[key]

    def _store_rows(self, traced: TracedEvents, keep: NDArray[np.bool_]) -> None:
        chosen = np.flatnonzero(keep)
        if self._ids is None or not len(chosen):
            return
        self._lookups = 0
        events = traced.columns.take(chosen)
        columns = [
            events.timestamp, events.pid, events.tid, events.source, events.op, events.duration,
            np.maximum(traced.gpu_id[chosen], 0), events.arg0, events.arg1, events.ret_code,
            events.cgroup_id,
        ]  # fmt: skip
        ids = self._ids.next_ids(len(chosen))
        names = traced.comm[chosen].tolist()
        stacks = traced.stack[chosen].tolist()
        for number, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            info = self.processes.get(values[1]) if values[1] else None
            ranks = (info.rank, info.local_rank, info.world_size) if info else (None, None, None)
            stack = self._stack_of(_stack_key(traced, values[1], stacks[number]), values[2])
            name = names[number].decode(errors="replace") or (info.name if info else "")
            self._pending.events.append(
                (ids[number], *values[:10], stack, self.policy.node, *ranks, name, values[10])
            )
        self.totals.stored += len(chosen)

    def tick(
        self, now_ns: int, counted: Sequence[CountedRow], sample: SystemSample | None
    ) -> list[Chain]:
        """Search for causal chains and submit everything pending.

        `counted` are the totals of the kernel.
        """
        if sample is not None:
            self._finder.add_sample(sample)
        self._aggregator.add_counted(counted, now_ns)
        self._waits.add(counted)
        self._pending.waits += self._waits.due(now_ns)
        self._finder.host = Host(self.policy.cpus, neighbours=self.processes.neighbours())
        self.chains = self._unsaved = self._finder.find(
            now_ns, self.summaries(), waits=self._cgroup_waits()
        )
        self.flush(now_ns, sample)
        return self.chains

    def _cgroup_waits(self) -> CgroupWaitTimes:
        own = frozenset(self.processes.get(pid).cgroup_id for pid in self._active) - {0}
        return CgroupWaitTimes(self._waits.last, own)

    def summaries(self) -> list[OpSummary]:
        """Return the latest calls of every operation, to search for causes; most time first.

        Hot operations have the counts of the kernel.
        """
        return self._aggregator.improve(self._stats.summaries())

    def operations(self) -> list[OpSummary]:
        """Return the operations with their figures since the start, as the file has them."""
        known = {(one.pid, *one.key): one for one in self._stats.summaries()}
        found = []
        for (pid, *op), totals in self._aggregator.totals.items():
            key = (op[0], op[1])
            figures = totals.figures(key, pid)
            one = known.get((pid, *key)) or OpSummary(key, 0, 0, 0, pid=pid)
            found.append(
                replace(
                    one, count=figures.count, total_ns=figures.total_ns, min_ns=figures.min_ns,
                    max_ns=figures.max_ns, p50_ns=figures.p50_ns or 0, p95_ns=figures.p95_ns or 0,
                    p99_ns=figures.p99_ns or 0,
                )
            )  # fmt: skip
        return sorted(found, key=lambda one: -one.total_ns)

    def flush(
        self, now_ns: int, sample: SystemSample | None = None, *, is_last: bool = False
    ) -> None:
        """Submit everything pending; with `is_last` also buckets that have not ended."""
        if self._sink is None:
            return
        batch: Batch = [
            (_UPSERT_STACK, self._pending.stacks),
            (_INSERT_EVENT, self._pending.events),
            (_INSERT_COLLECTIVE, self._pending.collectives),
            *self._process_rows(now_ns),
            *self._chain_rows(now_ns),
            *self._aggregator.due(now_ns, is_last=is_last),
            (
                INSERT_SCHEDSTAT,
                self._pending.waits + (self._waits.due(now_ns, is_last=True) if is_last else []),
            ),
        ]
        if sample is not None:
            values = (
                sample.cpu_pct,
                sample.mem_pct,
                sample.mem_avail_mb,
                sample.swap_mb,
                sample.load_avg,
            )
            batch.append((_INSERT_SNAPSHOT, [(sample.timestamp_ns, *values)]))
        self._pending, self._since_flush, self._unsaved = _Pending(), 0, []
        filled = [(statement, rows) for statement, rows in batch if rows]
        if filled:
            self._sink.submit(filled)

    def flush_if_full(self, now_ns: int) -> None:
        """Submit between ticks, so that a burst does not wait, even if few of its rows are kept."""
        rows = len(self._pending.events) + len(self._pending.collectives)
        if rows >= MAX_PENDING_ROWS or self._since_flush >= FLUSH_EVERY:
            self.flush(now_ns)

    def _process_rows(self, now_ns: int) -> Batch:
        fresh, self.processes.fresh = self.processes.fresh, []
        named = [info for info in fresh if info.name]
        processes: list[Row] = [
            (self.policy.node, info.pid, info.start_time, info.name, now_ns, info.rank,
             info.local_rank, info.world_size, signed64(info.cgroup_id))
            for info in named
        ]  # fmt: skip
        cgroups: list[Row] = [
            (signed64(info.cgroup_id), info.container_id, info.cgroup_path)
            for info in named
            if info.cgroup_id
        ]
        names: list[Row] = [(info.pid, info.name, now_ns) for info in named]
        return [(_UPSERT_NAME, names), (_UPSERT_PROCESS, processes), (_INSERT_CGROUP, cgroups)]

    def _chain_rows(self, now_ns: int) -> Batch:
        """Store the strongest finding as the row; the history counts every time it was found."""
        rows: list[Row] = []
        for chain in self._unsaved:
            kept = self._kept_chains.get(chain.name)
            if kept is None or weight(chain) > weight(kept):
                self._kept_chains[chain.name] = chain
                if len(self._kept_chains) > self.policy.max_chains:
                    del self._kept_chains[next(iter(self._kept_chains))]
                rows.append(chain_row(self.policy.node, now_ns, chain))
        history = [history_row(self.policy.node, now_ns, chain) for chain in self._unsaved]
        return [
            (UPSERT_CHAIN, rows),
            (UPSERT_HISTORY, history),
            (_RESOLVE_CHAINS, [(now_ns, CHAIN_RESOLVED_NS)]),
        ]
