"""Which events become rows. Everything is counted; rows are for what somebody will want to look at."""

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import CRITICAL_OPS, PAGE_ALLOC, SCHED_SWITCH, SYNC_OPS, Source
from ingero.core.event_columns import EventColumns

BOOTSTRAP_NS = 10_000_000_000
SLOW_IO_NS = 10_000_000
SECOND_NS = 1_000_000_000
MAX_SAMPLED = 8192


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """What a recording keeps; `since_ns` is when it began."""

    since_ns: int
    record_all: bool = False


def _codes(keys: AbstractSet[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array(sorted((source << 8) | op for source, op in keys), np.int64)


_CRITICAL, _SYNC = _codes(CRITICAL_OPS), _codes(SYNC_OPS)


def choose_rows(
    events: EventColumns,
    unusual: NDArray[np.bool_],
    sampled: NDArray[np.bool_],
    familiar: NDArray[np.bool_],
    active_pids: AbstractSet[int],
    policy: KeepPolicy,
) -> NDArray[np.bool_]:
    """True for rows to keep. `unusual`: far slower than usual; `sampled`: kept in any case; `familiar`: its call stack
    has been kept often enough; `active_pids`: processes that use the GPU."""
    code = (events.source << 8) | events.op
    failed = np.isin(events.source, (Source.CUDA, Source.DRIVER, Source.GRAPH)) & (events.ret_code != 0)
    is_switch = events.is_op(*SCHED_SWITCH)
    of_active = np.isin(events.pid, np.fromiter(active_pids, np.int64)) if active_pids else np.ones(len(events), bool)
    wanted = (
        np.isin(code, _CRITICAL)
        | (is_switch & of_active)
        | np.isin(code, _SYNC)
        | (events.source == Source.TCP)
        | ((events.source == Source.IO) & (events.duration > SLOW_IO_NS))
        | failed
        | sampled
        | unusual
    )
    in_bootstrap = events.timestamp < policy.since_ns + BOOTSTRAP_NS
    keep: NDArray[np.bool_] = wanted | in_bootstrap | policy.record_all
    keep &= ~events.is_op(*PAGE_ALLOC)
    keep &= ~familiar | unusual | failed
    return keep


class SampleBook:
    """Picks the first GPU call of each kind, process and second, so that a timeline has no holes."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[tuple[int, int], int] = OrderedDict()

    def choose(self, events: EventColumns) -> NDArray[np.bool_]:
        """Which rows are samples."""
        chosen = np.zeros(len(events), bool)
        calls = np.flatnonzero(np.isin(events.source, (Source.CUDA, Source.DRIVER, Source.GRAPH)))
        if not len(calls):
            return chosen
        code = (events.source[calls] << 8) | events.op[calls]
        keys = np.stack([events.pid[calls], code, events.timestamp[calls] // SECOND_NS])
        found, first = np.unique(keys, axis=1, return_index=True)
        for (pid, op, second), index in zip(found.T.tolist(), first.tolist(), strict=True):
            if self._seconds.get((pid, op), 0) < second:
                self._seconds[pid, op] = second
                chosen[calls[index]] = True
        while len(self._seconds) > MAX_SAMPLED:
            self._seconds.popitem(last=False)
        return chosen
