"""Echo without its listeners: lock, journal, ingest and store process, started in order."""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from ingero.echo.ingest import Accepted, Ingest
from ingero.echo.store.client import StoreClient
from ingero.echo.store.wire import Progress, StoreSettings
from ingero.errors import StoreDamaged, StoreError
from ingero.storage.journal.inspect import Inspection, inspect_journal
from ingero.storage.journal.writer import SEGMENT_BYTES, JournalWriter
from ingero.storage.lock import DatabaseLock
from ingero.storage.quarantine import DEFAULT_MAX_BYTES, quarantine_directory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Paths and limits of Echo's data."""

    database: Path
    address_space_bytes: int = 4 << 30
    threads: int = 1
    retention_s: float = 7 * 86400.0
    rollup_retention_s: float = 90 * 86400.0
    max_database_bytes: int = 0
    max_backlog_bytes: int = 2 << 30
    max_quarantine_bytes: int = DEFAULT_MAX_BYTES
    segment_bytes: int = SEGMENT_BYTES
    lake: str = ""
    lake_secrets: Path | None = None

    @property
    def journal(self) -> Path:
        """The folder of the journal, beside the database."""
        return journal_directory(self.database)


def journal_directory(database: Path) -> Path:
    """Return the folder of a database's journal."""
    return database.with_name(database.name + ".journal")


class Engine:
    """What the listeners and the question API work on."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._lock: DatabaseLock | None = None
        self.ingest: Ingest
        self.store = StoreClient(
            StoreSettings(
                database=str(settings.database),
                journal=str(settings.journal),
                quarantine=str(quarantine_directory(settings.database)),
                address_space_bytes=settings.address_space_bytes,
                threads=settings.threads,
                retention_s=settings.retention_s,
                rollup_retention_s=settings.rollup_retention_s,
                max_database_bytes=settings.max_database_bytes,
                max_quarantine_bytes=settings.max_quarantine_bytes,
                lake=settings.lake,
                lake_secrets=str(settings.lake_secrets or ""),
            ),
            self._on_progress,
        )

    async def start(self) -> None:
        """Open everything and begin to load what was acknowledged before.

        On a StoreError nothing stays open.
        """
        settings = self._settings
        try:
            settings.journal.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot write {settings.journal}: {error.strerror}") from None
        self._lock = DatabaseLock(settings.database)
        try:
            applied = await self.store.start()
            found = self._check_journal(applied)
            journal = JournalWriter(
                settings.journal, max(found.last_seq, applied), settings.segment_bytes
            )
        except BaseException:
            await self.store.stop()
            self._lock.release()
            raise
        self.ingest = Ingest(journal, settings.max_backlog_bytes, self.store.set_durable)
        self.ingest.resume(applied, found.waiting_bytes)
        self.ingest.start(asyncio.get_running_loop())
        self.store.set_durable(journal.last_seq)

    async def stop(self) -> None:
        """Write requests in flight to the journal, load them, and close."""
        self.ingest.stop()
        await asyncio.sleep(0)  # let the last acknowledgements be sent
        self.store.set_durable(self.ingest.durable_seq)
        await self.store.stop()
        if self._lock is not None:
            self._lock.release()

    async def submit(self, signal: int, body: bytes, wait_s: float | None = None) -> Accepted:
        """Store a request: durable when this returns, and with `wait_s` also visible to queries."""
        accepted = await self.ingest.submit(signal, body)
        if wait_s is not None:
            await self.store.wait_applied(accepted.seq, wait_s)
        return accepted

    @property
    def problem(self) -> str:
        """Why Echo does not work normally, or an empty string."""
        if self.store.pid is None:
            return "the store process is restarting"
        return self.ingest.problem or self.store.progress.problem

    def _check_journal(self, applied: int) -> Inspection:
        found = inspect_journal(self._settings.journal, applied)
        if found.problems:
            raise StoreDamaged(
                f"{self._settings.journal}: {'; '.join(found.problems)}. Nothing was changed. Put "
                "the missing files back, or run `ingero-echo verify --repair` to continue without "
                "the lost requests"
            )
        log.info(
            "journal_open",
            extra={"replay_requests": found.frames, "torn_bytes": found.dropped_bytes},
        )
        return found

    def _on_progress(self, progress: Progress) -> None:
        self.ingest.set_applied(progress.applied_seq)
