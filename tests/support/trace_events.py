"""Small builders of event columns for the tests of statistics and causal chains."""

from ingero.contract.events import find_op
from ingero.core.recording.event_columns import EventColumns, columns_from_rows, concatenate
from ingero.core.recording.latency import OpSummary

MS = 1_000_000
US = 1_000
T0 = 1_700_000_000_000_000_000
PID = 1000


def events(
    op: str,
    count: int = 1,
    duration: int = 0,
    *,
    at: int = T0,
    step: int = MS,
    pid: int = PID,
    tid: int | None = None,
    arg0: int = 0,
    arg1: int = 0,
    ret: int = 0,
    cgroup: int = 0,
) -> EventColumns:
    """`count` events of one operation, `step` apart."""
    key = find_op(op)
    assert key, op
    return columns_from_rows(
        [
            (
                at + i * step,
                pid,
                pid if tid is None else tid,
                *key,
                duration,
                arg0,
                arg1,
                ret,
                cgroup,
            )
            for i in range(count)
        ]
    )


def join(*parts: EventColumns) -> EventColumns:
    return concatenate(parts)


def summary(op: str, count: int, p50: int, p99: int, pid: int = PID) -> OpSummary:
    """An operation whose single calls are not known: the window decides alone."""
    key = find_op(op)
    assert key, op
    return OpSummary(key, count, p50, p99, pid=pid)


SLOW = summary("cudaStreamSync", 100, MS, 100 * MS)
HEALTHY = summary("cudaStreamSync", 100, MS, 2 * MS)
