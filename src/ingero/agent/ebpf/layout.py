"""The structs of probes/state.h and nccl.h as numpy types.

A test compares them with the BTF of the objects.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.core.recording.histogram import BUCKETS

COMM_BYTES: Final = 16
MAX_FRAMES: Final = 64

FLAG_NO_END, FLAG_SLOW, FLAG_FAILED, FLAG_SAMPLED, FLAG_OTHER = 1, 2, 4, 8, 16
MODE_FULL, MODE_ENTRY = 0, 1
# per-CPU counters of what was lost, in the order of state.h
LOST: Final = ("calls", "nccl", "host", "critical", "nesting", "state")
# kernel events with a slot per process, in the order of host.h
HOST_SLOTS: Final = ("runqueue", "sleep", "io_wait", "pages", "block")

EVENT: Final = np.dtype(
    [
        ("start_ns", "<u8"),
        ("end_ns", "<u8"),
        ("pid", "<u4"),
        ("tid", "<u4"),
        ("source", "u1"),
        ("op", "u1"),
        ("flags", "<u2"),
        ("ret", "<i4"),
        ("cgroup", "<u8"),
        ("comm", f"S{COMM_BYTES}"),
        ("arg0", "<u8"),
        ("arg1", "<u8"),
        ("stack", "<i4"),
        ("gpu", "<i4"),
    ]
)
NCCL_EVENT: Final = np.dtype(
    [
        *((name, EVENT[name]) for name in EVENT.names or ()),
        ("comm_hash", "<u8"),
        ("seq", "<u8"),
        ("count", "<u8"),
        ("stream", "<u8"),
        ("rank", "<i4"),
        ("nranks", "<i4"),
        ("datatype", "<i4"),
        ("reduce_op", "<i4"),
        ("peer", "<i4"),
        ("pad", "<u4"),
    ]
)
SLOT: Final = np.dtype(
    [
        ("calls", "<u8"),
        ("sum", "<u8"),
        ("max", "<u8"),
        ("failed", "<u8"),
        ("emitted", "<u8"),
        ("slow_ns", "<u8"),
        ("tgid", "<u4"),
        ("mode", "<u4"),
        ("sample_every", "<u4"),
        ("pad", "<u4"),
        ("buckets", "<u8", (BUCKETS,)),
    ]
)
FUNC: Final = np.dtype(
    [
        ("source", "u1"),
        ("op", "u1"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("const1", "u1"),
        ("id_by_value", "u1"),
        ("locs", "u1", (8,)),
        ("pad", "u1", (2,)),
    ]
)
WAITS: Final = np.dtype([("count", "<u8"), ("sum", "<u8"), ("buckets", "<u8", (BUCKETS,))])
TARGET: Final = np.dtype([("first_slot", "<u4")])


@dataclass(frozen=True, slots=True)
class CgroupWait:
    """How long threads of a cgroup waited for a CPU, cumulative."""

    cgroup: int
    sum_ns: int
    buckets: NDArray[np.int64]


def cookie_of(slot: int, function: int) -> int:
    """Return the cookie of a probe: the slot to count in and the function number."""
    return slot << 16 | function
