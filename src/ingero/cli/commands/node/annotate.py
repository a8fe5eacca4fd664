"""`ingero annotate`: mark a step, epoch or phase in the recording that runs on this node."""

import sys
from pathlib import Path

import click

from ingero.contract.annotations import SOCKET_NAME, Annotation, encode_annotation
from ingero.errors import MalformedInput


@click.command()
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE…")
@click.option(
    "--pid", type=click.IntRange(1), help="The process it is about [default: the whole node]."
)
@click.option(
    "--at", "at_ns", type=click.IntRange(1), help="Unix time in nanoseconds [default: now]."
)
@click.option(
    "--span-start", type=click.IntRange(1), help="Beginning of a stretch of time, in nanoseconds."
)
@click.option("--span-end", type=click.IntRange(1), help="Its end.")
@click.option(
    "--socket",
    "path",
    type=click.Path(path_type=Path),
    help="Socket of the recorder [default: where it listens].",
)
def command(
    labels: tuple[str, ...], pid: int | None, at_ns: int | None, span_start: int | None, span_end: int | None,
    path: Path | None,
) -> None:  # fmt: skip
    """Tell the running `ingero trace --annotate` what the job is doing.

    Programs can write the same to its socket: one JSON object per line, see docs/reference/trace-database.md.

    \b
    Examples:
      ingero annotate step=1200 epoch=3 --pid 4711
      ingero annotate phase=checkpoint --span-start 1768478400000000000 --span-end 1768478412000000000
    """
    from ingero.agent.host.sockets import find_socket
    from ingero.agent.recording.annotate import send_annotation

    pairs = dict(_pair(label) for label in labels)
    note = Annotation(
        labels=pairs, at_ns=at_ns or 0, pid=pid or 0, span_start_ns=span_start or 0, span_end_ns=span_end or 0
    )  # fmt: skip
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
