"""Event labels: which annotations of a job apply to an event.

A span applies between its two ends, a moment from its time on. An annotation about a process
applies only to the same run of the same program: no exec or exit of that pid lies between
annotation and event. Later annotations override earlier ones key by key.
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredAnnotation:
    """An annotation as stored: a span, or a moment with `to_ns` None.

    `pid` 0 means that it is about the node.
    """

    order: tuple[int, int]  # time of writing and number
    pid: int
    from_ns: int
    to_ns: int | None
    labels: Mapping[str, str]


def label_events(
    notes: Sequence[StoredAnnotation],
    turns: Mapping[int, Sequence[int]],
    events: Sequence[tuple[int, int]],
) -> list[dict[str, str]]:
    """Return the labels of each event (pid, time).

    `turns` are the times at which a pid started or ended a program, ascending.
    """
    by_pid: dict[int, list[StoredAnnotation]] = defaultdict(list)
    for note in notes:
        by_pid[note.pid].append(note)
    found: list[dict[str, str]] = [{} for _ in events]
    wanted: dict[int, list[int]] = defaultdict(list)
    for index, (pid, _) in enumerate(events):
        wanted[pid].append(index)
    for pid, indexes in wanted.items():
        own = [*by_pid[0], *(by_pid[pid] if pid else ())]
        times = [(events[index][1], index) for index in indexes]
        _sweep(
            sorted(own, key=lambda note: (note.from_ns, note.order)),
            turns.get(pid, ()),
            sorted(times),
            found,
        )
    return found


def _sweep(
    notes: Sequence[StoredAnnotation],
    turns: Sequence[int],
    times: Sequence[tuple[int, int]],
    found: list[dict[str, str]],
) -> None:
    """Fill in the labels of one process, in order of time."""
    # The latest moment of each key, for the process and for the node
    moments: dict[tuple[str, bool], tuple[tuple[int, int], str, int]] = {}
    spans: list[tuple[int, tuple[int, int], StoredAnnotation]] = []
    position = 0
    for at_ns, index in times:
        while position < len(notes) and notes[position].from_ns <= at_ns:
            note = notes[position]
            position += 1
            if note.to_ns is not None:
                heapq.heappush(spans, (note.to_ns, note.order, note))
                continue
            for key, value in note.labels.items():
                moments[key, note.pid > 0] = (note.order, value, note.from_ns)
        while spans and spans[0][0] < at_ns:
            heapq.heappop(spans)
        run = bisect_right(turns, at_ns)
        applying = [
            (order, key, value)
            for (key, scoped), (order, value, from_ns) in moments.items()
            if not scoped or bisect_right(turns, from_ns) == run
        ]
        for _, order, note in spans:
            if not note.pid or bisect_right(turns, note.from_ns) == run:
                applying += [(order, key, value) for key, value in note.labels.items()]
        found[index] = {key: value for _, key, value in sorted(applying)}
