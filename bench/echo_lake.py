"""`make bench-lake`: loads and a tiny query on a real lake, beside the embedded store.

The lake is a PostgreSQL and an S3 service on this machine, so all of them share its cores: compare
the two stores with each other. Both load the same requests in turns, in loads of the lake's size.
"""

import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
from tests.support.lakes import lake_for, postgres

from bench.echo_load import Bodies
from bench.table import finish, judge, print_table
from ingero.storage.events.file_store import DuckDbStore
from ingero.storage.events.lake.store import LakeStore, tidy_statements
from ingero.storage.events.store import EventStore
from ingero.storage.journal.frames import Frame

MEMORY_BYTES = 1 << 30
LOADS = 6
PER_LOAD = LakeStore.load_bytes // 200_000  # requests of 1,000 events
QUERIES = 100
TINY = "SELECT ts, value_double FROM events WHERE node_id = 'node-003' ORDER BY ts DESC LIMIT 1"
FILES = "SELECT sum(file_count)::BIGINT FROM ducklake_table_info('lake')"


def loads() -> list[list[Frame]]:
    """Return requests that do not repeat."""
    senders = [Bodies(1000, f"node-{i:03d}") for i in range(16)]
    now_us = time.time_ns() // 1000
    return [
        [
            Frame(seq + 1, seq, now_us, 1, senders[seq % 16].next())
            for seq in range(number * PER_LOAD, (number + 1) * PER_LOAD)
        ]
        for number in range(LOADS)
    ]


def seconds_of(store: EventStore, frames: list[Frame]) -> float:
    began = time.perf_counter()
    store.load(frames)
    return time.perf_counter() - began


def quantiles_ms(store: EventStore) -> tuple[float, float]:
    """Return p50 and p95 of the tiny query, each time on a cursor of its own."""
    took = []
    for _ in range(QUERIES):
        cursor = store.cursor()
        began = time.perf_counter()
        assert cursor.execute(TINY).fetchall()
        took.append((time.perf_counter() - began) * 1e3)
        cursor.close()
    return float(np.percentile(took, 50)), float(np.percentile(took, 95))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="echo-lake-") as name:
        folder = Path(name)
        (folder / "own").mkdir()
        address, secrets = lake_for(folder / "lake", in_bucket=True)
        postgres().execute("postgres", "ALTER SYSTEM SET fsync = on")  # as in production
        postgres().execute("postgres", "SELECT pg_reload_conf()")
        stores: dict[str, EventStore] = {
            "embedded": DuckDbStore(folder / "own" / "echo.db", MEMORY_BYTES, 1),
            "lake": LakeStore(address, secrets, folder / "lake", MEMORY_BYTES, 1),
        }
        spent = dict.fromkeys(stores, 0.0)
        for number, frames in enumerate(loads()):
            for kind, store in stores.items():
                took = seconds_of(store, frames)
                spent[kind] += took if number else 0.0  # the first one creates much
        before = stores["lake"].scalar(FILES)
        events = (LOADS - 1) * PER_LOAD * 1000
        rates = {kind: events / spent[kind] for kind in stores}
        asked = {kind: quantiles_ms(store) for kind, store in stores.items()}
        now_us = time.time_ns() // 1000
        for statement in itertools.islice(tidy_statements(now_us), 2):
            stores["lake"].scalar(statement)
        files = {"embedded": "1", "lake": f"{before}, then {stores['lake'].scalar(FILES)}"}
        rows = [(kind, rates[kind], *asked[kind], files[kind]) for kind in stores]
        header = ("store", "loaded events/s", "tiny p50 ms", "tiny p95 ms", "files")
        print_table(f"{LOADS - 1} loads of {PER_LOAD:,},000 events by one writer", header, rows)
        for store in stores.values():
            store.close()
        ratio = rates["lake"] / rates["embedded"]
        finish(
            judge(
                [
                    ("one writer at least 0.7x the embedded store", ratio >= 0.7, f"{ratio:.2f}x"),
                    (
                        "tiny query on the lake: p95 below 100 ms",
                        asked["lake"][1] < 100,
                        f"{asked['lake'][1]:.0f} ms",
                    ),
                ]
            )
        )


if __name__ == "__main__":
    main()
