"""The probed functions: library, operation, and the meaning of their arguments."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, TypedDict, Unpack

import numpy as np

from ingero.agent.ebpf.abi import locate, reads_stack
from ingero.agent.ebpf.layout import FUNC
from ingero.agent.processes.discover import Library
from ingero.contract.events import Source

_NO_CONSTANT: Final = 0xFF
_FLAG_STACK_ARGS, _FLAG_EMIT_STACK = 1, 2
_D2D, _H2D, _D2H, _UNKNOWN_KIND = 3, 1, 2, 5
TABLE_SIZE: Final = 128


class Kind(IntEnum):
    """What a probe does besides timing; the numbers of probes/calls.h."""

    CALL = 0
    OUT = 1
    ALLOC = 2
    FREE = 3
    PRODUCT = 4
    CONFIG = 5
    SET_DEVICE = 6
    COLLECTIVE = 7
    P2P = 8
    COMM_INIT = 9
    COMM_INIT_ALL = 10
    COMM_SPLIT = 11
    COMM_RANK = 12
    COMM_COUNT = 13
    COMM_END = 14
    GROUP = 15


class Rate(StrEnum):
    """How a function is used: decides what is recorded and what the governor may reduce."""

    # launches: thousands per second; counted, with slow, failed and sampled ones as records
    HOT = "hot"
    CALL = "call"  # copies, waits, allocations: one record each
    LIFE = "life"  # communicators, groups, device changes: never reduced


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One probed function. `picks` are argument numbers, in the order the kind expects."""

    symbols: tuple[str, ...]
    library: Library
    source: Source
    op: int
    signature: str
    picks: tuple[int | None, ...] = ()
    kind: Kind = Kind.CALL
    rate: Rate = Rate.CALL
    constant: int = _NO_CONSTANT

    @property
    def name(self) -> str:
        return self.symbols[0]


class _Options(TypedDict, total=False):
    kind: Kind
    rate: Rate
    constant: int


def _runtime(
    name: str, op: int, signature: str, *picks: int | None, **more: Unpack[_Options]
) -> Function:
    symbols = (name, f"{name}_ptsz", f"{name}_ptds")
    return Function(
        symbols=symbols,
        library=Library.CUDART,
        source=Source.CUDA,
        op=op,
        signature=signature,
        picks=picks,
        **more,
    )


def _graph(
    name: str, op: int, signature: str, *picks: int | None, **more: Unpack[_Options]
) -> Function:
    symbols = (name, f"{name}_ptsz")
    return Function(
        symbols=symbols,
        library=Library.CUDART,
        source=Source.GRAPH,
        op=op,
        signature=signature,
        picks=picks,
        **more,
    )


def _driver(
    name: str, op: int, signature: str, *picks: int | None, **more: Unpack[_Options]
) -> Function:
    plain = name.removesuffix("_v2")
    symbols = (
        name,
        f"{plain}_v3",
        f"{name}_ptsz",
        f"{name}_ptds",
        *(() if plain != name else (f"{name}_v2",)),
    )
    return Function(
        symbols=symbols,
        library=Library.CUDA,
        source=Source.DRIVER,
        op=op,
        signature=signature,
        picks=picks,
        **more,
    )


def _nccl(name: str, op: int, signature: str, kind: Kind, /, **at: int) -> Function:
    """Return an NCCL function; picks are given by name, in the order of nccl.h."""
    order = ("count", "datatype", "reduce", "peer", "comm", "stream", "rank", "nranks")
    return Function(
        symbols=(name,),
        library=Library.NCCL,
        source=Source.NCCL,
        op=op,
        signature=signature,
        picks=tuple(at.get(key) for key in order),
        kind=kind,
        rate=Rate.CALL if kind in (Kind.COLLECTIVE, Kind.P2P) else Rate.LIFE,
    )


