"""Reads and decodes the journal ahead, so that the next load is ready when DuckDB has committed."""

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from ingero.storage.events.store import EventStore, Prepared
from ingero.storage.journal.frames import Frame
from ingero.storage.journal.reader import JournalReader


class Load(NamedTuple):
    """Requests of one transaction; `prepared` is None where they are still to be decoded."""

    frames: list[Frame]
    prepared: Prepared | None
    is_full: bool


class ReadAhead:
    """Loads in the order of the journal; `take` is called by one thread."""

    def __init__(
        self,
        reader: JournalReader,
        store: EventStore,
        durable: Callable[[], int],
        begin_thread: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._store = store
        self._durable = durable
        self._thread = ThreadPoolExecutor(1, "decoder", begin_thread)
        self._next: Future[Load] | None = None

    def take(self, *, ahead: bool) -> Load:
        """Return the next load, which may be empty; with `ahead`, the one after it is begun.

        Without, nothing is decoded: a request may be what ended earlier processes.
        """
        load = self._read(ahead) if self._next is None else self._next.result()
        self._next = self._thread.submit(self._read, True) if ahead and load.is_full else None
        return load

    def _read(self, decode: bool) -> Load:
        frames = self._reader.read(self._durable(), self._store.load_bytes)
        is_full = sum(len(frame.body) for frame in frames) >= self._store.load_bytes
        prepared = None
        if frames and decode:
            with contextlib.suppress(Exception):  # the load finds out which request it is
                prepared = self._store.prepare(frames)
        return Load(frames, prepared, is_full)
