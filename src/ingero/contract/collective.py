"""The collective record: one shape for probe, importer, trace database, OTLP and Echo.

Times are nanoseconds of the host clock. `start_ns` is when the host enqueued the call, `end_ns`
when the operation ended. Where the GPU timed the operation, `gpu_duration_ns` is the duration of
its kernel and `end_ns - gpu_duration_ns` is when the GPU began. `rank` counts within the
communicator; `global_rank` and `node` identify the rank and node that recorded the operation.
"""

from dataclasses import dataclass
from enum import StrEnum


class CollectiveSource(StrEnum):
    """Where a record comes from, most precise first.

    The clock of the GPU is more precise than that of the host, and a measured operation more
    precise than its enqueueing.
    """

    PLUGIN = "nccl-plugin"
    INSPECTOR = "nccl-inspector"
    FLIGHT_RECORDER = "flight-recorder"
    KINETO = "kineto"
    # Own time between the steps that a job annotates; its collectives come from probes.
    ANNOTATION = "annotation"
    EBPF = "ebpf"


# Spelled as NCCL does. Probes send the symbol name (`ncclAllReduce`); both are accepted.
COLLECTIVE_OPS = (
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Broadcast",
    "Reduce",
    "Send",
    "Recv",
    "AllToAll",
    "Gather",
    "Scatter",
)
POINT_TO_POINT_OPS = frozenset({"Send", "Recv"})

DATATYPE_BYTES = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "float32": 4, "float64": 8, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1,
}  # fmt: skip
NCCL_DATATYPES = tuple(DATATYPE_BYTES)  # index = ncclDataType_t
_DATATYPE_BY_PLAIN_NAME = {name.replace("_", ""): name for name in DATATYPE_BYTES}
NCCL_REDUCE_OPS = ("sum", "prod", "max", "min", "avg")  # index = ncclRedOp_t
# Of one communicator. A larger number is an error of the sender, and each rank costs memory.
MAX_RANKS = 1 << 20
_RANGES = {
    "global_rank": 1 << 31, "comm": 1 << 64, "seq": 1 << 63, "rank": MAX_RANKS,
    "nranks": MAX_RANKS + 1, "peer": 1 << 31, "size_bytes": 1 << 63, "start_ns": 1 << 62,
    "end_ns": 1 << 62, "gpu_duration_ns": 1 << 62, "stream": 1 << 63, "barrier_wait_ns": 1 << 62,
    "step": 1 << 63, "place": 1 << 31, "after_ns": 1 << 62,
}  # fmt: skip


MAX_NAME_CHARACTERS = 128  # of an operation, a data type or a reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """One operation on one communicator as one rank saw it. Unknown values are None, never 0."""

    job: str | None
    node: str | None
    global_rank: int | None
    comm: int
    seq: int | None
    op: str
    rank: int
    nranks: int
    peer: int | None
    datatype: str
    reduce_op: str | None
    size_bytes: int
    start_ns: int
    end_ns: int
    gpu_duration_ns: int | None
    stream: int | None
    source: CollectiveSource
    # From the enqueueing to the host's wait for the stream; pushed, never stored.
    barrier_wait_ns: int | None = None
    # Where whole steps are sent: number of the step and place in it; pushed, never stored.
    step: int | None = None
    place: int | None = None
    # Of an exchange: from the end of the collective at place 0 to its start; pushed, never stored.
    after_ns: int | None = None
    weight: float = 1.0  # how many collectives of the rank this one stands for; pushed only


def encode_comm(comm: int) -> str:
    """Return the hash of a communicator as 16 hex digits."""
    return f"{comm & 0xFFFFFFFFFFFFFFFF:016x}"


def decode_comm(text: str) -> int:
    """Read hex digits with or without a leading `0x`; senders differ."""
    return int(text.removeprefix("0x"), 16)


def canonical_op(name: str) -> str:
    """Return `AllReduce` for `ncclAllReduce`, `allreduce` and `nccl:all_reduce`.

    Unknown names are returned as they are.
    """
    plain = name.rsplit(":", 1)[-1].removeprefix("nccl").replace("_", "").lower()
    plain = {"bcast": "broadcast"}.get(plain, plain)
    return next((op for op in COLLECTIVE_OPS if op.lower() == plain), name)


def canonical_datatype(name: str) -> str:
    """Return `bfloat16` for the plugin's `Bfloat16`, and `float8_e4m3` for its `Float8e4m3`.

    Unknown names are returned in lower case.
    """
    plain = name.lower()
    return _DATATYPE_BY_PLAIN_NAME.get(plain.replace("_", ""), plain)


def checked(record: CollectiveRecord) -> CollectiveRecord:
    """Return the record; raise ValueError for what makes no sense.

    That is a number out of range, an end before the start, or a name that is too long.
    """
    for text in (record.op, record.datatype, record.reduce_op):
        if text is not None and len(text) > MAX_NAME_CHARACTERS:
            raise ValueError(f"{text[:20]!r}… has {len(text)} characters")
    for name, bound in _RANGES.items():
        value = getattr(record, name)
        if value is not None and not 0 <= value < bound:
            raise ValueError(f"{name} is {value}")
    if record.end_ns < record.start_ns:
        raise ValueError(f"it ends at {record.end_ns}, before it was enqueued at {record.start_ns}")
    return record
