"""Trace events: sources, operations and their names, in the trace database and from the probes.

Every reader of a trace database relies on these numbers: never change one, only append. Operations
that the published format does not contain come after its last number of that source.
"""

from enum import IntEnum, StrEnum
from typing import Final, TypeAlias


class Source(IntEnum):
    """The layer in which an event was recorded."""

    CUDA = 1
    NVIDIA = 2  # reserved, never recorded
    HOST = 3
    DRIVER = 4
    IO = 5
    TCP = 6
    NET = 7
    GRAPH = 8
    NCCL = 9  # never in `events`: collectives have a table of their own


class MemcpyKind(IntEnum):
    """The direction of a copy; UNKNOWN, never 0, where it could not be read."""

    H2H = 0
    H2D = 1
    D2H = 2
    D2D = 3
    DEFAULT = 4
    UNKNOWN = 5


class Layer(StrEnum):
    """The layer that a line of a causal chain is about."""

    SYSTEM = "SYSTEM"
    HOST = "HOST"
    IO = "IO"
    NET = "NET"
    INFRA = "INFRA"
    CUDA = "CUDA"
    DRIVER = "DRIVER"


OpKey: TypeAlias = tuple[int, int]  # (source, op)

# The event name of a source, and a description for readers who open the database in an SQL client.
SOURCE_TEXT: Final[dict[Source, tuple[str, str]]] = {
    Source.CUDA: ("cuda", "CUDA runtime calls (libcudart), by uprobe"),
    Source.NVIDIA: ("nvidia", "reserved: the NVIDIA kernel driver is not traced"),
    Source.HOST: ("host", "kernel events of the host: scheduler, memory, process life"),
    Source.DRIVER: ("driver", "CUDA driver calls (libcuda), by uprobe"),
    Source.IO: ("io", "block device requests, from issue to completion"),
    Source.TCP: ("tcp", "TCP retransmissions"),
    Source.NET: ("net", "socket send and receive calls"),
    Source.GRAPH: ("cuda_graph", "CUDA graph capture, instantiation and launch"),
    Source.NCCL: ("nccl", "NCCL calls; operations are rows of `collectives`"),
}

