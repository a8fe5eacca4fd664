"""The ring file of the NCCL plugin: header, communicator table, records and their checksums.

The plugin (`agent/nccl/ring.h`) writes these bytes; the agent and importers read them. A record is
valid when its stamp is its index plus one and its checksum fits, whatever the plugin was doing
while the bytes were copied.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ingero.errors import ForeignFile, Unavailable

MAGIC = int.from_bytes(b"INGRNCCL", "little")
VERSION = 1
NAME_PATTERN = r"ingero-nccl-(?P<pid>\d+)-(?P<ticks>\d+)(?:-\d+)?"

KIND_COLLECTIVE, KIND_P2P, KIND_COPY_ENGINE = 1, 2, 3
FLAG_GPU_TIMED, FLAG_PARTIAL, FLAG_STREAM, FLAG_GRAPH, FLAG_CLOSED = 1, 2, 4, 8, 16
COMM_LIVE, COMM_CLOSED = 2, 3

RECORD = np.dtype(
    [
        ("stamp", "<u8"), ("check", "<u8"), ("comm", "<u8"), ("seq", "<u8"), ("nccl_seq", "<u8"),
        ("enqueue_ns", "<u8"), ("gpu_start_ns", "<u8"), ("gpu_stop_ns", "<u8"),
        ("host_stop_ns", "<u8"), ("count", "<u8"), ("stream", "<u8"), ("rank", "<i4"),
        ("nranks", "<i4"), ("peer", "<i4"), ("tid", "<u4"), ("kind", "u1"), ("channels", "u1"),
        ("channels_done", "u1"), ("warps", "u1"), ("flags", "<u4"), ("op", "S16"),
        ("datatype", "S12"), ("algo", "S12"), ("proto", "S8"),
    ]
)  # fmt: skip
COMM = np.dtype(
    [
        ("state", "<u4"), ("interface", "<u4"), ("comm", "<u8"), ("rank", "<i4"),
        ("nranks", "<i4"), ("nodes", "<i4"), ("reserved", "<i4"), ("name", "S48"),
        ("opened_ns", "<u8"), ("closed_ns", "<u8"), ("enqueued", "<u8"), ("finished", "<u8"),
        ("last_enqueue_ns", "<u8"), ("last_finish_ns", "<u8"),
    ]
)  # fmt: skip
_HEADER_FIELDS = [
    ("magic", "<u8"), ("version", "<u4"), ("header_bytes", "<u4"), ("comm_bytes", "<u4"),
    ("comms", "<u4"), ("record_bytes", "<u4"), ("slots", "<u4"), ("pid", "<u4"), ("uid", "<u4"),
    ("start_ticks", "<u8"), ("pid_namespace", "<u8"), ("created_ns", "<u8"),
    ("created_monotonic_ns", "<u8"), ("global_rank", "<i4"), ("local_rank", "<i4"),
    ("world_size", "<i4"), ("reserved", "<i4"), ("job", "S64"), ("plugin", "S16"),
]  # fmt: skip
COUNTERS = ("head", "seen", "dropped", "partial", "orphans", "refused")
_COUNTERS_AT, _CACHE_LINE = 1024, 64
HEADER = np.dtype(
    {
        "names": [name for name, _ in _HEADER_FIELDS] + list(COUNTERS),
        "formats": [kind for _, kind in _HEADER_FIELDS] + ["<u8"] * len(COUNTERS),
        "offsets": [
            *np.cumsum([0, *(np.dtype(kind).itemsize for _, kind in _HEADER_FIELDS[:-1])]).tolist(),
            *range(_COUNTERS_AT, _COUNTERS_AT + _CACHE_LINE * len(COUNTERS), _CACHE_LINE),
        ],
        "itemsize": 4096,
    }
)
# four times what the plugin makes: anybody on the machine may write a ring with other numbers
MAX_SLOTS, MAX_COMMS = 1 << 16, 1 << 12
MAX_RANKS: Final = 1 << 20
MAX_COUNTER: Final = 1 << 48  # a million records a second for nine years
MAX_NS: Final = 1 << 62
_TIMES: Final = ("enqueue_ns", "gpu_start_ns", "gpu_stop_ns", "host_stop_ns")

Records = NDArray[np.void]

_WORDS = RECORD.itemsize // 8
_WEIGHTS = np.uint64(0x9E3779B97F4A7C15) * (2 * np.arange(_WORDS, dtype=np.uint64) + 1)
_WEIGHTS[1] = 0  # the check itself


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHeader:
    """The process that owns a ring, and the layout of the ring. Unknown values are None."""

    pid: int
    uid: int
    start_ticks: int
    pid_namespace: int
    created_ns: int
    created_monotonic_ns: int
    global_rank: int | None
    local_rank: int | None
    world_size: int | None
    job: str | None
    plugin: str
    slots: int
    comms: int

    @property
    def records_at(self) -> int:
        """The offset of the first record."""
        return HEADER.itemsize + self.comms * COMM.itemsize

    @property
    def file_bytes(self) -> int:
        """The size of the whole file."""
        return self.records_at + self.slots * RECORD.itemsize


def decode_header(data: bytes, where: str) -> RingHeader:
    """Return the header.

    Raises ForeignFile for other files, and Unavailable for a ring that is not set up yet.
    """
    if len(data) < HEADER.itemsize:
        raise ForeignFile(f"{where}: {len(data)} bytes are too few for an NCCL ring")
    raw = np.frombuffer(data, HEADER, 1)[0]
    if int(raw["magic"]) == 0:
        raise Unavailable(f"{where}: its process is still creating it, or ended before it was done")
    if int(raw["magic"]) != MAGIC:
        raise ForeignFile(f"{where}: not an NCCL ring")
    if int(raw["version"]) != VERSION:
        raise ForeignFile(
            f"{where}: the ring has layout {raw['version']} and this agent reads layout {VERSION}; "
            "upgrade the older of the two"
        )
    sizes = (int(raw["header_bytes"]), int(raw["comm_bytes"]), int(raw["record_bytes"]))
    slots, comms = int(raw["slots"]), int(raw["comms"])
    if sizes != (HEADER.itemsize, COMM.itemsize, RECORD.itemsize):
        raise ForeignFile(f"{where}: the ring has other sizes {sizes} than this agent reads")
    if not 0 < slots <= MAX_SLOTS or slots & (slots - 1) or comms > MAX_COMMS:
        raise ForeignFile(
            f"{where}: damaged; its header names {slots} slots and {comms} communicators"
        )
    if any(int(raw[name]) > MAX_RANKS for name in ("global_rank", "local_rank", "world_size")):
        raise ForeignFile(f"{where}: damaged; its header names a rank or size over {MAX_RANKS}")
    return RingHeader(
        pid=int(raw["pid"]),
        uid=int(raw["uid"]),
        start_ticks=int(raw["start_ticks"]),
        pid_namespace=int(raw["pid_namespace"]),
        created_ns=int(raw["created_ns"]),
        created_monotonic_ns=int(raw["created_monotonic_ns"]),
        global_rank=_known(raw["global_rank"]),
        local_rank=_known(raw["local_rank"]),
        world_size=_known(raw["world_size"]),
        job=decode_text(raw["job"]) or None,
        plugin=decode_text(raw["plugin"]),
        slots=slots,
        comms=comms,
    )


def decode_counters(data: bytes, where: str) -> dict[str, int]:
    """Return the plugin's counters; raises ForeignFile for a number that no plugin reaches.

    They count records published, operations seen, dropped and given up, and events and
    communicators refused.
    """
    raw = np.frombuffer(data, HEADER, 1)[0]
    counters = {name: int(raw[name]) for name in COUNTERS}
    for name, value in counters.items():
        if value > MAX_COUNTER:
            raise ForeignFile(f"{where}: damaged; its counter {name} is {value}")
    return counters


def decode_comms(data: bytes) -> Records:
    """Return the communicators that are or were in use.

    A name may be incomplete where the plugin was writing it while the bytes were copied.
    """
    table = np.frombuffer(data, COMM)
    in_use: Records = table[np.isin(table["state"], (COMM_LIVE, COMM_CLOSED))]
    return in_use


def record_checks(records: Records) -> NDArray[np.uint64]:
    """Return the checksum that every record should carry."""
    words = np.ascontiguousarray(records).view("<u8").reshape(len(records), _WORDS)
    sums: NDArray[np.uint64] = words @ _WEIGHTS
    return sums


def whole_records(records: Records, first: int) -> NDArray[np.bool_]:
    """Return which of the records copied from index `first` on are complete and undamaged."""
    index = np.arange(first, first + len(records), dtype=np.uint64)
    whole: NDArray[np.bool_] = (records["stamp"] == index + np.uint64(1)) & (
        records["check"] == record_checks(records)
    )
    return whole


def usable_records(records: Records, first: int) -> NDArray[np.bool_]:
    """Return which whole records hold values that sums and products of 64 bits can carry.

    A checksum only proves that a record is complete: whoever writes the ring chooses its values.
    """
    plausible: NDArray[np.bool_] = (records["seq"] < MAX_NS) & (records["count"] < MAX_COUNTER)
    for name in _TIMES:
        plausible &= records[name] < MAX_NS
    nranks = records["nranks"]
    plausible &= (nranks >= 0) & (nranks <= MAX_RANKS) & (records["rank"] >= 0)
    plausible &= records["rank"] < np.maximum(nranks, 1)
    return plausible & whole_records(records, first)


@dataclass(frozen=True, slots=True)
class RingCopy:
    """A ring read from a file, with the numbers of overwritten and of damaged (`torn`) records."""

    header: RingHeader
    counters: dict[str, int]
    comms: Records
    records: Records
    overwritten: int
    torn: int


def decode_ring(data: bytes, where: str) -> RingCopy:
    """Return all records of a ring file, oldest first."""
    header = decode_header(data, where)
    if len(data) < header.file_bytes:
        raise ForeignFile(f"{where}: incomplete, {len(data)} of {header.file_bytes} bytes")
    counters = decode_counters(data, where)
    head = counters["head"]
    oldest = max(head - header.slots, 0)
    slots = np.frombuffer(data, RECORD, header.slots, header.records_at)
    ordered = slots[np.arange(oldest, head) % header.slots]
    whole = usable_records(ordered, oldest)
    comms = decode_comms(data[HEADER.itemsize : header.records_at])
    return RingCopy(header, counters, comms, ordered[whole], oldest, int((~whole).sum()))


def decode_text(raw: Any) -> str:  # Any: numpy's scalar of a bytes field
    """Return a zero-padded field as text.

    Bytes that are not UTF-8 are replaced, and so are characters that a terminal would act upon.
    """
    text = bytes(raw).decode(errors="replace")
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _known(value: Any) -> int | None:
    return None if int(value) < 0 else int(value)
