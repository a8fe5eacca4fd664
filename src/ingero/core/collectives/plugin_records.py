"""Records of the NCCL plugin as collectives, with GPU times converted to the host's clock."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import (
    DATATYPE_BYTES,
    CollectiveRecord,
    CollectiveSource,
    canonical_datatype,
    canonical_op,
)
from ingero.contract.nccl_ring import FLAG_GPU_TIMED, FLAG_STREAM, KIND_P2P, Records, decode_text
from ingero.core.collectives.columns import (
    SOURCES,
    UNKNOWN,
    Collectives,
    Ints,
    Recorder,
    from_columns,
)

ROOTED_OPS = frozenset({"Broadcast", "Reduce", "Scatter", "Gather"})


@dataclass(frozen=True, slots=True)
class GpuClock:
    """The offset of the host's clock from the GPU's, and its error."""

    offset_ns: int
    error_ns: int


PROXY_DELAY_NS = 50_000  # shortest time from a stop on the GPU to the proxy's record of it
# Clocks that drift apart make a start seem to precede its enqueue by less. What seems to precede it
# by more are the times of an older operation: NCCL reports them where a kernel sends to and
# receives from the same rank.
STALE_NS = 2_000_000
SAME_CLOCK = GpuClock(0, 0)


def fit_gpu_clock(records: Records) -> GpuClock | None:
    """Estimate the offset of the GPU's clock; None without a timed record.

    Causality bounds it: the GPU starts after the host enqueued, and stops before the host notices.
    The offset is the middle of the tightest bounds, even when drift made them cross. Where work is
    enqueued long before it runs, the first bound is loose. The second is always tight, because
    NCCL's proxy notices a stop within microseconds at best. The error is the distance to the
    further bound. Sends and receives count only where nothing else is timed: in a group of them,
    some carry the times of the group before, and so seem to start before they were enqueued.
    """
    is_timed = _has(records, FLAG_GPU_TIMED)
    is_collective = is_timed & (records["kind"] != KIND_P2P)
    timed = records[is_collective if is_collective.any() else is_timed]
    if not len(timed):
        return None
    high = int(
        (timed["host_stop_ns"].astype(np.int64) - timed["gpu_stop_ns"].astype(np.int64)).min()
    )
    started = timed["enqueue_ns"].astype(np.int64) - timed["gpu_start_ns"].astype(np.int64)
    possible = started[started <= high + STALE_NS]
    low = int(possible.max()) if len(possible) else high
    offset = max((low + high) // 2, high - PROXY_DELAY_NS)
    return GpuClock(offset, max(abs(high - offset), abs(offset - low)))


def to_collectives(records: Records, recorder: Recorder, clock: GpuClock) -> Collectives:
    """Return records of one rank as columns, in the same order.

    A record with the times of an older operation is one that the GPU did not time.
    """
    ops, op = _codes(records["op"])
    names = tuple(canonical_op(name) for name in ops)
    sizes = _element_sizes(records["datatype"])
    is_p2p = records["kind"] == KIND_P2P
    gpu_start, gpu_stop = (
        records["gpu_start_ns"].astype(np.int64),
        records["gpu_stop_ns"].astype(np.int64),
    )
    enqueue = records["enqueue_ns"].astype(np.int64)
    is_timed = _has(records, FLAG_GPU_TIMED)
    is_timed &= gpu_start + clock.offset_ns >= enqueue - STALE_NS
    end = np.where(is_timed, gpu_stop + clock.offset_ns, records["host_stop_ns"].astype(np.int64))
    rooted = np.array([name in ROOTED_OPS for name in names] or [False])[op]
    columns = {
        "who": np.zeros(len(records), np.int32),
        "comm": records["comm"],
        "seq": np.where(is_p2p, UNKNOWN, records["seq"].astype(np.int64)),
        "op": op,
        "rank": records["rank"],
        "nranks": records["nranks"],
        "peer": np.where(is_p2p | rooted, records["peer"], UNKNOWN),
        "size_bytes": np.where(sizes > 0, records["count"].astype(np.int64) * sizes, UNKNOWN),
        "start_ns": enqueue,
        "end_ns": np.maximum(end, enqueue),
        "gpu_duration_ns": np.where(is_timed, gpu_stop - gpu_start, UNKNOWN),
        "stream": np.where(_has(records, FLAG_STREAM), records["stream"].astype(np.int64), UNKNOWN),
        "source": np.full(len(records), SOURCES.index(CollectiveSource.PLUGIN), np.int8),
    }
    return from_columns(columns, names, (recorder,))


def to_records(records: Records, columns: Collectives) -> list[CollectiveRecord]:
    """Return the same rows as objects, for the few that are forwarded or compared one by one."""
    who = columns.recorders[0]
    datatypes = [canonical_datatype(decode_text(raw)) for raw in records["datatype"].tolist()]
    known = {
        name: [None if value < 0 else value for value in getattr(columns, name).tolist()]
        for name in ("seq", "peer", "gpu_duration_ns", "stream")
    }
    return [
        CollectiveRecord(
            job=who.job,
            node=who.node,
            global_rank=who.global_rank,
            comm=int(columns.comm[row]),
            seq=known["seq"][row],
            op=columns.ops[int(columns.op[row])],
            rank=int(columns.rank[row]),
            nranks=int(columns.nranks[row]),
            peer=known["peer"][row],
            datatype=datatype,
            reduce_op=None,
            size_bytes=max(int(columns.size_bytes[row]), 0),
            start_ns=int(columns.start_ns[row]),
            end_ns=int(columns.end_ns[row]),
            gpu_duration_ns=known["gpu_duration_ns"][row],
            stream=known["stream"][row],
            source=CollectiveSource.PLUGIN,
        )
        for row, datatype in enumerate(datatypes)
    ]


def _has(records: Records, flag: int) -> NDArray[np.bool_]:
    has: NDArray[np.bool_] = (records["flags"] & np.uint32(flag)) != 0
    return has


def _codes(names: NDArray[np.bytes_]) -> tuple[list[str], NDArray[np.int16]]:
    distinct, codes = np.unique(names, return_inverse=True)
    return [decode_text(name) for name in distinct.tolist()], codes.astype(np.int16)


def _element_sizes(datatypes: NDArray[np.bytes_]) -> Ints:
    names, codes = _codes(datatypes)
    sizes = [DATATYPE_BYTES.get(canonical_datatype(name), 0) for name in names]
    return np.array(sizes or [0], np.int64)[codes]
