"""The records of one poll as columns in wall-clock time, ready to be counted, stored or sent."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.layout import EVENT, FLAG_NO_END, NCCL_EVENT
from ingero.contract.collective import (
    DATATYPE_BYTES,
    NCCL_DATATYPES,
    NCCL_REDUCE_OPS,
    POINT_TO_POINT_OPS,
    CollectiveRecord,
    CollectiveSource,
    canonical_op,
)
from ingero.contract.events import OP_TEXT, Source

_SIZES = np.array([DATATYPE_BYTES[name] for name in NCCL_DATATYPES], np.uint64)
# operations of Source.NCCL that move data
COLLECTIVE_OPS = frozenset({3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14})


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Records of one poll.

    `records` and `nccl` hold kernel (monotonic) times; the properties give wall-clock time.
    `stacks` holds the instruction addresses of every stack number, innermost first.
    """

    records: NDArray[np.void] = field(default_factory=lambda: np.empty(0, EVENT))
    nccl: NDArray[np.void] = field(default_factory=lambda: np.empty(0, NCCL_EVENT))
    offset_ns: int = 0
    stacks: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records) + len(self.nccl)

    def _wall(self, column: NDArray[np.uint64]) -> NDArray[np.int64]:
        return column.astype(np.int64) + self.offset_ns

    @property
    def timestamp_ns(self) -> NDArray[np.int64]:
        """Start of each call or event in Unix time."""
        return self._wall(self.records["start_ns"])

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """End of each call; the same as its start where only the entry was probed."""
        return self._wall(self.records["end_ns"])

    @property
    def has_end(self) -> NDArray[np.bool_]:
        """False where only the entry was probed: the duration is unknown, not zero."""
        ended: NDArray[np.bool_] = (self.records["flags"] & FLAG_NO_END) == 0
        return ended

    @property
    def pid(self) -> NDArray[np.uint32]:
        return self.records["pid"]

    @property
    def tid(self) -> NDArray[np.uint32]:
        return self.records["tid"]

    @property
    def source(self) -> NDArray[np.uint8]:
        return self.records["source"]

    @property
    def op(self) -> NDArray[np.uint8]:
        return self.records["op"]

    @property
    def gpu_id(self) -> NDArray[np.int32]:
        """Device of the calling thread, -1 where it was not set since tracing began.

        For Source.TCP it is the TCP state.
        """
        return self.records["gpu"]

    @property
    def arg0(self) -> NDArray[np.uint64]:
        return self.records["arg0"]

    @property
    def arg1(self) -> NDArray[np.uint64]:
        return self.records["arg1"]

    @property
    def ret_code(self) -> NDArray[np.int32]:
        return self.records["ret"]

    @property
    def comm(self) -> NDArray[np.bytes_]:
        return self.records["comm"]

    @property
    def cgroup_id(self) -> NDArray[np.uint64]:
        return self.records["cgroup"]

    @property
    def stack(self) -> NDArray[np.int32]:
        """Key of the stack in `stacks`; negative where no stack was taken."""
        return self.records["stack"]

    @property
    def collective_start_ns(self) -> NDArray[np.int64]:
        return self._wall(self.nccl["start_ns"])

    @property
    def collective_end_ns(self) -> NDArray[np.int64]:
        return self._wall(self.nccl["end_ns"])

    @property
    def collective_bytes(self) -> NDArray[np.uint64]:
        """Element count times element size, as passed to the call.

        For AllGather and ReduceScatter that is the size per rank.
        """
        known = (self.nccl["datatype"] >= 0) & (self.nccl["datatype"] < len(_SIZES))
        sizes = np.where(known, _SIZES[np.where(known, self.nccl["datatype"], 0)], np.uint64(0))
        return self.nccl["count"] * sizes

    def collectives(
        self, job: str | None = None, node: str | None = None
    ) -> Iterator[CollectiveRecord]:
        """Return collective and point-to-point operations as contract records.

        Creation and destruction of communicators are in `nccl` only.
        """
        starts, ends, sizes = (
            self.collective_start_ns,
            self.collective_end_ns,
            self.collective_bytes,
        )
        for index, row in enumerate(self.nccl):
            if int(row["op"]) not in COLLECTIVE_OPS:
                continue
            op = canonical_op(OP_TEXT[(int(Source.NCCL), int(row["op"]))][0])
            datatype, reduce_op = int(row["datatype"]), int(row["reduce_op"])
            yield CollectiveRecord(
                job=job,
                node=node,
                global_rank=None,
                comm=int(row["comm_hash"]),
                seq=int(row["seq"]),
                op=op,
                rank=int(row["rank"]),
                nranks=int(row["nranks"]),
                peer=int(row["peer"]) if op in POINT_TO_POINT_OPS else None,
                datatype=NCCL_DATATYPES[datatype]
                if 0 <= datatype < len(NCCL_DATATYPES)
                else f"unknown({datatype})",
                reduce_op=NCCL_REDUCE_OPS[reduce_op]
                if 0 <= reduce_op < len(NCCL_REDUCE_OPS)
                else None,
                size_bytes=int(sizes[index]),
                start_ns=int(starts[index]),
                end_ns=int(ends[index]),
                gpu_duration_ns=None,
                stream=int(row["stream"]),
                source=CollectiveSource.EBPF,
            )
