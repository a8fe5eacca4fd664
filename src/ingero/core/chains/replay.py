"""Replay: derive causal chains from recorded events in event time, as the recorder does live."""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from ingero.contract.chain import Chain
from ingero.contract.events import Source
from ingero.core.chains.evidence import SystemSample
from ingero.core.chains.finder import ChainFinder, weight
from ingero.core.chains.neighbours import Host
from ingero.core.chains.rules import TRAINING_WINDOW_NS
from ingero.core.recording.event_columns import EventColumns
from ingero.core.recording.latency import TraceStats

TICK_NS = 1_000_000_000
Progress = Callable[[int, int], None]  # events done, and all of them


def replay(
    events: EventColumns,
    samples: Sequence[SystemSample],
    host: Host,
    window_ns: int = TRAINING_WINDOW_NS,
    pid: int = 0,
    progress: Progress = lambda done, total: None,
) -> list[tuple[int, Chain]]:
    """Return (time, chain), worst first: the worst moment of each incident, the first of equals."""
    if (np.diff(events.timestamp) < 0).any():
        events = events.take(np.argsort(events.timestamp, kind="stable"))
    if pid:
        events = events.take(_concerns(events, pid))
    finder, stats = ChainFinder(window_ns, host), TraceStats()
    # Samples are added in time, because a finder keeps only the last ones.
    pending = deque(sorted(samples, key=lambda sample: sample.timestamp_ns))
    kept: dict[str, tuple[int, Chain]] = {}
    for begin, end in _ticks(events):
        progress(begin, len(events))
        part = events.take(slice(begin, end))
        stats.add(part)
        finder.add(part)
        now_ns = int(part.timestamp[-1])
        while pending and pending[0].timestamp_ns <= now_ns:
            finder.add_sample(pending.popleft())
        for chain in finder.find(now_ns, stats.summaries(), pid):
            if chain.name not in kept or weight(chain) > weight(kept[chain.name][1]):
                kept[chain.name] = (now_ns, chain)
    return sorted(kept.values(), key=lambda item: weight(item[1]), reverse=True)


def _concerns(events: EventColumns, pid: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which events concern a process: its own calls, and all events of the host."""
    is_call = np.isin(events.source, (Source.CUDA, Source.DRIVER, Source.GRAPH))
    wanted: np.ndarray[tuple[int], np.dtype[np.bool_]] = ~is_call | (events.pid == pid)
    return wanted


def _ticks(events: EventColumns) -> list[tuple[int, int]]:
    """Return row ranges of one second; the next second starts at the first event after the last."""
    ranges = []
    begin = 0
    while begin < len(events):
        boundary = events.timestamp[begin] + TICK_NS
        end = int(np.searchsorted(events.timestamp, boundary, side="right"))
        ranges.append((begin, end))
        begin = end
    return ranges
