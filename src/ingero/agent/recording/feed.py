"""Converts the records of the tracer to the types of the recorder."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.batch import COLLECTIVE_OPS, EventBatch
from ingero.agent.ebpf.functions import FUNCTIONS, Rate
from ingero.agent.ebpf.tracer import HistogramRow
from ingero.agent.nccl.rings import RingBatch
from ingero.agent.processes.info import ProcessCache
from ingero.agent.recording.aggregator import CountedRow
from ingero.agent.recording.recorder import TracedEvents
from ingero.contract.collective import CollectiveSource, canonical_datatype
from ingero.contract.events import Source
from ingero.contract.nccl_ring import decode_text
from ingero.core.recording.event_columns import EventColumns
from ingero.core.recording.histogram import FLOORS_NS
from ingero.storage.trace.database import Row, collective_row

HOT_OPS: Final = frozenset((int(one.source), one.op) for one in FUNCTIONS if one.rate is Rate.HOT)
_STAMPED_AT_END: Final = (int(Source.HOST), int(Source.IO), int(Source.NET))


def to_events(batch: EventBatch) -> TracedEvents:
    """Return columns in wall-clock time.

    Calls whose return was not probed are left out: the kernel counted them, and their duration is
    unknown, not zero.
    """
    known = batch.has_end
    source = batch.source[known].astype(np.int64)
    start, end = batch.timestamp_ns[known], batch.end_ns[known]
    columns = EventColumns(
        timestamp=np.where(np.isin(source, _STAMPED_AT_END), end, start),
        pid=batch.pid[known].astype(np.int64),
        tid=batch.tid[known].astype(np.int64),
        source=source,
        op=batch.op[known].astype(np.int64),
        duration=end - start,
        arg0=batch.arg0[known].astype(np.int64),  # may wrap: integers of SQLite are signed
        arg1=batch.arg1[known].astype(np.int64),
        ret_code=batch.ret_code[known].astype(np.int64),
        cgroup_id=batch.cgroup_id[known].astype(np.int64),
    )
    return TracedEvents(
        columns,
        batch.gpu_id[known].astype(np.int64),
        batch.comm[known],
        batch.stack[known].astype(np.int64),
        batch.stacks,
    )


def probe_rows(
    batch: EventBatch, node: str, processes: ProcessCache, timed_pids: AbstractSet[int]
) -> list[Row]:
    """Return rows of `collectives` from the probes, with the job and global rank of their process.

    Processes in `timed_pids` have the plugin, which times the same operations better.
    """
    pids = batch.nccl["pid"][np.isin(batch.nccl["op"], sorted(COLLECTIVE_OPS))].tolist()
    rows = []
    for record, pid in zip(batch.collectives(node=node), pids, strict=True):
        if pid not in timed_pids:
            info = processes.get(pid)
            rows.append(collective_row(replace(record, job=info.job, global_rank=info.rank), pid))
    return rows


def ring_rows(batch: RingBatch, node: str) -> list[Row]:
    """Return rows of `collectives` from one ring of the plugin."""
    found, header = batch.collectives, batch.header
    datatypes = [
        canonical_datatype(decode_text(name)) for name in batch.records["datatype"].tolist()
    ]
    unknown = {
        name: _none_below_zero(getattr(found, name))
        for name in ("seq", "peer", "gpu_duration_ns", "stream")
    }
    columns = (
        [found.ops[code] for code in found.op.tolist()], found.rank.tolist(),
        found.nranks.tolist(), unknown["peer"], found.size_bytes.tolist(),
        found.start_ns.tolist(), found.end_ns.tolist(), unknown["gpu_duration_ns"],
        unknown["stream"], unknown["seq"], found.comm.astype(np.int64).tolist(), datatypes,
    )  # fmt: skip
    rank = (
        header.global_rank if header.global_rank is not None and header.global_rank >= 0 else None
    )
    source, pid = str(CollectiveSource.PLUGIN), batch.pid or header.pid
    return [
        (header.job or None, node, rank, comm, seq, op, own, nranks, peer, datatype, None, size,
         start, end, gpu, stream, source, pid)
        for op, own, nranks, peer, size, start, end, gpu, stream, seq, comm, datatype
        in zip(*columns, strict=True)
    ]  # fmt: skip


def _none_below_zero(column: NDArray[np.signedinteger[Any]]) -> list[int | None]:
    return [None if value < 0 else value for value in column.tolist()]


def to_counted(rows: Sequence[HistogramRow], *, records_everything: bool) -> list[CountedRow]:
    """Return totals per process and operation.

    Symbols of the same operation are added up. Kernel events that are always recorded are left to
    their records.
    """
    found: dict[tuple[int, int, int], CountedRow] = {}
    for row in rows:
        if (
            row.name in ("sleep", "io_wait", "block_io")
            or row.source == Source.NCCL
            or not row.calls
        ):
            continue
        key = (row.pid, row.source, row.op)
        buckets = row.buckets.astype(np.int64)
        other = found.get(key)
        found[key] = CountedRow(
            pid=row.pid,
            source=row.source,
            op=row.op,
            calls=row.calls + (other.calls if other else 0),
            timed=row.timed + (other.timed if other else 0),
            sum_ns=row.sum_ns + (other.sum_ns if other else 0),
            max_ns=max(row.max_ns, other.max_ns if other else 0),
            buckets=buckets + other.buckets if other else buckets,
            floors_ns=FLOORS_NS,
            has_all_records=records_everything or (row.source, row.op) not in HOT_OPS,
        )
    return list(found.values())
