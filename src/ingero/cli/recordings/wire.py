"""What the reading child sends: answers and records as MessagePack, with columns as raw arrays.

The child may have been taken over by a file, so every array and code is checked when it is read.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.core.blame.answer import Answer
from ingero.errors import MalformedInput

ROWS_PER_BATCH: Final = 65_536
_OPTIONAL: Final = (
    "global_rank",
    "seq",
    "peer",
    "gpu_duration_ns",
    "stream",
    "barrier_wait_ns",
)
_INTEGERS: Final = ("rank", "nranks", "size_bytes", "start_ns", "end_ns", *_OPTIONAL)
_TEXTS: Final = ("job", "node", "op", "datatype", "reduce_op", "source")
_UNKNOWN: Final = -1
T = TypeVar("T")


class Answered(msgspec.Struct):
    """The answer to `ingero blame`, and how many files of each kind were read."""

    answer: Answer
    kinds: dict[str, int]


class Batch(msgspec.Struct):
    """Records as columns: integers, 64-bit communicators, and texts as codes into tables."""

    rows: int
    comm: bytes
    integers: dict[str, bytes]
    codes: dict[str, bytes]
    tables: dict[str, list[str | None]]


def encode(value: object) -> bytes:
    """Return the bytes of an answer, a batch or anything else that is sent."""
    return msgspec.msgpack.encode(value, enc_hook=_encode_array)


def decode(data: bytes, kind: type[T]) -> T:
    """Read what the child sent; raise MalformedInput when it is not of this type."""
    try:
        return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode_array)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedInput(f"the reader sent something else than an answer: {error}") from error


def _encode_array(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.shape, np.ascontiguousarray(value, np.float64).tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _decode_array(_kind: Any, value: Any) -> NDArray[np.float64]:
    """Read a table of numbers, the only array in an answer."""
    shape, data = msgspec.convert(value, tuple[tuple[int, int], bytes])
    if min(shape) < 0 or shape[0] * shape[1] * 8 != len(data):
        raise ValueError(f"a table of {shape} in {len(data)} bytes")
    return np.frombuffer(data, np.float64).reshape(shape)


def encode_records(records: Sequence[CollectiveRecord]) -> Iterator[bytes]:
    """Yield batches of records; raise MalformedInput for a value that is not of its column."""
    for begin in range(0, len(records), ROWS_PER_BATCH):
        yield encode(_batch(records[begin : begin + ROWS_PER_BATCH]))


def _batch(records: Sequence[CollectiveRecord]) -> Batch:
    codes, tables = {}, {}
    for name in _TEXTS:
        code_of: dict[str | None, int] = {}
        column = [code_of.setdefault(getattr(record, name), len(code_of)) for record in records]
        codes[name] = np.array(column, np.uint32).tobytes()
        tables[name] = [None if text is None else str(text) for text in code_of]
    try:
        integers = {name: _integers(records, name) for name in _INTEGERS}
        comm = np.array([record.comm for record in records], np.uint64).tobytes()
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedInput(f"a recorded collective has an impossible value: {error}") from error
    return Batch(len(records), comm, integers, codes, tables)


def _integers(records: Sequence[CollectiveRecord], name: str) -> bytes:
    values = [getattr(record, name) for record in records]
    if name in _OPTIONAL:
        values = [_UNKNOWN if value is None else value for value in values]
    return np.array(values, np.int64).tobytes()


def decode_records(data: bytes) -> list[CollectiveRecord]:
    """Read one batch."""
    batch = decode(data, Batch)
    if not 0 <= batch.rows <= ROWS_PER_BATCH:
        raise MalformedInput(f"the reader sent a batch of {batch.rows} records")
    columns: dict[str, list[Any]] = {
        "comm": _column(batch.comm, np.uint64, batch.rows).tolist(),
        **{name: _decode_integers(batch, name) for name in _INTEGERS},
        **{name: _decode_texts(batch, name) for name in _TEXTS},
    }
    try:
        columns["source"] = [CollectiveSource(source) for source in columns["source"]]
    except ValueError as error:
        raise MalformedInput(f"the reader sent an unknown source: {error}") from error
    names = tuple(columns)
    return [
        CollectiveRecord(**dict(zip(names, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]


def _decode_integers(batch: Batch, name: str) -> list[Any]:
    values = _column(batch.integers.get(name, b""), np.int64, batch.rows).tolist()
    return (
        [None if value == _UNKNOWN else value for value in values] if name in _OPTIONAL else values
    )


def _decode_texts(batch: Batch, name: str) -> list[str | None]:
    table = batch.tables.get(name, [])
    codes = _column(batch.codes.get(name, b""), np.uint32, batch.rows)
    if batch.rows and codes.max() >= len(table):
        raise MalformedInput(f"the reader sent an unknown code of {name}")
    if None in table and name in ("op", "datatype", "source"):
        raise MalformedInput(f"the reader sent a record without {name}")
    return [table[code] for code in codes.tolist()]


def _column(data: bytes, kind: type[np.generic], rows: int) -> NDArray[Any]:
    if len(data) != rows * np.dtype(kind).itemsize:
        raise MalformedInput(f"the reader sent {len(data)} bytes for {rows} values")
    return np.frombuffer(data, kind)
