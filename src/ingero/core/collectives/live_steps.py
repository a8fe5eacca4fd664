"""Live steps: own time per step, from the collectives of one rank as they arrive.

A step is one repetition of the pattern of collectives. It ends with the rarest collective of the
pattern, for example the gradient all-reduce. All members of the communicator share the sequence
number of that collective, so all ranks number the step alike.
"""

from collections import Counter, deque
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import UNKNOWN, Collectives, Floats, Ints
from ingero.core.collectives.own_time import find_cycle

WATCHED = 1024  # collectives in which the pattern is searched
LEARN_AFTER = 48
SET_BACK_NS = 100_000_000  # a batch that ends this much earlier: the clock was set back
MAX_SIGNATURES = 4096  # kinds of collectives kept; beyond that, learning starts again
_MIX = np.uint64(0x9E3779B97F4A7C15)
Signature = tuple[int, str, int]  # communicator, operation, bytes


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Own time of finished steps as columns; `step` is -1 without a sequence number.

    `idle_s` is the part before the next collective was enqueued, `span_s` the wall time of the step
    and `end_ns` its end on the host's clock. Unknown seconds are NaN.
    """

    step: Ints
    own_s: Floats
    idle_s: Floats
    span_s: Floats
    end_ns: Ints

    def __len__(self) -> int:
        return len(self.step)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "StepTimes":
        """Return the rows of an index, mask or slice."""
        return StepTimes(*(getattr(self, field.name)[rows] for field in fields(self)))


NO_STEPS = StepTimes(
    np.empty(0, np.int64), np.empty(0), np.empty(0), np.empty(0), np.empty(0, np.int64)
)


class LiveSteps:
    """The step under way of one rank.

    Records of a batch may be in any order; batches must not overlap.
    """

    def __init__(self) -> None:
        self._codes: dict[Signature, int] = {}
        self._seen: deque[tuple[int, int]] = deque(maxlen=WATCHED)  # code and sequence number
        self._anchor: int | None = None
        # Place of the last anchor of a step on its communicator; unknown: every anchor ends a step
        self._place = UNKNOWN
        self._per_step = 1  # collectives per step on the anchor's communicator
        self._cycle = 1
        self._free_ns: int | None = None
        self._last_end_ns: int | None = None
        self._carry = (0.0, 0.0, 0)  # own and idle seconds and rows of the step under way
        self._is_whole = False
        self._is_timed = True

    def take(self, rows: Collectives) -> StepTimes:
        """Return the steps that these records complete."""
        if not len(rows):
            return NO_STEPS
        entry = rows.entry_ns
        order = np.lexsort((rows.end_ns, entry))
        rows, entry = rows.take(order), entry[order]
        if self._free_ns is not None and rows.end_ns.max() < self._free_ns - SET_BACK_NS:
            self.skip()
        own, idle = self._segments(rows, entry)
        codes = self._signatures(rows)
        if self._anchor is None:
            self._seen.extend(zip(codes.tolist(), rows.seq.tolist(), strict=True))
            self._learn()
            return NO_STEPS
        closes = codes == self._anchor
        if self._place != UNKNOWN:
            closes &= (rows.seq < 0) | (rows.seq % self._per_step == self._place)
        return self._cut(rows, own, idle, np.flatnonzero(closes))

    def skip(self) -> None:
        """Note that records were lost: the step under way will not be returned."""
        self._free_ns = self._last_end_ns = None
        self._is_whole = False

    def _segments(self, rows: Collectives, entry: Ints) -> tuple[Floats, Floats]:
        """Return own and idle seconds before each record; overlapping collectives count once."""
        first = entry[0] if self._free_ns is None else self._free_ns
        latest = np.maximum.accumulate(np.concatenate(([first], rows.end_ns)))
        free, self._free_ns = latest[:-1], int(latest[-1])
        own = np.maximum(entry - free, 0)
        idle = np.clip(rows.start_ns - free, 0, own)
        return own / 1e9, idle / 1e9

    def _signatures(self, rows: Collectives) -> NDArray[np.int64]:
        """Return a code per kind of collective, which stays the same until `_forget`."""
        mixed = (
            rows.comm
            ^ (rows.size_bytes.astype(np.uint64) * _MIX)
            ^ (rows.op.astype(np.uint64) << np.uint64(56))
        )
        # One integer sorts ten times faster than three columns.
        _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
        if len(self._codes) > MAX_SIGNATURES:
            self._forget()
        codes = [
            self._codes.setdefault(
                (int(rows.comm[row]), rows.ops[rows.op[row]], int(rows.size_bytes[row])),
                len(self._codes),
            )
            for row in first.tolist()
        ]
        return np.array(codes, np.int64)[inverse]

    def _cut(
        self, rows: Collectives, own: Floats, idle: Floats, ends: NDArray[np.intp]
    ) -> StepTimes:
        """Cut steps at these rows.

        The first step may have begun in an earlier batch; rows after the last end are carried over.
        """
        carried_own, carried_idle, carried_rows = self._carry
        starts = np.concatenate(([0], ends + 1))
        tail = slice(int(starts[-1]), None)
        timed = rows.is_gpu_timed
        if not len(ends):
            self._is_timed &= bool(timed.all())
            self._carry = (
                carried_own + own.sum(),
                carried_idle + idle.sum(),
                carried_rows + len(rows),
            )
            if self._carry[2] > 8 * self._cycle:  # the pattern changed
                self._forget()
            return NO_STEPS
        spent = np.diff(np.cumsum(own)[ends], prepend=-carried_own)
        waited = np.diff(np.cumsum(idle)[ends], prepend=-carried_idle)
        untimed = np.add.reduceat(~timed, starts[:-1]) > 0
        untimed[0] |= not self._is_timed
        end_ns, seq = rows.end_ns[ends], rows.seq[ends]
        before = UNKNOWN if self._last_end_ns is None else self._last_end_ns
        span = np.diff(end_ns, prepend=before) / 1e9
        span[0] = np.nan if self._last_end_ns is None else span[0]
        steps = StepTimes(
            np.where(seq < 0, UNKNOWN, seq // self._per_step),
            spent,
            np.where(untimed, np.nan, waited),
            span,
            end_ns,
        )
        kept = steps if self._is_whole else steps.take(slice(1, None))
        self._carry = (float(own[tail].sum()), float(idle[tail].sum()), len(own[tail]))
        self._is_whole, self._is_timed = True, bool(timed[tail].all())
        self._last_end_ns = int(end_ns[-1])
        return kept

    def _forget(self) -> None:
        self._anchor = None
        self._codes.clear()
        self._seen.clear()
        self._is_whole = False

    def _learn(self) -> None:
        """Find the pattern and its rarest collective, the largest of several.

        Every rank makes the same choice.
        """
        if len(self._seen) < LEARN_AFTER:
            return
        cycle = find_cycle(np.array([code for code, _ in self._seen]))
        last = list(self._seen)[-cycle:]
        turn = Counter(code for code, _ in last)
        names = {code: signature for signature, code in self._codes.items()}
        self._anchor = min(turn, key=lambda code: (turn[code], -names[code][2], names[code][1]))
        comm = names[self._anchor][0]
        self._per_step, self._cycle = sum(names[code][0] == comm for code, _ in last), cycle
        places = [seq % self._per_step for code, seq in last if code == self._anchor]
        self._place = max(places) if len(places) > 1 else UNKNOWN
        self._carry, self._is_whole, self._is_timed = (0.0, 0.0, 0), False, True
