"""`ingero trace`: watch CUDA, NCCL and the kernel on this node, live and recorded."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.policy import CALL_LAYERS, HOST_LAYERS, TracePolicy
from ingero.agent.host.identity import default_node
from ingero.agent.host.privileges import missing_capabilities
from ingero.agent.host.sockets import own_socket
from ingero.agent.recording.app import TraceApp, TraceOptions, TraceView
from ingero.agent.recording.live_feed import LiveFeed
from ingero.agent.recording.recorder import TracedEvents
from ingero.cli.commands.node.trace_dashboard import dashboard_beside
from ingero.cli.params import TRACE_DB, Duration, Size
from ingero.cli.show.table import printable
from ingero.cli.show.trace import event_lines, heartbeat_line, render_view
from ingero.config.ingero import IngeroConfig, load_ingero, trace_database
from ingero.contract.annotations import SOCKET_NAME
from ingero.core.recording.stacks import Frame
from ingero.errors import ConfigError, Unavailable
from ingero.storage.trace.writer import SizePolicy
from ingero.transport.tls import is_loopback

SLOW_LAUNCH_NS = 250_000  # a launch is microseconds: a quarter of a millisecond is worth a record


class Pids(click.ParamType[tuple[int, ...]]):
    """`123` or `123,456`."""

    name = "pids"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        parts = str(value).split(",")
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            self.fail(f"{value!r} is not a process id or a list such as 123,456", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


@click.command()
@click.option(
    "--pid",
    "pids",
    type=Pids(),
    help="Only these processes and their children [default: all that use CUDA].",
)
@click.option(
    "--node", help="Name of this node [default: agent.node of ingero.yaml, else the host name]."
)
@click.option("--duration", type=Duration(), help="Stop after 30s, 5m … [default: on Ctrl-C].")
@click.option(
    "--record/--no-record", default=True, show_default=True, help="Keep a trace database."
)
@TRACE_DB
@click.option(
    "--record-all",
    is_flag=True,
    help="A row for every call, not only for slow, failed and sampled ones.",
)
@click.option(
    "--stack/--no-stack", default=True, show_default=True, help="Call stacks of slow calls."
)
@click.option(
    "--stack-samples",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Rows per call stack.",
)
@click.option(
    "--max-db",
    type=Size(),
    help="Prune the oldest rows above this size; 0 is no limit [default: 10g].",
)
@click.option(
    "--db-rollover-size", type=Size(), default="0", help="Move the file aside at this size instead."
)
@click.option(
    "--db-rollover-keep",
    type=click.IntRange(1),
    default=6,
    show_default=True,
    help="Files moved aside to keep.",
)
@click.option(
    "--deadband",
    type=click.FloatRange(0, 100),
    default=0.0,
    help="Percent a system number must move to be kept.",
)
@click.option(
    "--heartbeat",
    type=Duration(),
    default="0",
    help="Keep a system sample, and print a JSON line, this often anyway.",
)
@click.option("--annotate", is_flag=True, help="Listen for `ingero annotate` on a Unix socket.")
@click.option(
    "--annotate-socket-gid",
    type=int,
    default=-1,
    help="Group that may annotate [default: yours under sudo].",
)
@click.option(
    "--dashboard", metavar="HOST:PORT", help="Serve the recording, as `ingero dashboard` does."
)
@click.option(
    "--metrics-listen",
    metavar="HOST:PORT",
    help="Serve Prometheus metrics of the recording; `:PORT` is every address.",
)
@click.option("--no-io", is_flag=True, help="Without block I/O.")
@click.option("--no-tcp", is_flag=True, help="Without TCP retransmissions.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per record instead of tables.")
def command(
    pids: tuple[int, ...] | None, node: str | None, duration: float | None, record: bool, db: Path | None,
    record_all: bool, stack: bool, stack_samples: int, max_db: int | None, db_rollover_size: int, db_rollover_keep: int,
    deadband: float, heartbeat: float, annotate: bool, annotate_socket_gid: int, dashboard: str | None,
    metrics_listen: str | None, no_io: bool, no_tcp: bool, as_json: bool,
) -> None:  # fmt: skip
    """Watch CUDA, NCCL and the kernel on this node: tables now, a trace database for later.

    Needs root, or the capabilities CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE. Nothing is changed in the traced job.

    \b
    Examples:
      sudo ingero trace --node gpu-node-01
      sudo ingero trace --pid 4711 --duration 60s --json
      sudo ingero trace --no-record
      sudo ingero trace --dashboard :8080
      ingero explain                     afterwards: why was it slow
    """
    if dashboard and not record:
        raise click.UsageError("--dashboard shows what is recorded: remove --no-record")
    gone = [pid for pid in pids or () if not Path(f"/proc/{pid}").exists()]
    if gone:
        raise click.UsageError(f"--pid: process {gone[0]} is not running")
    _require_capabilities()
    config = load_ingero()
    options = TraceOptions(
        node=node_name(node, config),
        db=trace_database(db, config) if record else None,
        pids=pids or (),
        duration_s=duration,
        record_all=record_all,
        stack_samples=stack_samples,
        workload=config.fleet.workload_type,
        size=SizePolicy(
            config.store.max_db_size if max_db is None else max_db,
            db_rollover_size,
            db_rollover_keep,
        ),
        deadband_pct=deadband,
        heartbeat_s=heartbeat,
        annotate=own_socket(SOCKET_NAME) if annotate and record else None,
        annotate_gid=annotate_socket_gid,
        flags=",".join(
            name
            for name, on in (("stack", stack), ("record", record), ("record-all", record_all))
            if on
        ),
    )
    without = {name for name, off in (("block", no_io), ("tcp", no_tcp)) if off}
    policy = trace_policy(config, pids=pids, record_all=record_all, stacks=stack, without=without)
    with contextlib.ExitStack() as beside:
        said = []
        if dashboard and options.db:
            said = beside.enter_context(dashboard_beside(dashboard, options.db, options.node))
        _trace(options, policy, metrics_listen, said, as_json)


def _trace(
    options: TraceOptions,
    policy: TracePolicy,
    metrics_listen: str | None,
    dashboard: list[str],
    as_json: bool,
) -> None:
    feed = LiveFeed(policy, options.node)
    try:
        app = TraceApp(options, feed)
    except BaseException:
        feed.close()
        raise
    metrics = _serve_metrics(metrics_listen, app, feed) if metrics_listen else None
    _announce(options, feed, metrics, dashboard)
    run_trace(app, as_json)


def _serve_metrics(address: str, app: TraceApp, feed: LiveFeed) -> str:
    """Where they are. The web server is a good part of the start-up time, and most recordings need none."""
    from ingero.agent.recording.metrics import serve_metrics

    return serve_metrics(address, app, feed.tracer)


def trace_policy(
    config: IngeroConfig,
    *,
    pids: tuple[int, ...] | None,
    record_all: bool,
    stacks: bool,
    without: AbstractSet[str],
) -> TracePolicy:
    """What is traced, and how much of a core that may cost each process."""
    return TracePolicy(
        pids=pids,
        layers=(CALL_LAYERS | HOST_LAYERS) - without,
        record_everything=record_all,
        stacks=stacks,
        slow_launch_ns=SLOW_LAUNCH_NS,
        budget_share=config.agent.max_overhead_percent / 100,
    )


def _require_capabilities() -> None:
    missing = [name for name in missing_capabilities() if name != "CAP_SYS_PTRACE"]
    if missing:
        raise Unavailable(
            f"tracing needs {' and '.join(missing)}, which this process lacks; run `sudo ingero trace`, or give the "
            "capabilities to a service account (docs/deployment.md)"
        )


def node_name(flag: str | None, config: IngeroConfig) -> str:
    """`--node`, else `agent.node` of ingero.yaml, else the host name; a colon separates the parts of an event id."""
    name = flag or config.agent.node or default_node()
    if ":" in name or not name.isprintable():
        raise ConfigError(
            f"the node name {name!r} contains a colon or an unprintable character; choose one with --node"
        )
    return name


def _announce(
    options: TraceOptions, feed: LiveFeed, metrics: str | None, dashboard: list[str]
) -> None:
    where = f"recording to {options.db}" if options.db else "not recording"
    print(f"tracing node {options.node}, {where}; Ctrl-C ends", file=sys.stderr)
    for line in dashboard:
        print(f"  {line}", file=sys.stderr)
    if metrics is not None:
        warning = "" if is_loopback(metrics) else "; warning: anybody who reaches it can read them"
        print(f"  metrics at {metrics}{warning}", file=sys.stderr)
    for note in feed.notes():
        print(f"  off: {printable(note)}", file=sys.stderr)
    processes = feed.tracer.processes()
    for pid, process in sorted(processes.items()):
        probed = sum(process.watched().values())
        print(f"  {probed} functions probed in process {pid}", file=sys.stderr)
    if not processes:
        print("  no process uses CUDA or NCCL yet: waiting for one", file=sys.stderr)


def run_trace(app: TraceApp, as_json: bool) -> None:
    """Run a recording in the foreground until Ctrl-C, a SIGTERM or its time is over."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    screen = _JsonScreen(app) if as_json else _TableScreen()
    view = app.run(
        stop, screen.on_tick, screen.on_events if isinstance(screen, _JsonScreen) else None
    )
    screen.end(view)


