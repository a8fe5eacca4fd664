"""Keeping a trace database within its size: deleting old rows, or starting a new file."""

import glob
import re
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Final

from ingero.errors import StoreError
from ingero.storage.trace.database import TraceDb, sibling_files

MAX_ROUNDS: Final = 3
TARGET_SHARE: Final = 0.9
SHORT_RETENTION_NS: Final = 600_000_000_000  # how long the five-second aggregates are kept
_TIME_COLUMNS: Final = {
    "events": "timestamp",
    "event_aggregates": "bucket",
    "event_aggregates_5s": "bucket",
    "annotations": "timestamp",
    "collectives": "start_ns",
    "system_snapshots": "timestamp",
    "causal_chains": "detected_at",
    "cgroup_schedstat": "window_end",
    "process_names": "seen_at",
    "processes": "seen_at",
    "node_aggregates": "bucket",
    "node_snapshots": "timestamp",
    "op_durations": "bucket",
    "gpu_memory": "timestamp",
}
_SPANNED: Final = ("events", "event_aggregates", "annotations", "collectives")
_STAMP: Final = re.compile(r"\d{8}T\d{6}(\.\d{9})?Z(-[0-9a-f]{8})?")


def prune(db: TraceDb, max_bytes: int) -> int:
    """Delete the oldest rows until the file is below 90 % of its limit; return how many."""
    deleted = 0
    for _ in range(MAX_ROUNDS):
        size = db.size_bytes()
        if size <= max_bytes:
            break
        deleted += _delete_oldest(db.connection, TARGET_SHARE * max_bytes / size)
        db.checkpoint()
        pages = max(1000, int(size - TARGET_SHARE * max_bytes) // 4096)
        # `execute` would stop after the first page
        db.connection.executescript(f"PRAGMA incremental_vacuum({pages})")
        db.checkpoint("TRUNCATE")
    return deleted


def _delete_oldest(connection: sqlite3.Connection, keep_share: float) -> int:
    spans = [
        connection.execute(
            f"SELECT min({_TIME_COLUMNS[t]}), max({_TIME_COLUMNS[t]}) FROM {t}"
        ).fetchone()
        for t in _SPANNED
    ]
    known = [(first, last) for first, last in spans if first is not None]
    if not known:
        return 0
    first, last = min(one for one, _ in known), max(other for _, other in known)
    cutoff = last - int((last - first) * keep_share)
    deleted = 0
    with connection:
        for table, column in _TIME_COLUMNS.items():
            deleted += connection.execute(
                f"DELETE FROM {table} WHERE {column} < ?", (cutoff,)
            ).rowcount
        connection.execute(
            "DELETE FROM sessions WHERE stopped_at != 0 AND stopped_at < ?", (cutoff,)
        )
        connection.execute(
            "DELETE FROM chain_history WHERE id NOT IN (SELECT id FROM causal_chains)"
        )
        connection.execute(
            "DELETE FROM stack_traces WHERE hash NOT IN (SELECT stack_hash FROM events)"
        )
    return deleted


def drop_short_aggregates(db: TraceDb, now_ns: int) -> None:
    """Delete old five-second aggregates, which serve only the current health score."""
    db.write(
        [("DELETE FROM event_aggregates_5s WHERE bucket < ?", [(now_ns - SHORT_RETENTION_NS,)])]
    )


def compact(db: TraceDb) -> None:
    """Move the log into the file after a recording; rewrite the file if a fifth of it is empty."""
    db.checkpoint("TRUNCATE")
    connection = db.connection
    free, total = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("freelist_count", "page_count")
    )
    if total and free / total >= 0.2:
        connection.commit()
        connection.isolation_level = None
        try:
            connection.execute("VACUUM")
        except sqlite3.OperationalError:
            return  # no room for a copy; the file is complete as it is
        finally:
            connection.isolation_level = "IMMEDIATE"
        db.checkpoint("TRUNCATE")


def roll_over(db: TraceDb, keep: int) -> Path:
    """Rename the file with a time stamp and start a new one; only the newest `keep` files stay."""
    db.checkpoint("TRUNCATE")
    db.connection.close()
    target = db.path.with_name(f"{db.path.stem}.{_stamp(time.time_ns())}{db.path.suffix}")
    try:
        for file in sibling_files(db.path)[1:]:
            file.unlink(missing_ok=True)
        db.path.rename(target)
    except OSError as error:
        db.reopen()
        raise StoreError(
            f"{db.path} could not be renamed: {error.strerror}; recording continues in it"
        ) from error
    db.reopen()
    for old in rolled_files(db.path)[:-keep] if keep else []:
        old.unlink(missing_ok=True)
    return target


def rolled_files(path: Path) -> list[Path]:
    """Return the files that were rolled over from `path`, oldest first."""
    prefix, suffix = f"{path.stem}.", path.suffix
    return sorted(
        file
        for file in path.parent.glob(f"{glob.escape(prefix)}*{glob.escape(suffix)}")
        if _STAMP.fullmatch(file.name[len(prefix) : len(file.name) - len(suffix)])
    )


def _stamp(now_ns: int) -> str:
    seconds, rest_ns = divmod(now_ns, 1_000_000_000)
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds))
    return f"{moment}.{rest_ns:09d}Z-{secrets.token_hex(4)}"
