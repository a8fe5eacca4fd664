"""Loading requests so that one of them cannot stop the others.

A batch that fails is loaded again by halves, until the request that the database refuses is alone.
That request goes to the quarantine, and the applied sequence moves past it in one transaction.
Before that, a request that is known to be sound is tried: if it fails as well, the store is at
fault, and nothing is set aside.
"""

import logging
from collections.abc import Sequence
from typing import Final

import duckdb

from ingero.errors import IngeroError, MalformedInput, StoreError, TooLarge
from ingero.storage.events.reasons import REFUSED, UNREADABLE
from ingero.storage.events.store import EventStore, Loaded, Prepared, first_line
from ingero.storage.journal.frames import Frame, request_digest
from ingero.storage.quarantine import Quarantine, Quarantined

log = logging.getLogger(__name__)

_STORE_ERRORS: Final = (
    duckdb.OperationalError,
    duckdb.FatalException,
    duckdb.InternalError,
    duckdb.InterruptException,
)
_MEMORY_SIGNS: Final = ("allocat", "out of memory", "bad_alloc", "thread")


def load_safely(
    store: EventStore,
    quarantine: Quarantine,
    frames: Sequence[Frame],
    prepared: Prepared | None = None,
) -> Loaded:
    """Load requests; set aside those that cannot be loaded. Errors of the store itself rise."""
    before = store.applied_seq
    try:
        loaded = store.load(frames, quarantine.settled(before), prepared)
    except Exception as error:  # whatever a request can cause, others must not suffer from it
        if not is_about_data(error):
            raise
        if len(frames) == 1:
            store.check_works()
            reason = UNREADABLE if isinstance(error, MalformedInput | TooLarge) else REFUSED
            return set_aside(store, quarantine, frames[0], reason, first_line(error))
    else:
        _remove_loaded(store, quarantine, before)
        return loaded
    middle = len(frames) // 2
    first = load_safely(store, quarantine, frames[:middle])
    return first + load_safely(store, quarantine, frames[middle:])


def set_aside(
    store: EventStore, quarantine: Quarantine, frame: Frame, reason: str, message: str
) -> Loaded:
    """Put a request into quarantine and move past it; without room for it, it is dropped."""
    is_kept = quarantine.put(frame, reason, message)
    store.skip(frame.seq, is_dropped=not is_kept)
    log.error(
        "request_quarantined seq=%d kept=%s reason=%s bytes=%d message=%r",
        frame.seq,
        is_kept,
        reason,
        len(frame.body),
        message,
    )
    return Loaded(0, 1, quarantined={reason: 1} if is_kept else {}, dropped=int(not is_kept))


def settle(store: EventStore, quarantine: Quarantine) -> None:
    """Remove from quarantine what a crash left there although the database has it."""
    for digest in [digest for digest in quarantine.entries if store.has(digest)]:
        quarantine.remove(digest)


def handle(
    store: EventStore, quarantine: Quarantine, what: str, prefixes: Sequence[str]
) -> list[dict[str, str]]:
    """Retry or drop the requests with these ids, or all of them; return the outcome of each."""
    entries = [quarantine.find(prefix) for prefix in prefixes] or quarantine.in_order()
    outcomes = []
    for entry in entries:
        problem = ""
        if what == "retry":
            problem = retry(store, quarantine, entry)
        else:
            quarantine.remove(bytes.fromhex(entry.id))
        done = "loaded" if what == "retry" else "dropped"
        outcomes.append({"id": entry.id, "outcome": "kept" if problem else done, "why": problem})
        log.warning("quarantine_%s seq=%d id=%s why=%r", what, entry.seq, entry.id, problem)
    return outcomes


def retry(store: EventStore, quarantine: Quarantine, entry: Quarantined) -> str:
    """Load a request from quarantine; return why it stays there, or an empty string."""
    try:
        frame = quarantine.read(entry)
        store.load_late(frame)
    except Exception as error:
        if isinstance(error, StoreError):
            return str(error)
        if not is_about_data(error):
            raise
        return first_line(error)
    quarantine.remove(request_digest(frame.signal, frame.body))
    return ""


def is_about_data(error: Exception) -> bool:
    """Return whether an error was caused by what a request holds, not by memory or disk."""
    if isinstance(error, MalformedInput | TooLarge):
        return True
    if isinstance(error, (*_STORE_ERRORS, IngeroError, MemoryError, OSError)):
        return False
    return not any(sign in str(error).lower() for sign in _MEMORY_SIGNS)


def _remove_loaded(store: EventStore, quarantine: Quarantine, before: int) -> None:
    """Remove what was set aside before a crash and could be loaded now."""
    if any(before < entry.seq <= store.applied_seq for entry in quarantine.entries.values()):
        settle(store, quarantine)