class _TableScreen:
    """Redraws on a terminal; elsewhere prints chains as they appear and one table at the end."""

    def __init__(self) -> None:
        self._is_live = sys.stdout.isatty()
        self._said: set[str] = set()

    def on_tick(self, view: TraceView) -> None:
        if self._is_live:
            print(f"\x1b[H\x1b[2J{render_view(view)}", flush=True)
            return
        for chain in view.chains:
            if chain.name not in self._said:
                self._said.add(chain.name)
                print(f"[{chain.severity}] {printable(chain.summary)}", file=sys.stderr, flush=True)

    def end(self, view: TraceView) -> None:
        print(f"\x1b[H\x1b[2J{render_view(view)}" if self._is_live else render_view(view))


class _JsonScreen:
    """A line per record, a heartbeat in between when asked for, one at the end."""

    def __init__(self, app: TraceApp) -> None:
        self._app = app
        self._every_s = app.options.heartbeat_s
        self._frames: dict[tuple[int, int, tuple[int, ...]], Sequence[Frame]] = {}
        self._next_s = time.monotonic() + self._every_s

    def on_events(self, traced: TracedEvents, unusual: NDArray[np.bool_]) -> None:
        for line in event_lines(
            traced, unusual, self._app.recorder.processes.names(), self._resolve
        ):
            print(line)
        sys.stdout.flush()

    def _resolve(self, pid: int, tid: int, addresses: tuple[int, ...]) -> Sequence[Frame]:
        """A stack of a thread is looked at once a second: a burst of slow calls must not cost us a core."""
        key = (pid, tid, addresses)
        if key not in self._frames:
            self._frames[key] = self._app.stacks(*key)
        return self._frames[key]

    def on_tick(self, view: TraceView) -> None:
        self._frames.clear()
        if self._every_s and time.monotonic() >= self._next_s:
            print(heartbeat_line(view, time.time_ns()), flush=True)
            self._next_s += self._every_s

    def end(self, view: TraceView) -> None:
        print(heartbeat_line(view, time.time_ns()), flush=True)
