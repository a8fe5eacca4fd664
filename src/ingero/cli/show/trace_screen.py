"""The screen of a running trace: it redraws tables, or prints one JSON line per record."""

import signal
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ingero.agent.recording.app import TraceApp, TraceView
from ingero.agent.recording.recorder import TracedEvents
from ingero.cli.show.table import printable
from ingero.cli.show.trace import event_lines, heartbeat_line, render_view
from ingero.core.recording.stacks import Frame


def run_trace(app: TraceApp, as_json: bool) -> None:
    """Run a recording in the foreground until Ctrl-C, SIGTERM or the end of its duration."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    screen = _JsonScreen(app) if as_json else _TableScreen()
    view = app.run(
        stop, screen.on_tick, screen.on_events if isinstance(screen, _JsonScreen) else None
    )
    screen.end(view)


class _TableScreen:
    """Redraws tables on a terminal; elsewhere prints chains at once and tables at the end."""

    def __init__(self) -> None:
        self._is_live = sys.stdout.isatty()
        self._printed: set[str] = set()

    def on_tick(self, view: TraceView) -> None:
        if self._is_live:
            print(f"\x1b[H\x1b[2J{render_view(view)}", flush=True)
            return
        for chain in view.chains:
            if chain.name not in self._printed:
                self._printed.add(chain.name)
                print(f"[{chain.severity}] {printable(chain.summary)}", file=sys.stderr, flush=True)

    def end(self, view: TraceView) -> None:
        print(f"\x1b[H\x1b[2J{render_view(view)}" if self._is_live else render_view(view))


class _JsonScreen:
    """Prints one line per record, heartbeats when asked for, and a last line at the end."""

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
        """Resolve a stack at most once a second: a burst of slow calls must not cost a core."""
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
