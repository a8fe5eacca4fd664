"""Saved rings of the NCCL plugin as collective records, with what each ring had lost."""

from collections.abc import Iterator
from pathlib import Path

from ingero.contract.collective import NCCL_DATATYPES, CollectiveRecord, CollectiveSource
from ingero.contract.nccl_ring import MAGIC, RingCopy, decode_text
from ingero.core.collectives import UNKNOWN, Collectives
from ingero.importers.nccl_ring import read_ring

RING_MAGIC = MAGIC.to_bytes(8, "little")
_DATATYPES = {name.replace("_", ""): name for name in NCCL_DATATYPES}


def read_ring_records(path: Path) -> tuple[list[CollectiveRecord], int | None, list[str]]:
    """Records of one process, the size of its job where the ring knows it, and what is missing."""
    columns, ring = read_ring(path)
    lost = [f"{path}: {ring.overwritten} older records were overwritten"] if ring.overwritten else []
    lost += [f"{path}: {ring.torn} records are damaged, left out"] if ring.torn else []
    dropped = ring.counters["dropped"]
    lost += [f"{path}: the plugin dropped {dropped} operations"] if dropped else []
    return list(_records(columns, ring)), ring.header.world_size, lost


def _records(columns: Collectives, ring: RingCopy) -> Iterator[CollectiveRecord]:
    job, node, global_rank = columns.recorders[0]
    if global_rank is None:  # the process did not say: keep it apart from the others by its pid
        node = f"pid {ring.header.pid}"
    names = [decode_text(raw).lower() for raw in ring.records["datatype"].tolist()]
    fields = (
        "comm",
        "seq",
        "op",
        "rank",
        "nranks",
        "peer",
        "size_bytes",
        "start_ns",
        "end_ns",
        "gpu_duration_ns",
        "stream",
    )
    for name, row in zip(names, zip(*(getattr(columns, field).tolist() for field in fields), strict=True), strict=True):
        comm, seq, op, rank, nranks, peer, size, start_ns, end_ns, gpu_ns, stream = row
        yield CollectiveRecord(
            job=job,
            node=node,
            global_rank=global_rank,
            comm=comm,
            seq=_known(seq),
            op=columns.ops[op],
            rank=rank,
            nranks=nranks,
            peer=_known(peer),
            datatype=_DATATYPES.get(name, name),
            reduce_op=None,
            size_bytes=max(size, 0),
            start_ns=start_ns,
            end_ns=end_ns,
            gpu_duration_ns=_known(gpu_ns),
            stream=_known(stream),
            source=CollectiveSource.PLUGIN,
        )


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value
