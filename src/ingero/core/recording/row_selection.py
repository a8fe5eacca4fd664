"""Row selection: which events are stored as rows. All events are counted, whether stored or not."""

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import CRITICAL_OPS, PAGE_ALLOC, SCHED_SWITCH, SYNC_OPS, Source
from ingero.core.recording.event_columns import EventColumns, op_table, source_table

BOOTSTRAP_NS = 10_000_000_000
SLOW_IO_NS = 10_000_000
SECOND_NS = 1_000_000_000
MAX_SAMPLED = 8192
LATE_S = 10  # batches are out of order by less; an earlier second means a clock set back


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """What a recording keeps; `since_ns` is the time it began."""

    since_ns: int
    record_all: bool = False


_IS_CALL = source_table((Source.CUDA, Source.DRIVER, Source.GRAPH))
_IS_ALWAYS_KEPT = op_table(CRITICAL_OPS | SYNC_OPS) | source_table((Source.TCP,))


def choose_rows(
    events: EventColumns,
    unusual: NDArray[np.bool_],
    sampled: NDArray[np.bool_],
    familiar: NDArray[np.bool_],
    active_pids: AbstractSet[int],
    policy: KeepPolicy,
) -> NDArray[np.bool_]:
    """Return which rows to keep.

    `unusual` events are far slower than the median of their operation. `sampled` events are kept in
    any case. `familiar` events have a call stack that was kept often enough. `active_pids` are the
    processes that use the GPU.
    """
    code = events.code
    failed = _IS_CALL[code] & (events.ret_code != 0)
    is_switch = events.is_op(*SCHED_SWITCH)
    of_active = np.ones(len(events), bool)
    if active_pids and is_switch.any():
        of_active = np.isin(events.pid, np.fromiter(active_pids, np.int64))
    wanted = (
        _IS_ALWAYS_KEPT[code]
        | (is_switch & of_active)
        | ((events.source == Source.IO) & (events.duration > SLOW_IO_NS))
        | failed
        | sampled
        | unusual
    )
    # abs(): after a clock is set back, events would otherwise all be kept until it has caught up.
    in_bootstrap = np.abs(events.timestamp - policy.since_ns) < BOOTSTRAP_NS
    keep: NDArray[np.bool_] = wanted | in_bootstrap | policy.record_all
    keep &= ~events.is_op(*PAGE_ALLOC)
    keep &= ~familiar | unusual | failed
    return keep


class CallSampler:
    """Selects the first GPU call per kind, process and second, so that timelines have no gaps."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[tuple[int, int], int] = OrderedDict()

    def choose(self, events: EventColumns) -> NDArray[np.bool_]:
        """Return which rows are samples."""
        chosen = np.zeros(len(events), bool)
        code = events.code
        calls = np.flatnonzero(_IS_CALL[code])
        if not len(calls):
            return chosen
        second_of = events.timestamp[calls] // SECOND_NS
        packed = (events.pid[calls] << 32) | (code[calls] << 16) | (second_of & 0xFFFF)
        _, first = np.unique(packed, return_index=True)
        found = zip(
            events.pid[calls[first]], code[calls[first]], second_of[first], first, strict=True
        )
        for pid, op, second, index in ((int(p), int(o), int(s), int(i)) for p, o, s, i in found):
            last = self._seconds.get((pid, op))
            if last is None or not 0 <= last - second <= LATE_S:
                self._seconds[pid, op] = second
                chosen[calls[index]] = True
        while len(self._seconds) > MAX_SAMPLED:
            self._seconds.popitem(last=False)
        return chosen
