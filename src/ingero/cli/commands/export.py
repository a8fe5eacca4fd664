"""`ingero export`: write a trace database as a timeline for Perfetto."""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ingero.cli.fanout.options import FAIL_ON_PARTIAL, fanout_options, resolve_fanout
from ingero.cli.params import Duration
from ingero.cli.settings import TRACE_DB
from ingero.config.ingero import trace_database
from ingero.contract.timeline.json_writer import JsonTimeline
from ingero.contract.timeline.model import TimelineWriter
from ingero.contract.timeline.packet_writer import PacketTimeline
from ingero.core.counted import counted
from ingero.errors import StoreError
from ingero.files import replacing_output
from ingero.storage.trace.reading import reading
from ingero.storage.trace.timeline import FIRST_NS, TimelineReader

if TYPE_CHECKING:
    from ingero.cli.commands.export_nodes import NodesTimeline

FORMATS = {
    "perfetto": "ingero-trace.json",
    "perfetto-proto": "ingero-trace.pftrace",
}  # with the file names used without --output
PROGRESS_EVERY_S = 0.5
LIVE_SINCE_S = 3600.0
FANOUT_TIMEOUT_S = 10.0


@click.command()
@click.option(
    "--format",
    "kind",
    required=True,
    type=click.Choice(list(FORMATS)),
    help="Trace Event JSON for any reader, or native Perfetto packets.",
)
@TRACE_DB
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write, or `-` for standard output; without it ingero-trace.json or "
    "ingero-trace.pftrace.",
)
@click.option(
    "--since",
    type=Duration(),
    help="Only this last period, such as 10m or 2d; without it the whole file, "
    "or one hour with --nodes.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=1000,
    show_default=True,
    help="Events to read from each node, with --nodes.",
)
@fanout_options(FANOUT_TIMEOUT_S)
@FAIL_ON_PARTIAL
def command(
    kind: str, db: Path | None, output: Path | None, since: float | None, limit: int, **fanout: Any
) -> int:
    """Write a timeline for ui.perfetto.dev.

    Every node has a track, and causal chains are coloured markers. `perfetto` is JSON that other
    readers know, too. `perfetto-proto` has half the size and adds processes by name and rank,
    threads, counters, and arrows from the cause to the symptom of each causal chain.

    The stored time of context switches, disk requests and socket calls is their end. In
    `perfetto-proto` they are shown where they happened; in the JSON they begin at the stored time,
    as other readers expect.

    Counters are GPU calls per second, CPU, memory, load and the health score of each node, and with
    --nodes the clock offset of each node. The score is computed from the recording, by minute and
    with the formula of docs/explain/health-score.md, with the median minute as baseline throughput
    and without the compute signal. The scores that were pushed are in Echo:
    `ingero-echo ask event_history metric_name=ingero.node.health_score`.

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
        from ingero.cli.commands.export_nodes import NodesTimeline

        live = NodesTimeline(options, since or LIVE_SINCE_S, limit)
        writer = _writer(kind, live)
        _report(writer, write_timeline(output, live.parts(writer)), output)
        return live.close()
    path = trace_database(db)
    with contextlib.suppress(OSError):  # either file may be missing
        if output.samefile(path):
            raise StoreError(
                f"{output} is the trace database itself; write the timeline to another file"
            )
    with reading(path) as connection:
        reader = TimelineReader(
            connection, FIRST_NS if since is None else time.time_ns() - int(since * 1e9)
        )
        writer = _writer(kind, reader)
        _report(writer, write_timeline(output, timeline_parts(reader, writer)), output)
    return 0


def _writer(kind: str, read: "TimelineReader | NodesTimeline") -> TimelineWriter:
    return (
        JsonTimeline(read.nodes)
        if kind == "perfetto"
        else PacketTimeline(read.nodes, read.processes())
    )


def _report(writer: TimelineWriter, size: int, output: Path) -> None:
    print(
        f"{counted(writer.events, 'event')}, {counted(writer.markers, 'chain')}, "
        f"{size / 1e6:.3g} MB: {output}",
        file=sys.stderr,
    )
    print("open it at ui.perfetto.dev (the file stays on this machine)", file=sys.stderr)


def timeline_parts(reader: TimelineReader, writer: TimelineWriter) -> Iterator[bytes]:
    """Yield the encoded timeline, part by part."""
    chains = reader.chains()
    if isinstance(writer, PacketTimeline):
        chains = reader.linked(chains)
        writer.expect_chains(chains)
    yield writer.begin()
    for chunk in reader.event_chunks():
        yield writer.slices(chunk)
    for chunk in reader.collective_chunks():
        yield writer.slices(chunk)
    yield writer.chains(chains)
    yield writer.counters(list(reader.counters()))
    yield writer.end()


def write_timeline(output: Path, parts: Iterator[bytes]) -> int:
    """Write the parts and return the number of bytes.

    A file appears under its name only when it is complete; a pipe or a device is written directly.
    """
    if str(output) == "-":
        return _write(sys.stdout.buffer, parts)
    try:
        if output.exists() and not output.is_file():
            with output.open("wb") as special:
                return _write(special, parts)
        with replacing_output(output) as file:
            return _write(file, parts)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write {output}: {error.strerror}") from None


def _write(file: IO[bytes], parts: Iterator[bytes]) -> int:
    size, shown = 0, time.monotonic() + 2.0
    for part in parts:
        size += file.write(part)
        if sys.stderr.isatty() and time.monotonic() > shown:
            shown = time.monotonic() + PROGRESS_EVERY_S
            print(f"\r\x1b[K{size / 1e6:,.0f} MB written", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return size
