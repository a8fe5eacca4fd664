"""The writer of the store process: loads the journal, rolls up minutes, applies retention."""

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec

from ingero.children.memory import trim_heap
from ingero.config.lake import read_lake_secrets
from ingero.echo.retention import RetentionPolicy, retain
from ingero.echo.store.api import ColumnResult, QueryFailed, QueryLimits, QueryResult, StoreStats
from ingero.echo.store.columns import run_columns
from ingero.echo.store.memory import QuietMoments
from ingero.echo.store.query import Descriptions, explained, is_out_of_memory, run_query
from ingero.echo.store.read_ahead import ReadAhead
from ingero.echo.store.sql import run_user_sql
from ingero.echo.store.wire import REPLACE_ME, Answer, Ask, Progress, StoreSettings
from ingero.errors import IngeroError, StoreDamaged, StoreError
from ingero.storage.events.loading import handle, load_safely, set_aside, settle
from ingero.storage.events.opening import open_store
from ingero.storage.events.reasons import CRASHED
from ingero.storage.events.store import EventStore, Loaded, Prepared, first_line
from ingero.storage.journal.attempts import Attempts
from ingero.storage.journal.frames import Frame
from ingero.storage.journal.reader import JournalReader
from ingero.storage.quarantine import Quarantine

log = logging.getLogger(__name__)

ROLL_UP_EVERY_S: Final = 20.0
RETAIN_EVERY_S: Final = 60.0
RETRY_S: Final = 1.0
MOST_SHORTAGES: Final = 3
UNASKED_S: Final = 60.0  # after this long without a question, what it would read may be forgotten
NICENESS: Final = 10
# share of the address space for DuckDB's buffers; the rest is for results and Python
_MEMORY_SHARE: Final = 0.5
_QUESTIONS: Final = frozenset({"query", "columns", "sql"})  # in cursors of their own
_BUFFER_BYTES: Final = "SELECT sum(memory_usage_bytes)::BIGINT FROM duckdb_memory()"


