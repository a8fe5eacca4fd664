"""One recording from start to end: tracer, recorder, writer and the loop that connects them."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.layout import CgroupWait
from ingero.agent.ebpf.tracer import POLL_INTERVAL_S
from ingero.agent.host.machine import HostSampler, has_moved, read_machine
from ingero.agent.processes.info import ProcessCache, ProcessInfo, read_process
from ingero.agent.recording.aggregator import CountedRow
from ingero.agent.recording.annotate import INSERT_ANNOTATION, AnnotationServer
from ingero.agent.recording.gpu_memory import INSERT_MEMORY, MEMORY_EVERY_NS, memory_rows
from ingero.agent.recording.recorder import Recorder, RecorderPolicy, TracedEvents
from ingero.agent.stacks.resolver import StackResolver
from ingero.contract.chain import Chain
from ingero.core.chains.evidence import SystemSample
from ingero.core.chains.rules import window_for
from ingero.core.recording.histogram import FLOORS_NS
from ingero.core.recording.latency import OpSummary
from ingero.storage.trace.database import Batch, RecordingState, Row, TraceDb, insert_sql
from ingero.storage.trace.writer import SizePolicy, TraceWriter

TICK_S: Final = 1.0
# While little happens, the rings of the kernel have room for much longer, and polling is the cost.
QUIET_POLL_S: Final = 0.2
QUIET_RECORDS: Final = 200  # per second
IDLE_POLL_S: Final = 0.5  # while there is no job at all
_SESSION_COLUMNS: Final = (
    "started_at", "gpu_model", "gpu_driver", "cpu_model", "cpu_cores", "mem_total", "kernel",
    "os_release", "ingero_ver", "pid_filter", "flags", "node", "rank", "local_rank", "world_size",
)  # fmt: skip
_UPSERT_LOSS: Final = insert_sql(
    "losses", ("session_id", "place", "count", "updated_at"), "INSERT OR REPLACE"
)


class Feed(Protocol):
    """A source of events: the tracer on a real node, a script in a demo."""

    def poll(self) -> TracedEvents: ...

    def collectives(self, processes: ProcessCache) -> Sequence[Row]: ...

    def counted(self) -> Sequence[CountedRow]: ...

    def neighbours(self) -> Sequence[CgroupWait]: ...

    def allocations(self) -> Mapping[int, list[tuple[int, int]]]: ...

    def tune(self, operations: Sequence[OpSummary]) -> None: ...

    def losses(self) -> Mapping[str, int]: ...

    def notes(self) -> Sequence[str]: ...

    def is_idle(self) -> bool: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Options of `ingero trace`."""

    node: str
    db: Path | None  # None records nothing
    pids: tuple[int, ...] = ()
    duration_s: float | None = None
    record_all: bool = False
    stack_samples: int = 100
    workload: str = "unknown"  # decides how far back causes are searched
    size: SizePolicy = field(default_factory=SizePolicy)
    deadband_pct: float = 0.0
    heartbeat_s: float = 0.0
    flags: str = ""
    annotate: Path | None = None  # socket for annotations
    annotate_gid: int = -1


@dataclass(frozen=True, slots=True)
class TraceView:
    """The present state of a recording, from which tables and JSON lines are made."""

    wall_s: float
    sample: SystemSample | None
    operations: list[OpSummary]
    chains: list[Chain]
    processes: dict[int, str]
    events: int
    stored: int
    collectives: int
    anomalies: int
    losses: Mapping[str, int]
    dropped_rows: int
    failed_rows: int
    state: RecordingState | None  # None: nothing is recorded
    notes: Sequence[str]


OnTick = Callable[[TraceView], None]
OnEvents = Callable[[TracedEvents, NDArray[np.bool_]], None]


