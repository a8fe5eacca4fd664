"""`ingero trace`: watch CUDA, NCCL and the kernel on this node, live and recorded."""

import contextlib
import sys
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import click

from ingero.agent.ebpf.policy import CALL_LAYERS, HOST_LAYERS, SLOW_LAUNCH_NS, TracePolicy
from ingero.agent.host.identity import default_node
from ingero.agent.host.privileges import OPTIONAL_CAPABILITIES, missing_capabilities
from ingero.agent.host.sockets import own_socket
from ingero.agent.recording.app import TraceApp, TraceOptions
from ingero.agent.recording.live_feed import LiveFeed
from ingero.cli.commands.node.trace_dashboard import dashboard_beside
from ingero.cli.commands.node.trace_options import trace_command_options
from ingero.cli.show.logs import set_up_logging
from ingero.cli.show.table import printable
from ingero.cli.show.trace_screen import run_trace
from ingero.config.ingero import IngeroConfig, load_ingero, trace_database
from ingero.contract.annotations import SOCKET_NAME
from ingero.errors import ConfigError, Unavailable
from ingero.storage.trace.writer import SizePolicy
from ingero.transport.tls import is_loopback


@click.command()
@trace_command_options
def command(
    pids: tuple[int, ...] | None,
    dashboard: str | None,
    metrics_listen: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Watch CUDA, NCCL and the kernel on this node, live and recorded.

    Tables are redrawn every second, and a trace database is kept for later. Probes only read: the
    traced job is never changed, and a full disk stops the recording, not the job. Ctrl-C, SIGTERM
    and the end of --duration all leave a complete file.

    Tracing needs root, or the capabilities CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE. sudo searches
    for commands in its own path, so link the command once:
    `sudo ln -s "$(command -v ingero)" /usr/local/bin/ingero`. The recorded file still belongs to
    you.

    With --dashboard, `ingero dashboard` runs beside the recording as a process of its own that ends
    with it; the bearer token it requires is read from $INGERO_DASHBOARD_TOKEN.

    \b
    Examples:
      sudo ingero trace --node gpu-node-01
      sudo ingero trace --pid 4711 --duration 60s --json
      sudo ingero trace --no-record
      sudo ingero trace --dashboard :8080
      ingero explain                     afterwards: why was the job slow?
    """
    if dashboard and not flags["record"]:
        raise click.UsageError("--dashboard shows what is recorded: remove --no-record")
    ended = [pid for pid in pids or () if not Path(f"/proc/{pid}").exists()]
    if ended:
        raise click.UsageError(f"--pid: process {ended[0]} is not running")
    _require_capabilities()
    config = load_ingero()
    options = _recording_options(config, pids, flags)
    without = {layer for layer, flag in (("block", "no_io"), ("tcp", "no_tcp")) if flags[flag]}
    policy = trace_policy(
        config,
        pids=pids,
        record_all=flags["record_all"],
        stacks=flags["stack"],
        without=without,
    )
    with contextlib.ExitStack() as beside:
        printed = []
        if dashboard and options.db:
            printed = beside.enter_context(dashboard_beside(dashboard, options.db, options.node))
        _trace(options, policy, metrics_listen, printed, as_json)


def _recording_options(
    config: IngeroConfig, pids: tuple[int, ...] | None, flags: dict[str, Any]
) -> TraceOptions:
    record, max_db = flags["record"], flags["max_db"]
    return TraceOptions(
        node=node_name(flags["node"], config),
        db=trace_database(flags["db"], config) if record else None,
        pids=pids or (),
        duration_s=flags["duration"],
        record_all=flags["record_all"],
        stack_samples=flags["stack_samples"],
        workload=config.fleet.workload_type,
        size=SizePolicy(
            config.store.max_db_size if max_db is None else max_db,
            flags["db_rollover_size"],
            flags["db_rollover_keep"],
        ),
        deadband_pct=flags["deadband"],
        heartbeat_s=flags["heartbeat"],
        annotate=own_socket(SOCKET_NAME) if flags["annotate"] and record else None,
        annotate_gid=flags["annotate_socket_gid"],
        flags=",".join(
            name for name in ("stack", "record", "record-all") if flags[name.replace("-", "_")]
        ),
    )


def _trace(
    options: TraceOptions,
    policy: TracePolicy,
    metrics_listen: str | None,
    dashboard: list[str],
    as_json: bool,
) -> None:
    set_up_logging("warning")
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
    """Serve metrics and return their address.

    The import is local: the web server is a good part of the start-up time, and most recordings
    need none.
    """
    from ingero.agent.recording.metrics_page import serve_metrics

    return serve_metrics(address, app, feed.tracer, feed.rings)


def trace_policy(
    config: IngeroConfig,
    *,
    pids: tuple[int, ...] | None,
    record_all: bool,
    stacks: bool,
    without: AbstractSet[str],
) -> TracePolicy:
    """Return what is traced, and the share of a core that this may cost each process."""
    return TracePolicy(
        pids=pids,
        layers=(CALL_LAYERS | HOST_LAYERS) - without,
        record_everything=record_all,
        stacks=stacks,
        slow_launch_ns=SLOW_LAUNCH_NS,
        budget_share=config.agent.max_overhead_percent / 100,
    )


def _require_capabilities() -> None:
    missing = [name for name in missing_capabilities() if name not in OPTIONAL_CAPABILITIES]
    if missing:
        raise Unavailable(
            f"tracing needs {' and '.join(missing)}, which this process lacks; run "
            "`sudo ingero trace`, or give the capabilities to a service account "
            "(docs/deployment.md)"
        )


def node_name(flag: str | None, config: IngeroConfig) -> str:
    """Return `--node`, else `agent.node` of ingero.yaml, else the host name.

    A colon is refused, since it separates the parts of an event id.
    """
    name = flag or config.agent.node or default_node()
    if ":" in name or not name.isprintable():
        raise ConfigError(
            f"the node name {name!r} contains a colon or an unprintable character; "
            "choose one with --node"
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
        warning = "" if is_loopback(metrics) else "; warning: anybody who can connect can read them"
        print(f"  metrics at {metrics}{warning}", file=sys.stderr)
    for note in feed.notes():
        print(f"  off: {printable(note)}", file=sys.stderr)
    processes = feed.tracer.processes()
    for pid, process in sorted(processes.items()):
        probed = sum(process.watched().values())
        print(f"  {probed} functions probed in process {pid}", file=sys.stderr)
    if not processes:
        print("  no process uses CUDA or NCCL yet: waiting for one", file=sys.stderr)
