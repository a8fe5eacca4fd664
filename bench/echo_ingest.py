"""`make bench-echo`: Echo's ingest beside row-by-row inserts, a bare sync and a bare Arrow insert.

Acknowledged means durable. "loaded" counts until the last event can be queried. Load generator and
server share the machine, so compare ratios.
"""

import importlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import uvloop
from tests.support.echo_process import TOKEN, EchoProcess

from bench.echo_decode import decode_rows_of_table
from bench.echo_load import Bodies, Measured, load
from bench.table import finish, judge, print_table
from ingero.contract.otlp.columns import new_columns
from ingero.storage.events.arrow import batch_table
from ingero.storage.events.file_store import STORAGE_VERSION
from ingero.storage.events.migrate import migrate

SECONDS = float(os.environ.get("BENCH_SECONDS", "4"))
OFFERED = 100_000
PER_INSERT = 123  # requests of 1,000 events: a row group has 122,880 rows


def bare_sync(folder: Path, size: int = 20_000, count: int = 300) -> tuple[float, float]:
    """Return p50 and p99 in ms of writing and syncing one request to a preallocated file."""
    path = folder / "sync"
    path.write_bytes(bytes(size * count))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    data, took = os.urandom(size), []
    for i in range(count):
        began = time.perf_counter()
        os.pwrite(fd, data, i * size)
        os.fdatasync(fd)
        took.append((time.perf_counter() - began) * 1e3)
    os.close(fd)
    path.unlink()
    return float(np.percentile(took, 50)), float(np.percentile(took, 99))


def bare_insert(folder: Path, rounds: int = 5) -> float:
    """Return the events per second of inserting decoded Arrow tables into the same table.

    Each insert fills a row group of the same format, as the loads of Echo do.
    """
    config = {"threads": 1, "storage_compatibility_version": STORAGE_VERSION}
    connection = duckdb.connect(str(folder / "bare.db"), config=config)
    migrate(connection)
    columns, senders = new_columns(), [Bodies(1000, f"node-{i:03d}") for i in range(16)]
    began, spent = time.perf_counter(), 0.0
    for number in range(rounds):
        for i in range(PER_INSERT):
            columns.add(1, senders[i % 16].next(), number * PER_INSERT + i, 0)
        table = batch_table(columns.take())
        began = time.perf_counter()
        connection.register("batch", table)
        connection.execute("INSERT INTO events SELECT * FROM batch")
        connection.unregister("batch")
        spent += time.perf_counter() - began
    connection.close()
    return rounds * PER_INSERT * 1000 / spent


def memory_mb(echo: EchoProcess) -> float:
    """Return the memory of both processes; what they share counts once."""
    kilobytes = 0
    for pid in (echo.process.pid, echo.store_pid()):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        kilobytes += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes * 1024 / 1e6


def wait_loaded(echo: EchoProcess) -> None:
    request = urllib.request.Request(f"http://{echo.addresses['health']}/metrics")
    request.add_header("Authorization", f"Bearer {TOKEN}")
    for _ in range(600):
        text = urllib.request.urlopen(request, timeout=30).read().decode()
        if "\ningero_echo_backlog_requests 0\n" in text:
            return
        time.sleep(0.1)
    raise SystemExit("Echo did not load its backlog within a minute")


@dataclass(frozen=True, slots=True)
class Ingested:
    """One load of Echo: loaded events per second, memory, and the CPU of Echo and its sender."""

    measured: Measured
    loaded: float
    memory_mb: float
    cpu_us: float  # of an event, from its arrival until it can be queried
    sender_us: float  # what a sender on another machine would leave to Echo


def measure_echo(folder: Path, batch: int, connections: int, rate: float = 0) -> Ingested:
    folder.mkdir()
    with EchoProcess(folder) as echo:
        port = int(echo.addresses["http"].rpartition(":")[2])
        cpu_s = echo.cpu_s()
        measured = uvloop.run(
            load(
                port, batch=batch, connections=connections, seconds=SECONDS, rate=rate, token=TOKEN
            )
        )
        wait_loaded(echo)
        loaded = measured.events / (time.perf_counter() - measured.began)
        used = memory_mb(echo)
        cpu_s = echo.cpu_s() - cpu_s
    per_event = 1e6 / max(measured.events, 1)
    return Ingested(measured, loaded, used, cpu_s * per_event, measured.cpu_s * per_event)