class Loader:
    """Owns the database; `send` reports progress to the parent."""

    def __init__(self, settings: StoreSettings, send: Callable[[Any], None]) -> None:
        self._settings = settings
        self._send = send
        self._policy = RetentionPolicy(
            events_s=settings.retention_s,
            rollups_s=settings.rollup_retention_s,
            max_bytes=settings.max_database_bytes,
        )
        self._store: EventStore
        self._quarantine: Quarantine
        self._attempts: Attempts
        self._durable = 0
        self._wake = threading.Event()
        self._stopping = False
        self._write_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        self._progress = Progress(0)
        self._progress_lock = threading.RLock()
        self._cursors = threading.local()
        self._shortages: Counter[str] = Counter()  # of memory, in a row, by chore
        self._quiet = QuietMoments()
        self._asked_s = time.monotonic()  # the last question about rows
        self._descriptions = Descriptions()

    def open(self, patience_s: float) -> int:
        """Open the database and return the applied sequence.

        Waits for an earlier process that is still exiting.
        """
        until = time.monotonic() + patience_s
        while True:
            try:
                self._store = open_store(
                    Path(self._settings.database),
                    self._settings.lake,
                    read_lake_secrets(_path(self._settings.lake_secrets)),
                    int(self._settings.address_space_bytes * _MEMORY_SHARE),
                    self._settings.threads,
                )
            except StoreError as error:
                if "could not set lock" not in str(error).lower() or time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                self._quarantine = Quarantine(
                    Path(self._settings.quarantine), self._settings.max_quarantine_bytes
                )
                settle(self._store, self._quarantine)
                self._progress = Progress(self._store.applied_seq)
                return self._store.applied_seq

    def start(self) -> None:
        self._thread.start()

    def durable(self, seq: int, now: bool) -> None:
        """Allow requests up to `seq` to be loaded, `now` or within the normal interval."""
        self._durable = max(self._durable, seq)
        if now:
            self._wake.set()

    def stop(self) -> int:
        """Load the rest, checkpoint and close; return the exit status."""
        self._stopping = True
        # loading comes first now: no query is waiting; only root may take niceness back
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, self._thread.native_id or 0, 0)
        self._wake.set()
        self._thread.join()
        with self._tolerated("roll_up"), self._write_lock:  # the engines of a lake may be gone
            self._store.roll_up(_now_us())
            self._store.checkpoint()
        with self._write_lock:
            self._store.close()
        self._attempts.end()
        return 0

    # below: the loader thread
    def _run(self) -> None:
        _step_back()
        try:
            self._load_forever()
        except StoreDamaged as error:
            self._report(problem=str(error))
            log.critical("journal_damaged reason=%r", str(error))
            os._exit(REPLACE_ME)
        except BaseException:
            log.exception("loader_failed")
            os._exit(REPLACE_ME)

    def _load_forever(self) -> None:
        journal = Path(self._settings.journal)
        reader = JournalReader(journal, self._store.applied_seq)
        journal_ahead = ReadAhead(reader, self._store, lambda: self._durable, _step_back)
        self._attempts = Attempts(journal / "attempts", self._store.applied_seq)
        self._report()
        chores = self._chores()
        was_full = False
        while True:
            started = time.monotonic()
            load = journal_ahead.take(ahead=not self._attempts.is_careful)
            has_frames, is_full = bool(load.frames), load.is_full
            if has_frames and self._attempts.is_careful:
                self._load_one_by_one(load.frames)
            elif has_frames:
                self._load(load.frames, load.prepared)
            elif self._stopping:
                return
            del load  # its memory: the next one may come much later
            if has_frames and (is_full or started - self._asked_s > UNASKED_S):
                with self._write_lock:  # statistics, which wait for it, are no question
                    self._quiet.use(self._store.forget_blocks)
            if not self._stopping:
                next(chores)
            if was_full and not is_full:
                trim_heap()
            was_full = is_full
            if not is_full:
                self._wake.wait(max(0.0, self._store.load_every_s - (time.monotonic() - started)))
                self._wake.clear()

    def _load_one_by_one(self, frames: list[Frame]) -> None:
        """Load a batch after this process ended repeatedly, and set aside what ended it."""
        for frame in frames:
            if self._attempts.begin(frame.seq):
                self._load([frame])
                continue
            message = "the store process ended each time when it loaded this request"
            with self._write_lock:
                self._count(set_aside(self._store, self._quarantine, frame, CRASHED, message))
        self._attempts.end()

    def _load(self, frames: list[Frame], prepared: Prepared | None = None) -> None:
        """Load a batch, retrying while the disk is full: the journal keeps what is waiting."""
        is_in_doubt = False
        while True:
            try:
                with self._write_lock:
                    if is_in_doubt:
                        self._store.recover()
                        prepared = None
                    waiting = [frame for frame in frames if frame.seq > self._store.applied_seq]
                    loaded = (
                        load_safely(self._store, self._quarantine, waiting, prepared)
                        if waiting
                        else Loaded(0, 0)
                    )
            except (duckdb.Error, StoreError) as error:
                text = first_line(error)
                if isinstance(
                    error, duckdb.FatalException | duckdb.InternalException
                ) or is_out_of_memory(error):
                    raise
                log.warning("load_failed reason=%r", text)
                self._report(problem=f"cannot write the database: {text}")
                if self._stopping:
                    raise
                time.sleep(RETRY_S)
                is_in_doubt = True
                continue
            self._count(loaded)
            return

    def _count(self, loaded: Loaded) -> None:
        with self._progress_lock:
            was = self._progress
            self._report(
                events=was.events + loaded.events,
                duplicates=was.duplicates + loaded.duplicates,
                missing=was.missing + loaded.missing,
                quarantined=dict(Counter(was.quarantined) + Counter(loaded.quarantined)),
            )

    def _chores(self) -> Iterator[None]:
        """Run roll-up and retention, in small steps between loads.

        What fails because the store does not answer or memory runs out is done in the next round.
        """
        rolled = retained = 0.0
        while True:
            now = time.monotonic()
            if now - rolled > ROLL_UP_EVERY_S:
                rolled = now
                with self._tolerated("roll_up"), self._write_lock:
                    self._store.roll_up(_now_us())
                    self._store.forget_digests(_now_us())
            if now - retained > RETAIN_EVERY_S:
                retained = now
                with self._tolerated("retention"):
                    yield from self._retain()
            yield

    def _retain(self) -> Iterator[None]:
        with self._write_lock:
            if not self._store.owns_upkeep():
                return
            self._store.upkeep(_now_us())
        steps = retain(self._store, self._policy, _now_us())
        while (deleted := self._step(steps)) is not None:
            self._report(deleted=self._progress.deleted + deleted)
            yield

    @contextlib.contextmanager
    def _tolerated(self, chore: str) -> Iterator[None]:
        """Leave a failed chore for later; the caller must not hold the write lock."""
        try:
            yield
        except StoreError as error:
            log.warning("chore_failed chore=%s reason=%r", chore, str(error))
        except (duckdb.Error, MemoryError) as error:
            self._shortages[chore] += 1
            # a process that stays short of memory is replaced by one that has it
            if not is_out_of_memory(error) or self._shortages[chore] > MOST_SHORTAGES:
                raise
            with self._write_lock:
                self._store.end_transaction()
            log.warning("chore_failed chore=%s reason=%r", chore, first_line(error))
        else:
            del self._shortages[chore]

    def _step(self, steps: Iterator[int]) -> int | None:
        with self._write_lock:
            return next(steps, None)

    def _report(self, **changes: Any) -> None:
        fields = {"problem": "", **changes, "applied_seq": self._store.applied_seq}
        fields["in_quarantine"] = len(self._quarantine.entries)
        fields["quarantine_bytes"] = self._quarantine.size_bytes
        fields["dropped"] = self._store.requests_dropped
        with self._progress_lock:
            self._progress = msgspec.structs.replace(self._progress, **fields)
            self._send(self._progress)

    # below: answers, in the reader threads
    def answer(self, ask: Ask) -> Answer:
        """Answer one question; runs in a reader thread."""
        handlers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "query": self._query,
            "columns": self._columns,
            "sql": self._sql,
            "stats": self._stats,
            "audit": self._audit,
            "backup": self._backup,
            "quarantine": self._handle_quarantined,
        }
        try:
            with self._question() if ask.what in _QUESTIONS else contextlib.nullcontext():
                return Answer(ask.id, value=handlers[ask.what](ask.args))
        except QueryFailed as error:
            return Answer(ask.id, error=error.code, message=str(error))
        except IngeroError as error:
            return Answer(ask.id, error="refused", message=str(error))
        except duckdb.Error as error:
            failed = explained(error, QueryLimits())  # also before or after the query itself
            if failed.code not in ("out_of_memory", "unavailable"):
                raise
            return Answer(ask.id, error=failed.code, message=str(failed))

    @contextlib.contextmanager
    def _question(self) -> Iterator[None]:
        self._asked_s = time.monotonic()
        with self._quiet.question():
            yield

    def address_space_left(self) -> float:
        """Return the share of the limit that is still free.

        Memory that a query took is not always returned.
        """
        return 1.0 - _pages(0) / self._settings.address_space_bytes

    def _query(self, args: dict[str, Any]) -> QueryResult:
        return run_query(
            self._reader(),
            args["sql"],
            args["params"],
            msgspec.convert(args["limits"], QueryLimits),
            self._descriptions.of,
        )

    def _columns(self, args: dict[str, Any]) -> ColumnResult:
        return run_columns(
            self._reader(),
            args["sql"],
            args["params"],
            msgspec.convert(args["limits"], QueryLimits),
            self._descriptions.of,
        )

    def _sql(self, args: dict[str, Any]) -> QueryResult:
        with contextlib.closing(self._store.cursor()) as cursor:
            return run_user_sql(
                cursor, args["sql"], args["clusters"], msgspec.convert(args["limits"], QueryLimits)
            )

    def _reader(self) -> duckdb.DuckDBPyConnection:
        """Return the cursor of this reader thread."""
        if not hasattr(self._cursors, "reader"):
            self._cursors.reader = self._store.cursor()
        reader: duckdb.DuckDBPyConnection = self._cursors.reader
        return reader

    def _stats(self, _: dict[str, Any]) -> StoreStats:
        with self._write_lock:
            oldest = self._store.scalar("SELECT epoch_us(min(received_ts)) FROM events")
            return StoreStats(
                applied_seq=self._store.applied_seq,
                rows=self._store.row_counts(),
                database_bytes=self._store.used_bytes(),
                resident_bytes=_pages(1),
                buffer_bytes=self._store.scalar(_BUFFER_BYTES),
                oldest_received_s=None if oldest is None else oldest / 1e6,
            )

    def _audit(self, args: dict[str, Any]) -> None:
        with self._write_lock:
            self._store.append_audit(args["rows"])

    def _handle_quarantined(self, args: dict[str, Any]) -> list[dict[str, str]]:
        with self._write_lock:
            outcomes = handle(self._store, self._quarantine, args["what"], args["ids"])
        self._report()
        return outcomes

    def _backup(self, args: dict[str, Any]) -> int:
        with self._write_lock:
            return self._store.copy_to(Path(args["path"]))


def _step_back() -> None:
    """Lower this thread's priority: questions go first, and the journal keeps what waits."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _now_us() -> int:
    return time.time_ns() // 1000


def _pages(field: int) -> int:
    """Return the size of this process in bytes.

    Field 0 is its address space, 1 its resident memory.
    """
    return int(Path("/proc/self/statm").read_text().split()[field]) * os.sysconf("SC_PAGE_SIZE")
