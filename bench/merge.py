"""`make bench-merge`: merge against a row loop, on the same databases in the same run."""

import sqlite3
import tempfile
import time
from pathlib import Path

from bench.table import finish, judge, peak_rss_mb, print_table
from ingero.storage.merge.merge import merge
from ingero.storage.trace.database import EVENT_COLUMNS, insert_sql
from ingero.storage.trace.schema import create_schema

NODES, EVENTS = 3, 333_000


def make(path: Path, node: str, events: int = EVENTS) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    create_schema(connection)
    start = 1_775_000_000_000_000_000
    connection.executemany(
        insert_sql("events", EVENT_COLUMNS),
        (
            (f"{node}:{i}", start + i * 1000, 100 + i % 8, 200 + i % 32, 1 + i % 5, 1 + i % 4,
             i % 99991, 0, i,
             0, 0, 0, node, 0, 0, 8, "python", 0)
            for i in range(events)
        ),
    )  # fmt: skip
    connection.commit()
    connection.close()


def row_loop(sources: list[Path], output: Path) -> None:
    """Merge row by row: read, insert, commit every 500 rows, with indexes in place."""
    target = sqlite3.connect(output)
    create_schema(target)
    columns = ", ".join(EVENT_COLUMNS)
    for path in sources:
        source = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        for number, row in enumerate(source.execute(f"SELECT {columns} FROM events")):
            target.execute(insert_sql("events", EVENT_COLUMNS), row)
            if number % 500 == 0:
                target.commit()
        source.close()
    target.commit()
    target.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sources = [Path(folder) / f"node-{i}.db" for i in range(NODES)]
        for path in sources:
            make(path, path.stem)
        begin = time.perf_counter()
        row_loop(sources, Path(folder) / "loop.db")
        loop_s = time.perf_counter() - begin
        begin = time.perf_counter()
        summary = merge(sources, Path(folder) / "merged.db")
        ours_s = time.perf_counter() - begin
    total = NODES * EVENTS
    assert summary.events == total
    print_table(
        f"merge of {NODES} x {EVENTS:,} events with all indexes",
        ("way", "seconds", "events/s", "ratio"),
        [
            ("row loop", loop_s, total / loop_s, 1.0),
            ("ingero merge", ours_s, total / ours_s, loop_s / ours_s),
        ],
    )
    requirements = [
        ("at least 5x the row loop", loop_s / ours_s >= 5, f"{loop_s / ours_s:.1f}x"),
        ("at least 200,000 events/s", total / ours_s >= 200_000, f"{total / ours_s:,.0f}/s"),
        ("memory under 300 MB", peak_rss_mb() < 300, f"{peak_rss_mb():.0f} MB"),
    ]
    finish(judge(requirements))


if __name__ == "__main__":
    main()
