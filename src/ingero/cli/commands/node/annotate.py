"""`ingero annotate`: mark a step, epoch or phase in the running recording of this node."""

import sys
from pathlib import Path

import click

from ingero.contract.annotations import SOCKET_NAME, Annotation, encode_annotation
from ingero.errors import MalformedInput


@click.command()
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE…")
@click.option(
    "--pid",
    type=click.IntRange(1),
    help="Process that the annotation is about; the whole node if omitted.",
)
@click.option(
    "--at",
    "at_ns",
    type=click.IntRange(1),
    help="Unix time in nanoseconds; the current time if omitted.",
)
@click.option(
    "--span-start",
    type=click.IntRange(1),
    help="Beginning of a period, as Unix time in nanoseconds.",
)
@click.option(
    "--span-end",
    type=click.IntRange(1),
    help="End of that period, as Unix time in nanoseconds.",
)
@click.option(
    "--socket",
    "path",
    type=click.Path(path_type=Path),
    help="Path of the recorder's socket; found automatically if omitted.",
)
def command(
    labels: tuple[str, ...], pid: int | None, at_ns: int | None, span_start: int | None,
    span_end: int | None, path: Path | None,
) -> None:  # fmt: skip
    """Mark a step, epoch or phase in the running recording.

    The labels are stored by `ingero trace --annotate` on this node. They describe a moment, or with
    --span-start and --span-end a period. Only the owner of a process, or root, may annotate it.

    A program can write the same to the socket itself, one JSON object per line:
    docs/reference/trace-database.md#annotations.

    \b
    Examples:
      ingero annotate step=1200 epoch=3 --pid 4711
      ingero annotate phase=warm-up
      ingero annotate phase=checkpoint --span-start 1768478400000000000 \\
          --span-end 1768478412000000000
    """
    from ingero.agent.host.sockets import find_socket
    from ingero.agent.recording.annotate import send_annotation

    pairs = dict(_pair(label) for label in labels)
    note = Annotation(
        labels=pairs,
        at_ns=at_ns or 0,
        pid=pid or 0,
        span_start_ns=span_start or 0,
        span_end_ns=span_end or 0,
    )
    line = encode_annotation(note)
    send_annotation(path or find_socket(SOCKET_NAME), line)
    print(
        f"annotated {', '.join(f'{key}={value}' for key, value in pairs.items())}", file=sys.stderr
    )


def _pair(label: str) -> tuple[str, str]:
    key, equals, value = label.partition("=")
    if not equals:
        raise MalformedInput(f"{label!r} is not KEY=VALUE, for example step=120")
    return key, value
