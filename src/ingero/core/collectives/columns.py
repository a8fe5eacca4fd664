"""Collective records as columns: one numpy array per field instead of one object per record.

Unknown integers are `UNKNOWN` (-1); names are codes into small tables. `who` is the recorder (job,
node, global rank) that wrote the row; `rank` is the rank within the communicator. `step` and
`place` are known where a sender numbered the steps of its rank.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import CollectiveRecord, CollectiveSource, canonical_op

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
T = TypeVar("T")

UNKNOWN = -1
SOURCES = tuple(CollectiveSource)


class Recorder(NamedTuple):
    """The rank that wrote a record."""

    job: str | None
    node: str | None
    global_rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Columns of equal length; `ops` and `recorders` name the codes in `op` and `who`."""

    who: NDArray[np.int32]
    comm: NDArray[np.uint64]
    seq: Ints
    op: NDArray[np.int16]
    rank: NDArray[np.int32]
    nranks: NDArray[np.int32]
    peer: NDArray[np.int32]
    size_bytes: Ints
    start_ns: Ints
    end_ns: Ints
    gpu_duration_ns: Ints
    stream: Ints
    source: NDArray[np.int8]
    step: Ints
    place: NDArray[np.int32]
    after_ns: Ints  # of an exchange: from the end of the collective at place 0 to its start
    weight: NDArray[np.float32]  # how many collectives a row stands for; unknown means one
    ops: tuple[str, ...]
    recorders: tuple[Recorder, ...]

    def __len__(self) -> int:
        return len(self.comm)

    @property
    def duration_ns(self) -> Ints:
        """Duration of the operation: on the GPU where it was timed, else on the host."""
        return np.where(
            self.gpu_duration_ns >= 0, self.gpu_duration_ns, self.end_ns - self.start_ns
        )

    @property
    def entry_ns(self) -> Ints:
        """When this rank entered: the start on the GPU where it was timed, else the enqueue."""
        return np.where(
            self.gpu_duration_ns >= 0, self.end_ns - self.gpu_duration_ns, self.start_ns
        )

    @property
    def is_gpu_timed(self) -> Mask:
        """Which rows have a duration from the GPU's clock."""
        return self.gpu_duration_ns >= 0

    def has_op(self, names: Container[str]) -> Mask:
        """Return which rows are one of these operations."""
        chosen: Mask = np.array([op in names for op in self.ops] or [False], bool)
        return chosen[self.op]

    def take(self, rows: NDArray[np.intp] | Mask) -> "Collectives":
        """Return the rows of an index or mask, with the same tables."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})


_TABLES = ("ops", "recorders")
COLUMNS = tuple(field.name for field in fields(Collectives) if field.name not in _TABLES)
DTYPES: Mapping[str, type[np.generic]] = {
    "who": np.int32, "comm": np.uint64, "seq": np.int64, "op": np.int16, "rank": np.int32,
    "nranks": np.int32, "peer": np.int32, "size_bytes": np.int64, "start_ns": np.int64,
    "end_ns": np.int64, "gpu_duration_ns": np.int64, "stream": np.int64, "source": np.int8,
    "step": np.int64, "place": np.int32, "after_ns": np.int64, "weight": np.float32,
}  # fmt: skip


def from_records(records: Iterable[CollectiveRecord]) -> Collectives:
    """Return the records as columns, in the same order."""
    rows = list(records)
    ops = _Codes[str]()
    recorders = _Codes[Recorder]()
    columns: dict[str, Sequence[float]] = {
        "who": [recorders.code(Recorder(row.job, row.node, row.global_rank)) for row in rows],
        "comm": [row.comm for row in rows],
        "seq": [_or_unknown(row.seq) for row in rows],
        "op": [ops.code(canonical_op(row.op)) for row in rows],
        "rank": [row.rank for row in rows],
        "nranks": [row.nranks for row in rows],
        "peer": [_or_unknown(row.peer) for row in rows],
        "size_bytes": [row.size_bytes for row in rows],
        "start_ns": [row.start_ns for row in rows],
        "end_ns": [row.end_ns for row in rows],
        "gpu_duration_ns": [_or_unknown(row.gpu_duration_ns) for row in rows],
        "stream": [_or_unknown(row.stream) for row in rows],
        "source": [SOURCES.index(row.source) for row in rows],
        "step": [_or_unknown(row.step) for row in rows],
        "place": [_or_unknown(row.place) for row in rows],
        "after_ns": [_or_unknown(row.after_ns) for row in rows],
        "weight": [row.weight for row in rows],
    }
    return from_columns(columns, tuple(ops), tuple(recorders))


def from_columns(
    columns: Mapping[str, Sequence[float] | NDArray[np.generic]],
    ops: Sequence[str],
    recorders: Sequence[Recorder],
) -> Collectives:
    """Return collectives from columns by field name; missing columns are unknown in every row."""
    length = len(next(iter(columns.values()))) if columns else 0
    unknown = np.broadcast_to(np.array(UNKNOWN), length)
    arrays = {name: _column(columns.get(name, unknown), dtype) for name, dtype in DTYPES.items()}
    return Collectives(**arrays, ops=tuple(ops), recorders=tuple(recorders))


def _column(values: Sequence[float] | NDArray[np.generic], dtype: type[np.generic]) -> NDArray[Any]:
    if isinstance(values, np.ndarray) and values.strides == (0,):  # one number for all rows
        return np.broadcast_to(values[:1].astype(dtype), len(values))
    return np.asarray(values, dtype)


def concat(parts: Sequence[Collectives]) -> Collectives:
    """Join the rows of all parts and unite their tables."""
    ops = _Codes[str]()
    recorders = _Codes[Recorder]()
    columns: dict[str, list[NDArray[np.generic]]] = {name: [] for name in COLUMNS}
    for part in parts:
        op_map = np.array([ops.code(op) for op in part.ops], np.int16)
        who_map = np.array([recorders.code(recorder) for recorder in part.recorders], np.int32)
        for name in COLUMNS:
            columns[name].append(getattr(part, name))
        columns["op"][-1] = op_map[part.op]
        columns["who"][-1] = who_map[part.who]
    if not parts:
        return from_columns({}, (), ())
    return from_columns(
        {name: np.concatenate(chunks) for name, chunks in columns.items()}, ops, recorders
    )


def distinct(collectives: Collectives) -> Collectives:
    """Drop repeated rows, which overlapping files produce; the order is kept."""
    keys = [
        getattr(collectives, name)
        for name in ("peer", "op", "seq", "comm", "end_ns", "start_ns", "who")
    ]
    order = np.lexsort(keys)  # stable: the first of equal rows is kept
    is_new = np.ones(len(order), bool)
    is_new[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    return collectives if is_new.all() else collectives.take(np.sort(order[is_new]))


def _or_unknown(value: int | None) -> int:
    return UNKNOWN if value is None else value


class _Codes(list[T], Generic[T]):
    """A list of distinct values; the code of a value is its index."""

    def __init__(self) -> None:
        super().__init__()
        self._code: dict[T, int] = {}

    def code(self, value: T) -> int:
        if value not in self._code:
            self._code[value] = len(self)
            self.append(value)
        return self._code[value]
