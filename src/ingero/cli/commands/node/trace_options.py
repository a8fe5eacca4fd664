"""The options of `ingero trace`."""

import click

from ingero.cli.params import Duration, Size, stacked
from ingero.cli.settings import TRACE_DB, node_option


class Pids(click.ParamType[tuple[int, ...]]):
    """Process ids: `123` or `123,456`."""

    name = "pids"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        parts = str(value).split(",")
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            self.fail(f"{value!r} is not a process id or a list such as 123,456", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


_PROCESSES = stacked(
    click.option(
        "--pid",
        "pids",
        type=Pids(),
        help="Processes to trace, with their children; without it, all that use CUDA.",
    ),
    node_option("agent.node", "--node"),
    click.option("--duration", type=Duration(), help="Stop after this time; else on Ctrl-C."),
)
_RECORDING = stacked(
    click.option(
        "--record/--no-record", default=True, show_default=True, help="Keep a trace database."
    ),
    TRACE_DB,
    click.option(
        "--record-all",
        is_flag=True,
        help="Keep a row for every call, not only for slow, failed and sampled ones.",
    ),
    click.option(
        "--stack/--no-stack",
        default=True,
        show_default=True,
        help="Keep call stacks of slow calls.",
    ),
    click.option(
        "--stack-samples",
        type=click.IntRange(1),
        default=100,
        show_default=True,
        help="Rows to keep per call stack.",
    ),
    node_option("store.max_db_size", "--max-db"),
    click.option(
        "--db-rollover-size",
        type=Size(),
        default="0",
        help="Move the file aside at this size instead of deleting rows; 0 turns this off.",
    ),
    click.option(
        "--db-rollover-keep",
        type=click.IntRange(1),
        default=6,
        show_default=True,
        help="Number of files moved aside to keep.",
    ),
    click.option(
        "--deadband",
        type=click.FloatRange(0, 100),
        default=0.0,
        help="Percent by which a system value must change to be kept again.",
    ),
    click.option(
        "--heartbeat",
        type=Duration(),
        default="0",
        help="Interval after which a system sample is kept, and a JSON line printed, in any case.",
    ),
)
_CONNECTIONS = stacked(
    click.option("--annotate", is_flag=True, help="Listen for `ingero annotate` on a Unix socket."),
    click.option(
        "--annotate-socket-gid",
        type=int,
        default=-1,
        help="Group id that may annotate; under sudo, your own group if omitted.",
    ),
    click.option(
        "--dashboard",
        metavar="HOST:PORT",
        help="Serve the recording as `ingero dashboard` does.",
    ),
    click.option(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="Serve Prometheus metrics of the recording; `:PORT` listens on every address, "
        "port 0 lets the kernel choose.",
    ),
    click.option("--no-io", is_flag=True, help="Do not trace block I/O."),
    click.option("--no-tcp", is_flag=True, help="Do not trace TCP retransmissions."),
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON line per record instead of tables."
    ),
)

trace_command_options = stacked(_PROCESSES, _RECORDING, _CONNECTIONS)
