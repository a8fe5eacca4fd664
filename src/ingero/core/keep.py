"""Which events become rows. Everything is counted; rows are for what somebody will want to look at."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import CRITICAL_OPS, PAGE_ALLOC, SCHED_SWITCH, SYNC_OPS, Source
from ingero.core.event_columns import EventColumns

BOOTSTRAP_NS = 10_000_000_000
SLOW_IO_NS = 10_000_000
SECOND_NS = 1_000_000_000


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
    active_pids: AbstractSet[int],
    familiar: NDArray[np.bool_],
    policy: KeepPolicy,
) -> NDArray[np.bool_]:
    """True for rows to keep. `unusual`: far slower than usual; `familiar`: its call stack has been kept often enough;
    `active_pids`: processes that use the GPU."""
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
        | _samples(events)
        | unusual
    )
    in_bootstrap = events.timestamp < policy.since_ns + BOOTSTRAP_NS
    keep: NDArray[np.bool_] = wanted | in_bootstrap | policy.record_all
    keep &= ~events.is_op(*PAGE_ALLOC)
    keep &= ~familiar | unusual | failed
    return keep


def _samples(events: EventColumns) -> NDArray[np.bool_]:
    """The first GPU call of each kind, process and second, so that a timeline has no holes."""
    chosen = np.zeros(len(events), bool)
    calls = np.flatnonzero(np.isin(events.source, (Source.CUDA, Source.DRIVER, Source.GRAPH)))
    if len(calls):
        keys = np.stack(
            [events.pid[calls], (events.source[calls] << 8) | events.op[calls], events.timestamp[calls] // SECOND_NS]
        )
        _, first = np.unique(keys, axis=1, return_index=True)
        chosen[calls[first]] = True
    return chosen
