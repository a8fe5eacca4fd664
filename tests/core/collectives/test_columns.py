"""Collective records as columns."""

import numpy as np

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.core.collectives.columns import Recorder, concat, from_columns, from_records


def record(rank: int, op: str = "ncclAllReduce", gpu_ns: int | None = 40) -> CollectiveRecord:
    return CollectiveRecord(
        job="j", node=f"n{rank}", global_rank=rank, comm=2**63 + 5, seq=7, op=op, rank=rank,
        nranks=2, peer=None,
        datatype="float32", reduce_op="sum", size_bytes=8, start_ns=100, end_ns=200,
        gpu_duration_ns=gpu_ns,
        stream=None, source=CollectiveSource.PLUGIN,
    )  # fmt: skip


def test_records_become_columns_with_names_as_codes() -> None:
    columns = from_records([record(0), record(1, op="allreduce", gpu_ns=None)])
    assert columns.ops == ("AllReduce",)
    assert columns.recorders == (Recorder("j", "n0", 0), Recorder("j", "n1", 1))
    assert columns.comm.tolist() == [2**63 + 5] * 2
    assert columns.duration_ns.tolist() == [40, 100]
    assert columns.entry_ns.tolist() == [160, 100]
    assert columns.peer.tolist() == columns.stream.tolist() == [-1, -1]


def test_parts_are_joined_with_their_tables_united() -> None:
    joined = concat([from_records([record(1, "AllGather")]), from_records([record(0), record(1)])])
    assert joined.ops == ("AllGather", "AllReduce")
    assert [joined.recorders[who].node for who in joined.who] == ["n1", "n0", "n1"]
    assert [joined.ops[op] for op in joined.op] == ["AllGather", "AllReduce", "AllReduce"]
    assert len(concat([])) == 0


def test_columns_left_out_are_unknown_not_zero() -> None:
    columns = from_columns({"comm": np.arange(3)}, (), ())
    assert columns.seq.tolist() == columns.gpu_duration_ns.tolist() == [-1, -1, -1]
