"""The part that records: probes, rings of the NCCL plugin and annotations into one database."""

import contextlib
import signal
import threading
from pathlib import Path
from typing import Final

from ingero.agent.ebpf.metrics import tracer_families
from ingero.agent.ebpf.policy import CALL_LAYERS, HOST_LAYERS, SLOW_LAUNCH_NS, TracePolicy
from ingero.agent.host.identity import default_node
from ingero.agent.host.privileges import OPTIONAL_CAPABILITIES, missing_capabilities
from ingero.agent.host.sockets import own_socket
from ingero.agent.recording.app import TICK_S, TraceApp, TraceOptions, TraceView
from ingero.agent.recording.live_feed import LiveFeed
from ingero.agent.recording.metrics import recording_families, ring_families
from ingero.agent.recording.ring_feed import RingOnlyFeed
from ingero.agent.service.link import BEAT_S, Beat, PartLink
from ingero.agent.sight.messages import SOCKET_NAME as SIGHT_SOCKET
from ingero.agent.sight.server import SightServer
from ingero.children.memory import return_freed_memory
from ingero.config.ingero import IngeroConfig
from ingero.contract.annotations import SOCKET_NAME
from ingero.contract.exposition import render
from ingero.errors import IngeroError
from ingero.storage.trace.writer import SizePolicy

# What stays mapped. A quarter of what `ingero trace --record-all` may need: 18,000 records between
# two polls, and slots for 175 processes that use CUDA.
MAP_SIZES: Final = {
    "slots": 12_288,
    **{
        f"{name}_ring": size
        for name, size in (("calls", 2 << 20), ("nccl", 1 << 19), ("host", 1 << 19))
    },
}


def run_recorder(config: IngeroConfig, database: Path, link: PartLink) -> None:
    """Record until SIGTERM; the file is complete afterwards."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    node = config.agent.node or default_node()
    feed = open_feed(config, node)
    try:
        app = TraceApp(_options(config, node, database), feed)
    except BaseException:
        feed.close()
        raise

    def report(view: TraceView) -> None:
        link.beat(Beat(notes=list(view.notes), metrics=_metrics(app, feed)))

    with contextlib.closing(SightServer(own_socket(SIGHT_SOCKET))):
        return_freed_memory()
        app.run(stop, report, ticks_per_view=int(BEAT_S / TICK_S))


def open_feed(config: IngeroConfig, node: str) -> LiveFeed | RingOnlyFeed:
    """Return the probes and rings of this node, or the rings alone where probes cannot run."""
    missing = [name for name in missing_capabilities() if name not in OPTIONAL_CAPABILITIES]
    if missing:
        lacking = " and ".join(missing)
        return RingOnlyFeed(node, f"off, because this process lacks {lacking}")
    policy = TracePolicy(
        pids=None,
        layers=CALL_LAYERS | HOST_LAYERS,
        stacks=True,
        slow_launch_ns=SLOW_LAUNCH_NS,
        budget_share=config.agent.max_overhead_percent / 100,
        map_sizes=tuple(MAP_SIZES.items()),
    )
    try:
        return LiveFeed(policy, node)
    except IngeroError as error:
        return RingOnlyFeed(node, f"off: {error}")


def _options(config: IngeroConfig, node: str, database: Path) -> TraceOptions:
    return TraceOptions(
        node=node,
        db=database,
        workload=config.fleet.workload_type,
        size=SizePolicy(config.store.max_db_size),
        annotate=own_socket(SOCKET_NAME),
        flags="stack,record",
    )


def _metrics(app: TraceApp, feed: LiveFeed | RingOnlyFeed) -> str:
    families = recording_families(app) + ring_families(feed.rings)
    if isinstance(feed, LiveFeed):
        families += tracer_families(feed.tracer)
    return render(families).decode()
