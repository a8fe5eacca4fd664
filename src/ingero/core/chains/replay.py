"""Derives causal chains again from recorded events, in event time, as the recorder would have found them."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from ingero.contract.chain import Chain
from ingero.contract.events import Source
from ingero.core.chains.evidence import SystemSample
from ingero.core.chains.finder import ChainFinder, weight
from ingero.core.chains.recommendations import Host
from ingero.core.chains.rules import TRAINING_WINDOW_NS
from ingero.core.recording.event_columns import EventColumns
from ingero.core.recording.latency import TraceStats

TICK_NS = 1_000_000_000


def replay(
    events: EventColumns,
    samples: Sequence[SystemSample],
    host: Host,
    window_ns: int = TRAINING_WINDOW_NS,
    pid: int = 0,
) -> list[tuple[int, Chain]]:
    """(when, chain), worst first: per operation the finding with the most behind it, the earliest of equals."""
    order = np.argsort(events.timestamp, kind="stable")
    events = events.take(order)
    if pid:
        events = events.take(_concerns(events, pid))
    finder, stats = ChainFinder(window_ns, host), TraceStats()
    waiting = deque(
        sorted(samples, key=lambda sample: sample.timestamp_ns)
    )  # a finder keeps the last ones only
    kept: dict[tuple[str, str], tuple[int, Chain]] = {}
    for begin, end in _ticks(events):
        part = events.take(slice(begin, end))
        stats.add(part)
        finder.add(part)
        now_ns = int(part.timestamp[-1])
        while waiting and waiting[0].timestamp_ns <= now_ns:
            finder.add_sample(waiting.popleft())
        for chain in finder.find(now_ns, stats.summaries(), pid):
            symptom = chain.timeline[-1]
            key = (str(symptom.layer), symptom.op if chain.cuda_op else chain.name)
            if key not in kept or weight(chain) > weight(kept[key][1]):
                kept[key] = (now_ns, chain)
    return sorted(kept.values(), key=lambda item: weight(item[1]), reverse=True)


def _concerns(events: EventColumns, pid: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Calls of other processes are dropped; what the host did is kept for everybody."""
    is_call = np.isin(events.source, (Source.CUDA, Source.DRIVER, Source.GRAPH))
    wanted: np.ndarray[tuple[int], np.dtype[np.bool_]] = ~is_call | (events.pid == pid)
    return wanted


def _ticks(events: EventColumns) -> list[tuple[int, int]]:
    """Row ranges of one second each, a new second starting at the first event after the last one ended."""
    ranges = []
    begin = 0
    while begin < len(events):
        boundary = events.timestamp[begin] + TICK_NS
        end = int(np.searchsorted(events.timestamp, boundary, side="right"))
        ranges.append((begin, end))
        begin = end
    return ranges