_OPS: Final[dict[Source, dict[int, tuple[str, str]]]] = {
    Source.CUDA: {
        1: ("cudaMalloc", "allocate device memory; arg0 bytes, arg1 device pointer"),
        2: ("cudaFree", "free device memory; arg0 device pointer, arg1 bytes"),
        3: ("cudaLaunchKernel", "launch a kernel; arg0 function, arg1 stream"),
        4: ("cudaMemcpy", "copy and wait; arg0 bytes, arg1 direction"),
        5: ("cudaStreamSync", "wait for a stream; arg0 stream"),
        6: ("cudaDeviceSync", "wait for the device"),
        7: ("cudaMemcpyAsync", "copy without waiting; arg0 bytes, arg1 direction"),
        8: ("cudaMallocManaged", "allocate unified memory; arg0 bytes, arg1 pointer"),
        9: ("cudaMemcpy2D", "copy a rectangle and wait; arg0 bytes"),
        10: ("cudaMemcpy2DAsync", "copy a rectangle without waiting; arg0 bytes"),
        11: ("cudaMemcpyPeer", "copy between devices and wait; arg0 bytes"),
        12: ("cudaMemcpyPeerAsync", "copy between devices without waiting; arg0 bytes"),
        13: ("cudaLaunchKernelExC", "launch a kernel with attributes; arg0 function, arg1 stream"),
        14: ("cudaEventSynchronize", "wait for an event; arg0 event"),
    },
    Source.HOST: {
        1: (
            "sched_switch",
            "a traced thread was off the CPU; duration is how long, arg1 who ran instead",
        ),
        2: ("sched_wakeup", "a traced thread was woken; arg1 the thread"),
        3: ("mm_page_alloc", "kernel page allocation; arg0 bytes"),
        4: ("oom_kill", "the out-of-memory killer chose a victim; arg1 its pid"),
        5: ("process_exec", "a traced process started a program"),
        6: ("process_exit", "a traced thread or process ended"),
        7: ("process_fork", "a traced process forked; arg1 the child"),
        10: ("pod_restart", "Kubernetes restarted a container"),
        11: ("pod_eviction", "Kubernetes evicted a pod"),
        12: ("pod_oom_kill", "Kubernetes reported an out-of-memory kill"),
        20: ("mm_page_alloc_summary", "page allocations of one second; arg0 count, arg1 bytes"),
        21: ("sched_switch_summary", "context switches of one second; arg0 count, arg1 off-CPU ns"),
    },
    Source.DRIVER: {
        1: ("cuLaunchKernel", "launch a kernel; arg0 function, arg1 stream"),
        2: ("cuMemcpy", "copy and wait; arg0 bytes"),
        3: ("cuMemcpyAsync", "copy without waiting; arg0 bytes"),
        4: ("cuCtxSynchronize", "wait for the context"),
        5: ("cuMemAlloc", "allocate device memory; arg0 bytes"),
        6: ("cuMemAllocManaged", "allocate unified memory; arg0 bytes"),
        7: ("cuLaunchKernelEx", "launch a kernel with attributes; arg0 function, arg1 stream"),
        8: ("cuStreamSynchronize", "wait for a stream; arg0 stream"),
        9: ("cuEventSynchronize", "wait for an event; arg0 event"),
        10: ("cuMemFree", "free device memory; arg0 device pointer, arg1 bytes"),
    },
    Source.IO: {
        1: ("block_read", "block read; arg0 sectors, arg1 first sector"),
        2: ("block_write", "block write; arg0 sectors, arg1 first sector"),
        3: ("block_discard", "block discard; arg0 sectors, arg1 first sector"),
    },
    Source.TCP: {1: ("tcp_retransmit", "a TCP segment was sent again; arg0 addresses, arg1 ports")},
    Source.NET: {
        1: ("net_send", "socket send; arg0 descriptor, arg1 bytes"),
        2: ("net_recv", "socket receive; arg0 descriptor, arg1 bytes"),
    },
    Source.GRAPH: {
        1: ("graphBeginCapture", "begin capture; arg0 stream, arg1 mode"),
        2: ("graphEndCapture", "end capture; arg0 stream, arg1 graph"),
        3: ("graphInstantiate", "instantiate; arg0 graph, arg1 executable"),
        4: ("graphLaunch", "launch; arg0 stream, arg1 executable"),
        5: ("graphDestroy", "destroy a graph; arg0 graph"),
        6: ("graphExecUpdate", "update an executable; arg0 graph, arg1 executable"),
        7: ("graphExecDestroy", "destroy an executable; arg1 executable"),
    },
    Source.NCCL: {
        1: ("ncclCommInitRank", "join a communicator"),
        2: ("ncclCommDestroy", "leave a communicator"),
        3: ("ncclAllReduce", "collective"),
        4: ("ncclAllGather", "collective"),
        5: ("ncclReduceScatter", "collective"),
        6: ("ncclBcast", "collective"),
        7: ("ncclSend", "point to point"),
        8: ("ncclRecv", "point to point"),
        9: ("ncclCommInitAll", "create communicators of one process"),
        10: ("ncclReduce", "collective"),
        11: ("ncclBroadcast", "collective"),
        12: ("ncclAllToAll", "collective"),
        13: ("ncclGather", "collective"),
        14: ("ncclScatter", "collective"),
        15: ("ncclGroupStart", "open a group"),
        16: ("ncclGroupEnd", "close a group: the work is enqueued here"),
        17: ("ncclCommInitRankConfig", "join a communicator with options"),
        18: ("ncclCommInitRankScalable", "join a communicator by several ids"),
        19: ("ncclCommSplit", "split a communicator"),
        20: ("ncclCommAbort", "leave a communicator at once"),
        21: ("ncclCommFinalize", "drain a communicator"),
    },
}

OP_TEXT: Final[dict[OpKey, tuple[str, str]]] = {
    (int(source), op): text for source, ops in _OPS.items() for op, text in ops.items()
}

_UNKNOWN_OP: Final = {
    Source.HOST: "host_op({})",
    Source.DRIVER: "driver_op({})",
    Source.IO: "io_op({})",
    Source.TCP: "tcp_op({})",
    Source.NET: "net_op({})",
    Source.GRAPH: "graph_op({})",
    Source.NCCL: "nccl_op_{}",
}

