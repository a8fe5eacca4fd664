"""Own time live: the collectives of one rank as they come in, cut into steps that all ranks number alike.

A step is one turn of the repeating pattern of collectives. It ends with the rarest one of the pattern (the gradient
all-reduce, say), whose sequence number all members of its communicator share and which therefore numbers the step.
"""

from collections import Counter, deque
from dataclasses import dataclass

import numpy as np

from ingero.contract.collective import CollectiveRecord
from ingero.core.owntime import find_cycle

WATCHED = 1024  # collectives looked at for the pattern
LEARN_AFTER = 48
Signature = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class StepTime:
    """Own time of one step; `step` is -1 where no sequence number tells it. Unknown seconds are NaN."""

    step: int
    own_s: float
    idle_s: float
    span_s: float


class RankStream:
    """State of one rank. Feed records in any order within a batch; batches must not overlap in time."""

    def __init__(self) -> None:
        self._seen: deque[Signature] = deque(maxlen=WATCHED)
        self._anchor: Signature | None = None
        self._per_step = 1
        self._cycle = 1
        self._free_ns: int | None = None
        self._last_end_ns: int | None = None
        self._own_ns = 0
        self._idle_ns = 0
        self._rows = 0
        self._is_whole = False
        self._is_timed = True

    def take(self, records: list[CollectiveRecord]) -> list[StepTime]:
        """The steps that these records complete."""
        steps = []
        for record in sorted(records, key=lambda r: (_entry(r), r.end_ns)):
            signature = (record.comm, record.op, record.size_bytes)
            self._seen.append(signature)
            self._add(record)
            if self._anchor is None:
                self._learn()
            elif signature == self._anchor and self._closes(record):
                if self._is_whole:
                    steps.append(self._close(record))
                self._begin(record)
            elif self._rows > 8 * self._cycle:  # the pattern changed: look again
                self._anchor = None
                self._seen.clear()
        return steps

    def _add(self, record: CollectiveRecord) -> None:
        entry = _entry(record)
        if self._free_ns is not None:
            own = max(entry - self._free_ns, 0)
            self._own_ns += own
            self._idle_ns += min(max(record.start_ns - self._free_ns, 0), own)
        self._is_timed &= record.gpu_duration_ns is not None
        self._free_ns = record.end_ns if self._free_ns is None else max(self._free_ns, record.end_ns)
        self._rows += 1

    def _closes(self, record: CollectiveRecord) -> bool:
        return record.seq is None or record.seq % self._per_step == self._per_step - 1

    def _close(self, record: CollectiveRecord) -> StepTime:
        step = -1 if record.seq is None else record.seq // self._per_step
        span = float("nan") if self._last_end_ns is None else (record.end_ns - self._last_end_ns) / 1e9
        idle = self._idle_ns / 1e9 if self._is_timed else float("nan")
        return StepTime(step, self._own_ns / 1e9, idle, span)

    def _begin(self, record: CollectiveRecord) -> None:
        self._own_ns = self._idle_ns = self._rows = 0
        self._is_whole, self._is_timed = True, True
        self._last_end_ns = record.end_ns

    def _learn(self) -> None:
        """Find the pattern and in it the rarest collective, the largest of several: the same choice on every rank."""
        if len(self._seen) < LEARN_AFTER or len(self._seen) % 16:
            return
        codes = {signature: code for code, signature in enumerate(dict.fromkeys(self._seen))}
        cycle = find_cycle(np.array([codes[signature] for signature in self._seen]))
        turn = Counter(list(self._seen)[-cycle:])
        self._anchor = min(turn, key=lambda s: (turn[s], -s[2], s[1]))
        self._per_step, self._cycle = turn[self._anchor], cycle
        self._is_whole = False


def _entry(record: CollectiveRecord) -> int:
    return record.start_ns if record.gpu_duration_ns is None else record.end_ns - record.gpu_duration_ns