class TraceApp:
    """Runs until stopped; always leaves a complete file behind."""

    def __init__(self, options: TraceOptions, feed: Feed) -> None:
        self.options = options
        self._feed = feed
        self._began_s = time.monotonic()
        since_ns = time.time_ns()
        self.writer: TraceWriter | None = None
        self.annotations = (
            AnnotationServer(options.annotate, options.annotate_gid) if options.annotate else None
        )
        db = self._open_db(options)
        if db is not None:
            self._session = _open_session(db, options, since_ns)
            self.writer = TraceWriter(db, options.size)
        policy = RecorderPolicy(
            node=options.node,
            since_ns=since_ns,
            record_all=options.record_all,
            stack_samples=options.stack_samples,
            window_ns=window_for(options.workload),
            cpus=os.cpu_count() or 0,
        )
        self.stacks = StackResolver()
        self.recorder = Recorder(policy, self.writer, db, resolve=self.stacks)
        self._sampler = HostSampler()
        self._sample: SystemSample | None = None
        self._kept_sample: SystemSample | None = None
        self._memory_due_ns = 0

    def _open_db(self, options: TraceOptions) -> TraceDb | None:
        try:
            return TraceDb(options.db, options.node) if options.db else None
        except BaseException:
            if self.annotations:
                self.annotations.close()
            raise

    def run(
        self,
        stop: threading.Event,
        on_tick: OnTick,
        on_events: OnEvents | None = None,
        ticks_per_view: int = 1,
    ) -> TraceView:
        """Trace until `stop` is set or the time is over; return the final state.

        `on_tick` is called once per `ticks_per_view` ticks, the first time after the first one.
        """
        next_tick_s = time.monotonic() + TICK_S
        ends_s = (
            None if self.options.duration_s is None else self._began_s + self.options.duration_s
        )
        pause_s, counted, ticks = POLL_INTERVAL_S, 0, 0
        try:
            while not stop.wait(pause_s):
                now_s = time.monotonic()
                self._move(on_events)
                if now_s >= next_tick_s:
                    self._tick()
                    if ticks % ticks_per_view == 0:
                        on_tick(self.view())
                    ticks += 1
                    next_tick_s = max(next_tick_s + TICK_S, now_s)
                    before, counted = counted, self._records()
                    pause_s = self._pause_s(counted - before)
                if ends_s is not None and now_s >= ends_s:
                    break
            self._move(on_events)
            self._tick()
            return self.view()
        finally:
            self._finish()

    def _pause_s(self, records: int) -> float:
        """Return the time until the next poll, by the records of the last second."""
        if records >= QUIET_RECORDS:
            return POLL_INTERVAL_S
        return IDLE_POLL_S if self._feed.is_idle() else QUIET_POLL_S

    def _records(self) -> int:
        totals = self.recorder.totals
        return totals.events + totals.collectives

    def _move(self, on_events: OnEvents | None) -> None:
        traced = self._feed.poll()
        unusual = self.recorder.take(traced)
        self.recorder.take_collectives(self._feed.collectives(self.recorder.processes))
        self.recorder.flush_if_full(time.time_ns())
        if self.annotations and self.writer:
            notes = self.annotations.poll(time.time_ns())
            if notes:
                self.writer.submit([(INSERT_ANNOTATION, notes)])
        if on_events is not None and len(traced.columns):
            on_events(traced, unusual)

    def _tick(self) -> None:
        now_ns = time.time_ns()
        self._sample = self._sampler.read(now_ns)
        self.recorder.take_neighbours(self._feed.neighbours(), FLOORS_NS)
        self.recorder.tick(now_ns, self._feed.counted(), self._due_sample())
        self._feed.tune(self.recorder.summaries())
        if self.writer is not None:
            losses = dict(self._feed.losses()) | {
                "writer_queue": self.writer.counters.dropped,
                "disk": self.writer.counters.failed,
                "python_names": self.stacks.skipped_names,
            }
            rows: Batch = [
                (
                    _UPSERT_LOSS,
                    [(self._session, place, count, now_ns) for place, count in losses.items()],
                )
            ]
            if now_ns >= self._memory_due_ns:
                self._memory_due_ns = now_ns + MEMORY_EVERY_NS
                held = memory_rows(self.options.node, now_ns, self._feed.allocations())
                rows.append((INSERT_MEMORY, held))
            self.writer.submit(rows)

    def _due_sample(self) -> SystemSample | None:
        """Return the present sample, unless nothing changed and no heartbeat is due."""
        now, before = self._sample, self._kept_sample
        if now is None:
            return None
        beat_ns = int(self.options.heartbeat_s * 1e9)
        overdue = (
            bool(beat_ns)
            and before is not None
            and now.timestamp_ns - before.timestamp_ns >= beat_ns
        )
        if (
            self.options.deadband_pct
            and not overdue
            and not has_moved(before, now, self.options.deadband_pct)
        ):
            return None
        self._kept_sample = now
        return now

    def view(self) -> TraceView:
        """Return the present state of the recording."""
        totals, writer = self.recorder.totals, self.writer
        return TraceView(
            wall_s=time.monotonic() - self._began_s,
            sample=self._sample,
            operations=self.recorder.operations(),
            chains=self.recorder.chains,
            processes=self.recorder.processes.names(),
            events=totals.events,
            stored=totals.stored,
            collectives=totals.collectives,
            anomalies=totals.anomalies,
            losses=self._feed.losses(),
            dropped_rows=writer.counters.dropped if writer else 0,
            failed_rows=writer.counters.failed if writer else 0,
            state=writer.state if writer else None,
            notes=[*self._feed.notes(), *self._own_notes()],
        )

    def _own_notes(self) -> list[str]:
        notes = []
        if self.stacks.skipped_names:
            notes.append(
                f"Python frames: {self.stacks.skipped_names} left out, "
                "because their names cannot be read"
            )
        if self.writer is not None and self.writer.counters.rollover_failures:
            failures = self.writer.counters.rollover_failures
            notes.append(
                f"rollover: {failures} failed, so {self.options.db} keeps growing; "
                "check that its folder is writable"
            )
        return notes

    def _finish(self) -> None:
        now_ns = time.time_ns()
        self.recorder.flush(now_ns, is_last=True)
        if self.writer is not None:
            close: Batch = [
                ("UPDATE sessions SET stopped_at = ? WHERE id = ?", [(now_ns, self._session)])
            ]
            self.writer.submit(close)
            self.writer.close()
        if self.annotations:
            self.annotations.close()
        self._feed.close()


def _open_session(db: TraceDb, options: TraceOptions, since_ns: int) -> int:
    machine = read_machine()
    process = read_process(options.pids[0]) if options.pids else ProcessInfo(0, 0, "")
    values = (
        since_ns, machine.gpu_model, machine.gpu_driver, machine.cpu_model, machine.cpu_cores,
        machine.mem_total_mb, machine.kernel, machine.os_release, version("ingero"),
        ",".join(map(str, options.pids)), options.flags, options.node, process.rank,
        process.local_rank, process.world_size,
    )  # fmt: skip
    return int(
        db.execute(insert_sql("sessions", _SESSION_COLUMNS, "INSERT"), values).lastrowid or 0
    )