# Why a thread left the CPU (`ret_code` of a sched_switch row). Other recorders write 0.
OFF_CPU_UNKNOWN: Final = 0
OFF_CPU_PREEMPTED: Final = 1  # it could have run, but another thread got the CPU
OFF_CPU_SLEPT: Final = 2  # it waited for something
OFF_CPU_IO: Final = 3  # it waited uninterruptibly in the kernel: disk, page, lock

GPU_SOURCES: Final = frozenset({int(Source.CUDA), int(Source.DRIVER)})
LAUNCH_OPS: Final = frozenset({(1, 3), (1, 13), (4, 1), (4, 7)})
STREAM_SYNC_OPS: Final = frozenset({(1, 5), (4, 8)})  # their arg0 is the stream
GRAPH_LAUNCH: Final[OpKey] = (8, 4)
SYNC_OPS: Final = frozenset({(1, 5), (1, 6), (1, 14), (4, 4), (4, 8), (4, 9)})
ALLOC_OPS: Final = frozenset({(1, 1), (1, 8), (4, 5), (4, 6)})
MEMCPY_OPS: Final = frozenset({(1, 4), (1, 7), (1, 9), (1, 10), (1, 11), (1, 12), (4, 2), (4, 3)})
# Operations whose arg0 is an amount (bytes, sectors) and may be summed. Elsewhere arg0 may be a
# pointer.
SUMMED_ARG0_OPS: Final = frozenset(ALLOC_OPS | MEMCPY_OPS | {(3, 3), (5, 1), (5, 2), (5, 3)})
# Always stored as single events: never sampled, never only aggregated.
CRITICAL_OPS: Final = frozenset({(3, 4), (3, 5), (3, 6), (3, 7), (3, 10), (3, 11), (3, 12)})
FIRST_SUMMARY_OP: Final = 20  # from here on, one event of Source.HOST sums up many
SCHED_SWITCH: Final[OpKey] = (3, 1)
PAGE_ALLOC: Final[OpKey] = (3, 3)
OOM_KILL: Final[OpKey] = (3, 4)
PROCESS_EXEC: Final[OpKey] = (3, 5)
PROCESS_EXIT: Final[OpKey] = (3, 6)
POD_RESTART: Final[OpKey] = (3, 10)
POD_EVICTION: Final[OpKey] = (3, 11)
POD_OOM_KILL: Final[OpKey] = (3, 12)
PAGE_ALLOC_SUMMARY: Final[OpKey] = (3, 20)
SWITCH_SUMMARY: Final[OpKey] = (3, 21)
BLOCK_READ: Final[OpKey] = (5, 1)
BLOCK_WRITE: Final[OpKey] = (5, 2)
TCP_RETRANSMIT: Final[OpKey] = (6, 1)


def op_name(source: int, op: int) -> str:
    """Return `cudaMalloc` for (1, 1); an unknown number gives a name such as `io_op(99)`."""
    known = OP_TEXT.get((source, op))
    if known:
        return known[0]
    return (
        _UNKNOWN_OP.get(Source(source), "unknown({})").format(op)
        if source in SOURCE_TEXT
        else f"unknown({op})"
    )


def source_name(source: int) -> str:
    """Return `cuda` for 1, and a name such as `unknown(2)` for reserved and unknown numbers."""
    if source == Source.NVIDIA or source not in SOURCE_TEXT:
        return f"unknown({source})"
    return SOURCE_TEXT[Source(source)][0]


def find_source(name: str) -> Source | None:
    """Return the source with this name, in any case; None for an unknown name."""
    return next((source for source in SOURCE_TEXT if source_name(source) == name.lower()), None)


def find_op(name: str) -> OpKey | None:
    """Return (source, op) of a name, in any case and in CUDA's own spellings; else None."""
    return _BY_NAME.get(name.lower())


_BY_NAME: Final[dict[str, OpKey]] = {text[0].lower(): key for key, text in OP_TEXT.items()} | {
    "cumemallocv2": (4, 5),
    "cumemallocmanagedv2": (4, 6),
    "cudastreamsynchronize": (1, 5),
    "cudadevicesynchronize": (1, 6),
    "cudagraphlaunch": (8, 4),
    "cudagraphinstantiate": (8, 3),
    "cudastreambegincapture": (8, 1),
    "cudastreamendcapture": (8, 2),
}