RUNTIME: Final = (
    _runtime("cudaMalloc", 1, "qq", 1, 0, kind=Kind.ALLOC),
    _runtime("cudaMallocAsync", 1, "qqq", 1, 0, kind=Kind.ALLOC),
    _runtime("cudaFree", 2, "q", 0, kind=Kind.FREE),
    _runtime("cudaFreeAsync", 2, "qq", 0, kind=Kind.FREE),
    _runtime("cudaLaunchKernel", 3, "qddqqq", 0, 5, rate=Rate.HOT),
    _runtime("cudaMemcpy", 4, "qqqi", 2, 3),
    _runtime("cudaStreamSynchronize", 5, "q", 0),
    _runtime("cudaDeviceSynchronize", 6, ""),
    _runtime("cudaMemcpyAsync", 7, "qqqiq", 2, 3),
    _runtime("cudaMallocManaged", 8, "qqi", 1, 0, kind=Kind.ALLOC),
    _runtime("cudaMemcpy2D", 9, "qqqqqqi", 4, 6, 5, kind=Kind.PRODUCT),
    _runtime("cudaMemcpy2DAsync", 10, "qqqqqqiq", 4, 6, 5, kind=Kind.PRODUCT),
    _runtime("cudaMemcpyPeer", 11, "qiqiq", 4, constant=_D2D),
    _runtime("cudaMemcpyPeerAsync", 12, "qiqiqq", 4, constant=_D2D),
    _runtime("cudaLaunchKernelExC", 13, "qqq", 1, 0, kind=Kind.CONFIG, rate=Rate.HOT),
    _runtime("cudaEventSynchronize", 14, "q", 0),
    _runtime("cudaSetDevice", 0, "i", 0, kind=Kind.SET_DEVICE, rate=Rate.LIFE),
)
DRIVER: Final = (
    _driver("cuLaunchKernel", 1, "qiiiiiiiqqq", 0, 8, rate=Rate.HOT),
    _driver("cuMemcpy", 2, "qqq", 2, constant=_UNKNOWN_KIND),
    _driver("cuMemcpyAsync", 3, "qqqq", 2, constant=_UNKNOWN_KIND),
    _driver("cuMemcpyHtoDAsync_v2", 3, "qqqq", 2, constant=_H2D),
    _driver("cuMemcpyDtoHAsync_v2", 3, "qqqq", 2, constant=_D2H),
    _driver("cuMemcpyDtoDAsync_v2", 3, "qqqq", 2, constant=_D2D),
    _driver("cuCtxSynchronize", 4, ""),
    _driver("cuMemAlloc_v2", 5, "qq", 1, 0, kind=Kind.ALLOC),
    _driver("cuMemAllocManaged", 6, "qqi", 1, 0, kind=Kind.ALLOC),
    _driver("cuLaunchKernelEx", 7, "qqqq", 1, 0, kind=Kind.CONFIG, rate=Rate.HOT),
    _driver("cuStreamSynchronize", 8, "q", 0),
    _driver("cuEventSynchronize", 9, "q", 0),
    _driver("cuMemFree_v2", 10, "q", 0, kind=Kind.FREE),
)
GRAPHS: Final = (
    _graph("cudaStreamBeginCapture", 1, "qi", 0, 1),
    _graph("cudaStreamEndCapture", 2, "qq", 0, 1, kind=Kind.OUT),
    _graph("cudaGraphInstantiate", 3, "qqq", 1, 0, kind=Kind.OUT),
    _graph("cudaGraphInstantiateWithFlags", 3, "qqq", 1, 0, kind=Kind.OUT),
    _graph("cudaGraphLaunch", 4, "qq", 1, 0, rate=Rate.HOT),
    _graph("cudaGraphDestroy", 5, "q", 0),
    _graph("cudaGraphExecUpdate", 6, "qqq", 1, 0),
    _graph("cudaGraphExecDestroy", 7, "q", None, 0),
)
_C, _P = Kind.COLLECTIVE, Kind.P2P
NCCL: Final = (
    _nccl("ncclCommInitRank", 1, "qiui", Kind.COMM_INIT, comm=0, nranks=1, count=2, rank=3),
    _nccl("ncclCommDestroy", 2, "q", Kind.COMM_END, comm=0),
    _nccl("ncclAllReduce", 3, "qqqiiqq", _C, count=2, datatype=3, reduce=4, comm=5, stream=6),
    _nccl("ncclAllGather", 4, "qqqiqq", _C, count=2, datatype=3, comm=4, stream=5),
    _nccl("ncclReduceScatter", 5, "qqqiiqq", _C, count=2, datatype=3, reduce=4, comm=5, stream=6),
    _nccl("ncclBcast", 6, "qqiiqq", _C, count=1, datatype=2, comm=4, stream=5),
    _nccl("ncclSend", 7, "qqiiqq", _P, count=1, datatype=2, peer=3, comm=4, stream=5),
    _nccl("ncclRecv", 8, "qqiiqq", _P, count=1, datatype=2, peer=3, comm=4, stream=5),
    _nccl("ncclCommInitAll", 9, "qiq", Kind.COMM_INIT_ALL, comm=0, nranks=1),
    _nccl("ncclReduce", 10, "qqqiiiqq", _C, count=2, datatype=3, reduce=4, comm=6, stream=7),
    _nccl("ncclBroadcast", 11, "qqqiiqq", _C, count=2, datatype=3, comm=5, stream=6),
    _nccl("ncclAllToAll", 12, "qqqiqq", _C, count=2, datatype=3, comm=4, stream=5),
    _nccl("ncclAlltoAll", 12, "qqqiqq", _C, count=2, datatype=3, comm=4, stream=5),
    _nccl("ncclGather", 13, "qqqiiqq", _C, count=2, datatype=3, comm=5, stream=6),
    _nccl("ncclScatter", 14, "qqqiiqq", _C, count=2, datatype=3, comm=5, stream=6),
    _nccl("ncclGroupStart", 15, "", Kind.GROUP),
    _nccl("ncclGroupEnd", 16, "", Kind.GROUP),
    _nccl("ncclCommInitRankConfig", 17, "qiuiq", Kind.COMM_INIT, comm=0, nranks=1, count=2, rank=3),
    _nccl(
        "ncclCommInitRankScalable", 18, "qiiiqq", Kind.COMM_INIT, comm=0, nranks=1, rank=2, count=4
    ),
    _nccl("ncclCommSplit", 19, "qiiqq", Kind.COMM_SPLIT, count=0, peer=1, comm=3),
    _nccl("ncclCommAbort", 20, "q", Kind.COMM_END, comm=0),
    _nccl("ncclCommFinalize", 21, "q", Kind.GROUP, comm=0),
    _nccl("ncclCommUserRank", 0, "qq", Kind.COMM_RANK, comm=0, count=1),
    _nccl("ncclCommCount", 0, "qq", Kind.COMM_COUNT, comm=0, count=1),
)
FUNCTIONS: Final = (
    *RUNTIME,
    *DRIVER,
    *GRAPHS,
    *NCCL,
)  # the position is the function number in the probes
# runtime calls that go through the driver
LAUNCHES: Final = frozenset({"cudaLaunchKernel", "cudaLaunchKernelExC"})


def encode_functions(machine: str, *, stacks: bool) -> bytes:
    """Encode the table that the probes read, for the calling convention of one machine."""
    table = np.zeros(TABLE_SIZE, FUNC)
    for number, function in enumerate(FUNCTIONS):
        locations = locate(function.signature, machine)
        picked = [pick for pick in function.picks if pick is not None]
        row = table[number]
        row["source"], row["op"], row["kind"] = function.source, function.op, function.kind
        row["flags"] = (_FLAG_STACK_ARGS if reads_stack(locations, picked) else 0) | (
            _FLAG_EMIT_STACK if stacks else 0
        )
        row["const1"] = function.constant
        row["id_by_value"] = "u" in function.signature and machine == "x86_64"
        for position, pick in enumerate(function.picks):
            row["locs"][position] = 0 if pick is None else locations[pick]
    return table.tobytes()
