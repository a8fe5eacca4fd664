"""Which annotations hold for an event: what the job said about itself at that time.

A span holds inside its two ends, a moment from then on. One about a process holds for the same run of the same program:
no exec or exit of that pid lies between the two. Later annotations override earlier ones key by key.
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredAnnotation:
    """An annotation as stored: `from_ns` and `to_ns` of a span, or a moment with `to_ns` None. `pid` 0: the node."""

    order: tuple[int, int]  # when it was said, and its number
    pid: int
    from_ns: int
    to_ns: int | None
    labels: Mapping[str, str]


def label_events(
    notes: Sequence[StoredAnnotation],
    turns: Mapping[int, Sequence[int]],
    events: Sequence[tuple[int, int]],
) -> list[dict[str, str]]:
    """Labels of each event (pid, time); `turns` are the times, ascending, at which a pid began or ended a program."""
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
    """One process, in the order of time."""
    moments: dict[
        tuple[str, bool], tuple[tuple[int, int], str, int]
    ] = {}  # latest of each key, by scope
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
        holding = [
            (order, key, value)
            for (key, scoped), (order, value, said_ns) in moments.items()
            if not scoped or bisect_right(turns, said_ns) == run
        ]
        for _, order, note in spans:
            if not note.pid or bisect_right(turns, note.from_ns) == run:
                holding += [(order, key, value) for key, value in note.labels.items()]
        found[index] = {key: value for _, key, value in sorted(holding)}
