"""The reference consumer of the remediation socket: line counts and stragglers for Prometheus."""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ingero.contract.api_paths import HEALTHZ, PROMETHEUS, READYZ
from ingero.contract.exposition import CONTENT_TYPE, Family, by_label, gauge, render, total
from ingero.contract.straggler import MAX_LINE_BYTES, decode_envelope
from ingero.core.setting import setting
from ingero.errors import MalformedInput
from ingero.stopping import is_set_within

log = logging.getLogger(__name__)

DIAL_TIMEOUT_S = 2.0
MAX_TYPES = 32  # a faulty sender must not create an unlimited number of series
OTHER_TYPES = "other"
_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """The settings of `straggler-sink`, which has flags and no configuration file."""

    socket_path: Path = setting(
        flag="--socket-path",
        computed="where the agent opens it",
        help="Socket that `ingero fleet-push --remediate` opened.",
    )
    reconnect_delay_s: float = setting(
        2.0,
        duration=True,
        flag="--reconnect-delay",
        help="Pause between attempts to connect to the agent.",
    )
    max_tracked_nodes: int = setting(
        10_000,
        range=(1, None),
        flag="--max-tracked-nodes",
        help="Number of nodes to keep; beyond it the oldest is dropped.",
    )
    readiness_window_s: float = setting(
        60.0,
        duration=True,
        flag="--readiness-window",
        help="Time without messages after which /readyz reports that the sink is not ready.",
    )
    silence_s: float = setting(
        60.0,
        duration=True,
        flag="--forget-after",
        help="Time without messages about a straggler after which it is dropped; its agent may "
        "be gone.",
    )


class Sink:
    """The counts and current stragglers of a stream of lines; times are arguments."""

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings
        self.is_connected = False
        self.events: Counter[str] = Counter()
        self.parse_errors = 0
        self.dropped: Counter[str] = Counter(cap_reached=0, line_too_long=0, silent=0)
        self.last_event_s: float | None = None
        # time of the last message, by cluster and node
        self._stragglers: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._rest = b""
        self._is_skipping = False

    def take(self, data: bytes, now_s: float) -> None:
        """Read the next bytes of the stream; a line that is too long is counted and skipped."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._is_skipping:
                self._is_skipping = False
            elif len(line) > MAX_LINE_BYTES:
                self.dropped["line_too_long"] += 1
            else:
                self.line(line, now_s)
        if len(self._rest) > MAX_LINE_BYTES:
            if not self._is_skipping:
                self.dropped["line_too_long"] += 1
            self._rest, self._is_skipping = b"", True

    def line(self, line: bytes, now_s: float) -> None:
        """Read one line."""
        if not line.strip():
            return
        try:
            envelope = decode_envelope(line)
        except MalformedInput:
            self.parse_errors += 1
            return
        is_known = envelope.type in self.events or len(self.events) < MAX_TYPES
        self.events[envelope.type if is_known else OTHER_TYPES] += 1
        self.last_event_s = now_s
        key = (envelope.cluster_id, envelope.node_id)
        if envelope.type == "straggler_state":
            self._track(key, now_s)
        elif envelope.type == "straggler_resolved":
            self._stragglers.pop(key, None)

    def _track(self, key: tuple[str, str], now_s: float) -> None:
        if key not in self._stragglers and len(self._stragglers) >= self.settings.max_tracked_nodes:
            # the first inserted, not the least recently updated
            self._stragglers.popitem(last=False)
            self.dropped["cap_reached"] += 1
        self._stragglers[key] = now_s

    def stragglers(self, now_s: float) -> list[tuple[str, str]]:
        """Return cluster and node of every straggler; drop those without recent messages."""
        silent = [
            key for key, at_s in self._stragglers.items() if now_s - at_s > self.settings.silence_s
        ]
        for key in silent:
            del self._stragglers[key]
            self.dropped["silent"] += 1
        return sorted(self._stragglers)

    def is_ready(self, now_s: float) -> bool:
        """Whether the sink is connected or has received a message recently."""
        window_s = self.settings.readiness_window_s
        return self.is_connected or (
            self.last_event_s is not None and now_s - self.last_event_s <= window_s
        )

    def start_stream(self) -> None:
        """Drop the incomplete line of an earlier connection."""
        self._rest, self._is_skipping = b"", False

    def families(self, now_s: float, wall_minus_monotonic_s: float) -> list[Family]:
        """Return the metrics of the sink, in a stable order."""
        active = self.stragglers(now_s)
        last = (
            0.0
            if self.last_event_s is None
            else round(self.last_event_s + wall_minus_monotonic_s, 3)
        )
        return [
            by_label("ingero_sink_events_total", "Lines by type", "type", self.events),
            total(
                "ingero_sink_parse_errors_total",
                "Lines that could not be decoded",
                self.parse_errors,
            ),
            by_label(
                "ingero_sink_dropped_total",
                "Nodes and lines dropped, by reason",
                "reason",
                self.dropped,
            ),
            gauge(
                "ingero_sink_connected",
                "1 while connected to the socket",
                [((), float(self.is_connected))],
            ),
            gauge(
                "ingero_sink_last_event_timestamp_seconds",
                "Unix time of the last line, 0 for none",
                [((), last)],
            ),
            gauge(
                "ingero_sink_active_stragglers",
                "1 for each node that is slow now",
                (((("cluster_id", cluster), ("node_id", node)), 1.0) for cluster, node in active),
            ),
        ]


async def follow_socket(sink: Sink, stop: asyncio.Event) -> None:
    """Read until stopped, and connect again whenever the agent has been away."""
    ended = asyncio.create_task(stop.wait())
    is_waiting = False  # logged once, not at every attempt
    try:
        while not stop.is_set():
            reading = asyncio.create_task(_read(sink))
            await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
            try:
                await reading
                is_waiting = False
            except asyncio.CancelledError:
                pass
            except (OSError, TimeoutError) as error:
                if not is_waiting:
                    log.warning(
                        "sink_waiting",
                        extra={"path": str(sink.settings.socket_path), "why": str(error)},
                    )
                is_waiting = True
            await is_set_within(stop, sink.settings.reconnect_delay_s)
    finally:
        ended.cancel()


async def _read(sink: Sink) -> None:
    path = sink.settings.socket_path
    async with asyncio.timeout(DIAL_TIMEOUT_S):
        reader, writer = await asyncio.open_unix_connection(path)
    log.info("sink_connected", extra={"path": str(path)})
    sink.start_stream()
    sink.is_connected = True
    try:
        while data := await reader.read(_READ_BYTES):
            sink.take(data, time.monotonic())
    finally:
        sink.is_connected = False
        writer.close()
        log.info("sink_disconnected", extra={"path": str(path)})


def sink_app(sink: Sink) -> Starlette:
    """Return the application with `/metrics`, `/healthz` (running) and `/readyz` (receiving)."""

    async def metrics(_: Request) -> Response:
        now_s = time.monotonic()
        return Response(render(sink.families(now_s, time.time() - now_s)), media_type=CONTENT_TYPE)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        is_ready = sink.is_ready(time.monotonic())
        return PlainTextResponse(
            "ready\n" if is_ready else "not connected\n", 200 if is_ready else 503
        )

    return Starlette(
        routes=[Route(PROMETHEUS, metrics), Route(HEALTHZ, healthz), Route(READYZ, readyz)]
    )
