"""`ingero export`: a trace database as a timeline for Perfetto."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click

from ingero.cli.fanout_options import FAIL_ON_PARTIAL, fanout_options, resolve_fanout
from ingero.cli.params import TRACE_DB, Duration
from ingero.config.ingero import trace_database
from ingero.contract.timeline import JsonTimeline, PacketTimeline, TimelineNode, TimelineWriter
from ingero.errors import StoreError
from ingero.storage.timeline import TimelineReader
from ingero.storage.trace_reading import reading

FORMATS = {"perfetto": "ingero-trace.json", "perfetto-proto": "ingero-trace.pftrace"}  # and where they go unless said
PROGRESS_EVERY_S = 0.5
LIVE_SINCE_S = 3600.0
FANOUT_TIMEOUT_S = 10.0


@click.command()
@click.option(
    "--format",
    "kind",
    required=True,
    type=click.Choice(list(FORMATS)),
    help="JSON that any reader knows, or native packets.",
)
@TRACE_DB
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write, `-` for standard output [default: ingero-trace.json or .pftrace here].",
)
@click.option(
    "--since", type=Duration(), help="Only the last 10m, 1h, 2d … [default: the whole file; 1h with --nodes]."
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Events per node, with --nodes."
)
@fanout_options(FANOUT_TIMEOUT_S)
@FAIL_ON_PARTIAL
def command(kind: str, db: Path | None, output: Path | None, since: float | None, limit: int, **fanout: Any) -> int:
    """Write a timeline that opens in ui.perfetto.dev: a track per node, causal chains as coloured markers.

    \b
    Examples:
      ingero export --format perfetto
      ingero export --format perfetto -d cluster.db -o cluster.json
      ingero export --format perfetto-proto --since 10m -o now.pftrace
      ingero export --format perfetto --nodes gpu-node-01:8080,gpu-node-02:8080 -o live.json
    """
    output = output or Path(FORMATS[kind])
    options = resolve_fanout(fanout, FANOUT_TIMEOUT_S, is_local=db is not None)
    if options is not None:
        from ingero.cli.export_nodes import NodesTimeline

        live = NodesTimeline(options, since or LIVE_SINCE_S, limit)
        live_writer = _writer(kind, live.nodes)
        size = write_timeline(output, live.parts(live_writer))
        _report(live_writer.events, live.chain_count, size, output)
        return live.close()
    path = trace_database(db)
    if output.resolve() == path.resolve():
        raise StoreError(f"{output} is the trace database itself; write the timeline to another file")
    since_ns = 0 if since is None else time.time_ns() - int(since * 1e9)
    with reading(path) as connection:
        reader = TimelineReader(connection, since_ns)
        writer = _writer(kind, reader.nodes)
        size = write_timeline(output, timeline_parts(reader, writer))
        chains = len(reader.chains())
    _report(writer.events, chains, size, output)
    return 0


def _writer(kind: str, nodes: list[TimelineNode]) -> JsonTimeline | PacketTimeline:
    return JsonTimeline(nodes) if kind == "perfetto" else PacketTimeline(nodes)


def _report(events: int, chains: int, size: int, output: Path) -> None:
    print(f"{events:,} events, {chains:,} chains, {size / 1e6:.3g} MB: {output}", file=sys.stderr)
    print("open it at ui.perfetto.dev (the file stays on this machine)", file=sys.stderr)


def timeline_parts(reader: TimelineReader, writer: TimelineWriter) -> Iterator[bytes]:
    """The whole timeline, part by part."""
    chains = reader.chains()
    if isinstance(writer, PacketTimeline):
        writer.expect_chains(chains)
    yield writer.begin()
    for chunk in reader.event_chunks():
        yield writer.slices(chunk)
    for chunk in reader.collective_chunks():
        yield writer.slices(chunk)
    yield writer.chains(chains)
    yield writer.counters(reader.counters())
    yield writer.end()


def write_timeline(output: Path, parts: Iterator[bytes]) -> int:
    """Write atomically: the name appears when the file is complete. Returns bytes written."""
    if str(output) == "-":
        return _write(sys.stdout.buffer, parts)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            size = _write(file, parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(output)
    except OSError as error:
        raise StoreError(f"cannot write {output}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return size


def _write(file: BinaryIO, parts: Iterator[bytes]) -> int:
    size, shown = 0, time.monotonic() + 2.0
    for part in parts:
        size += file.write(part)
        if sys.stderr.isatty() and time.monotonic() > shown:
            shown = time.monotonic() + PROGRESS_EVERY_S
            print(f"\r\x1b[K{size / 1e6:,.0f} MB written", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return size