def measure_rows(folder: Path, batch: int, connections: int) -> Measured:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "bench.echo_rows", str(port), str(folder)])
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        return uvloop.run(load(port, batch=batch, connections=connections, seconds=SECONDS))
    finally:
        server.terminate()
        server.wait()


def row(name: str, measured: Measured, found: Ingested | None = None) -> tuple:
    quantiles = measured.percentile(50), measured.percentile(99)
    loaded, *rest = (
        (found.loaded, found.memory_mb, found.cpu_us, found.sender_us) if found else ("",) * 4
    )
    return (name, measured.rate, loaded, *quantiles, *rest, measured.errors)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="echo-bench-", dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        sync_p50, sync_p99 = bare_sync(folder)
        insert_rate = bare_insert(folder)
        reference = measure_rows(folder, 100, 8)
        table = [row("row by row, batch 100", reference)]
        echo: dict[str, Ingested] = {}
        for label, batch, connections, rate in (
            ("1", 1, 64, 0),
            ("100", 100, 64, 0),
            ("1000", 1000, 16, 0),
            ("offered", 100, 64, OFFERED),
        ):
            echo[label] = measure_echo(folder / label, batch, connections, rate)
            title = f"echo, {OFFERED:,} events/s offered" if rate else f"echo, batch {label}"
            table.append(row(title, echo[label].measured, echo[label]))
        table.append(("bare Arrow insert", insert_rate, insert_rate, *("",) * 6))
        table.append(("bare fdatasync of 20 kB", "", "", sync_p50, sync_p99, *("",) * 4))
        header = (
            "",
            "acked events/s",
            "loaded events/s",
            "ack p50 ms",
            "ack p99 ms",
            "MB",
            "CPU µs/event",
            "sender's",
            "errors",
        )
        print_table("Echo ingest: acknowledged after it is durable", header, table)
        decoded = decode_rows_of_table()
        header = ("", "bytes", "check µs", "decode µs", "purely µs")
        print_table("CPU per event of one kind, in requests of 1,000 events", header, decoded)
        status = judge(
            [
                *requirements(reference, echo, insert_rate, sync_p99),
                (
                    "every kind of event is decoded at least 5x as fast as purely",
                    all(purely >= 5 * compiled for *_, compiled, purely in decoded),
                    f"{min(purely / compiled for *_, compiled, purely in decoded):.1f}x at least",
                ),
            ]
        )
    if importlib.util.find_spec("bench.echo_questions"):  # stock questions on 10 million events
        status |= importlib.import_module("bench.echo_questions").run()
    finish(status)


def requirements(
    reference: Measured,
    echo: dict[str, Ingested],
    insert: float,
    sync_p99: float,
) -> list:
    ratio = echo["100"].measured.rate / reference.rate
    thousand, offered = echo["1000"].measured, echo["offered"].measured
    loaded, used_mb = echo["1000"].loaded, echo["1000"].memory_mb
    p99 = offered.percentile(99)
    held = offered.rate >= 0.98 * OFFERED
    return [
        ("at least 100x the row-by-row reference at batch 100", ratio >= 100, f"{ratio:.0f}x"),
        (
            "batch 1,000: at least 200,000 durable events/s, or half a bare Arrow insert",
            thousand.rate >= 200_000 or thousand.rate >= 0.5 * insert,
            f"{thousand.rate:,.0f}/s, {thousand.rate / insert:.2f} of the bare insert",
        ),
        (
            "batch 1,000: at least 350,000 loaded events/s, or 0.65 of a bare Arrow insert",
            loaded >= 350_000 or loaded >= 0.65 * insert,
            f"{loaded:,.0f}/s, {loaded / insert:.2f} of the bare insert",
        ),
        ("batch 1,000: at most 500 MB", used_mb <= 500, f"{used_mb:.0f} MB"),
        (
            "100,000 events/s held with ack p99 below 50 ms, or within 5x of a bare sync's p99",
            held and (p99 < 50 or p99 <= 5 * sync_p99),
            f"{offered.rate:,.0f}/s, p99 {p99:.1f} ms, bare sync {sync_p99:.2f} ms",
        ),
    ]


if __name__ == "__main__":
    main()
