"""`ingero merge`: merge trace databases of several nodes into one file."""

import sys
from pathlib import Path

import click

from ingero.cli.params import AS_JSON, Duration
from ingero.cli.show.table import print_json, printable
from ingero.storage.merge.merge import MergeSummary, merge

MAX_WARNINGS = 10


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write; it appears only when it is complete.",
)
@click.option(
    "--force-node", metavar="NAME", help="Node of files recorded before node names existed."
)
@click.option(
    "--skip-bad", is_flag=True, help="Leave damaged or foreign files out instead of stopping."
)
@click.option(
    "--clock-skew-threshold",
    type=Duration(),
    default="100ms",
    show_default=True,
    help="Warn when the first events of two nodes are further apart.",
)
@AS_JSON
def command(
    sources: tuple[Path, ...],
    output: Path,
    force_node: str | None,
    skip_bad: bool,
    clock_skew_threshold: float,
    as_json: bool,
) -> None:
    """Merge trace databases of several nodes into one file.

    `explain`, `query` and `export` read the result. Sources are opened read-only and never changed,
    even when they have a write-ahead log or are being recorded.

    Two copies of one file count once, even when one is older. When two recordings have the same
    node name and both count from 1, all events are kept and those of the second get new numbers.

    \b
    Examples:
      ingero merge node-01.db node-02.db -o cluster.db
      ingero merge old.db -o named.db --force-node gpu-node-07
    """
    try:
        summary = merge(
            sources,
            output,
            force_node=force_node,
            skip_bad=skip_bad,
            skew_threshold_s=clock_skew_threshold,
            progress=_progress,
        )
    finally:
        _show("")
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(summary, enc_hook=str))
    _report(summary, output)


def _progress(done: int, total: int, path: Path) -> None:
    _show(
        f"merging {done + 1}/{total} {printable(path.name)}" if done < total else "building indexes"
    )


def _show(text: str) -> None:
    """Print a line that the next one replaces, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _report(summary: MergeSummary, output: Path) -> None:
    width = max(len(str(file.path)) for file in summary.files)
    for file in summary.files:
        if file.skipped:
            print(f"  {file.path!s:<{width}}  skipped: {file.skipped}", file=sys.stderr)
            continue
        counts = f"{file.events:>9,} events  {file.chains:>5,} chains  {file.stacks:>5,} stacks"
        known = (
            f"  ({file.known_events:,} events of it were there already)"
            if file.known_events
            else ""
        )
        print(f"  {file.path!s:<{width}}  {counts}{known}", file=sys.stderr)
        for count, what in (
            (file.oversized_stacks, "stacks larger than 64 KiB were left out"),
            (
                file.incomplete_events,
                "events without a time, process, kind or duration were left out",
            ),
            (
                file.renumbered_events,
                "events got new numbers: other events of a node of that name had theirs",
            ),
        ):
            if count:
                print(f"WARNING: {file.path}: {count:,} {what}", file=sys.stderr)
    widest = sorted(summary.possible_skew, key=lambda pair: -pair[2])
    for one, other, seconds in widest[:MAX_WARNINGS]:
        print(
            f"WARNING: the first events of {printable(one)} and {printable(other)} are "
            f"{seconds:.3g} s apart: their clocks may differ, or one recording simply began later",
            file=sys.stderr,
        )
    if len(widest) > MAX_WARNINGS:
        print(
            f"WARNING: the same holds for {len(widest) - MAX_WARNINGS:,} more pairs of nodes",
            file=sys.stderr,
        )
    print(
        f"{output}: {summary.events:,} events, {summary.chains:,} chains, "
        f"{summary.stacks:,} unique stacks from {len(summary.nodes)} node(s)",
        file=sys.stderr,
    )
