"""What the tracer and the rings bring, as rows and totals."""

import numpy as np

from ingero.agent.ebpf.layout import BUCKETS
from ingero.agent.ebpf.tracer import HistogramRow
from ingero.agent.nccl.rings import RingBatch
from ingero.agent.recording.feed import ring_rows, to_counted
from ingero.contract.nccl_ring import FLAG_GPU_TIMED, FLAG_STREAM, RECORD, RingHeader
from ingero.core.collectives.columns import Recorder
from ingero.core.collectives.plugin_records import SAME_CLOCK, to_collectives
from ingero.storage.trace.database import COLLECTIVE_COLUMNS


def header() -> RingHeader:
    return RingHeader(
        slots=8, comms=1, pid=4711, uid=0, start_ticks=1, pid_namespace=1, created_ns=1,
        created_monotonic_ns=1,
        global_rank=3, local_rank=0, world_size=8, job="77", plugin="t",
    )  # fmt: skip


def test_ring_records_become_rows() -> None:
    records = np.zeros(2, RECORD)
    records["comm"] = 0xFFFFFFFFFFFFFFFE
    records["seq"], records["count"], records["nranks"], records["rank"] = [7, 8], 1024, 8, 3
    records["op"], records["datatype"], records["kind"] = b"AllReduce", b"Bfloat16", 1
    records["enqueue_ns"], records["host_stop_ns"] = 1_000, 9_000
    records["gpu_start_ns"], records["gpu_stop_ns"] = 2_000, 8_000
    records["flags"] = [FLAG_GPU_TIMED | FLAG_STREAM, 0]
    records["stream"] = 0x7F10
    found = to_collectives(records, Recorder("77", "n1", 3), SAME_CLOCK)
    rows = ring_rows(RingBatch(header(), 4711, records, found, False), "n1")
    first, second = (dict(zip(COLLECTIVE_COLUMNS, row, strict=True)) for row in rows)
    assert first == {
        "job": "77", "node": "n1", "global_rank": 3, "comm": -2, "seq": 7, "op": "AllReduce",
        "rank": 3, "nranks": 8,
        "peer": None, "datatype": "bfloat16", "reduce_op": None, "size_bytes": 2048,
        "start_ns": 1_000, "end_ns": 8_000, "gpu_duration_ns": 6_000, "stream": 0x7F10,
        "source": "nccl-plugin",
        "pid": 4711,
    }  # fmt: skip
    assert (second["gpu_duration_ns"], second["stream"], second["end_ns"]) == (None, None, 9_000)


def row(name: str, calls: int, source: int = 4, op: int = 1, sum_ns: int = 100) -> HistogramRow:
    return HistogramRow(
        pid=7, source=source, op=op, name=name, calls=calls, timed=calls, sum_ns=sum_ns,
        max_ns=calls, failed=0,
        buckets=np.full(BUCKETS, calls, np.uint64),
    )  # fmt: skip


def test_symbols_of_one_operation_are_added_up() -> None:
    rows = [
        row("cuLaunchKernel", 10), row("cuLaunchKernel_ptsz", 5), row("sleep", 3, 3, 1),
        row("io_wait", 3, 3, 1),
        row("runqueue_wait", 4, 3, 1), row("block_io", 9, 5, 0), row("ncclAllReduce", 9, 9, 3),
        row("cuMemcpy", 0, 4, 2),
    ]  # fmt: skip
    found = {(one.source, one.op): one for one in to_counted(rows, records_everything=False)}
    assert set(found) == {(4, 1), (3, 1)}, "what comes as records anyway is left to these"
    launch = found[4, 1]
    assert (launch.calls, launch.sum_ns, launch.max_ns, int(launch.buckets[0])) == (15, 200, 10, 15)
    assert not launch.has_all_records
    assert found[3, 1].calls == 4
