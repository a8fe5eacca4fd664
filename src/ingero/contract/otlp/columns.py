"""Many OTLP requests as one batch of columns, ready for Arrow.

Two builders give the same batch. `PureColumns` uses `decode_rows`. The compiled builder of
`_native/columns.pxi` reads the common shape of points, log records and spans straight from the
bytes and leaves everything else to `decode_rows`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ingero.compiled import CODECS, compiled_or_pure
from ingero.contract.otlp.rows import (
    MAX_ROWS,
    MAX_SHARED_BYTES,
    Context,
    Row,
    check_limits,
    decode_resource,
    decode_rows,
    metric_kind,
    shared_bytes,
    too_many_rows,
    too_much_shared,
)

CompiledColumns: Any = compiled_or_pure(CODECS, "CompiledColumns", None)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A numeric column; where `valid` is 0 the value is missing."""

    values: NDArray[Any]
    valid: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Texts:
    """A text column: UTF-8 in one piece, divided at `offsets`."""

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]
    valid: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of `events` by column; `context[i]` is the position of row i's context in `contexts`.

    Numbers are finite: NaN and infinities are missing, because they would spoil every aggregate.
    """

    contexts: list[Context]
    context: NDArray[np.int32]
    not_finite: int  # values that were NaN or infinite and are missing here
    seq: NDArray[np.int64]
    idx: NDArray[np.int32]
    received_us: NDArray[np.int64]
    ts: Numbers
    start_ts: Numbers
    value_double: Numbers
    value_int: Numbers
    cumulative_value: Numbers
    causal_chain_id: Texts
    attrs: Texts
    detail: Texts


class Columns(Protocol):
    """A builder of batches that collects requests until `take` empties it."""

    def add(self, signal: int, body: bytes, seq: int, received_us: int) -> int:
        """Append one request and return the number of its rows.

        A request that raises MalformedPush or TooLarge adds nothing.
        """
        ...

    def check(self, signal: int, body: bytes) -> int:
        """Return how many rows `add` would append, or raise what it would raise.

        The builder is empty afterwards.
        """
        ...

    def __len__(self) -> int: ...

    @property
    def shared_bytes(self) -> int:
        """What the contexts of all rows hold, counted once for each row."""
        ...

    def clear(self) -> None: ...

    def take(self) -> Batch: ...


class PureColumns:
    """The builder in pure Python."""

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        self._rows: list[Row] = []
        self._origins: list[tuple[int, int, int]] = []
        self.shared_bytes = 0

    def add(self, signal: int, body: bytes, seq: int, received_us: int) -> int:
        rows = decode_rows(signal, body)
        counts = Counter(row.context for row in rows)
        shared = sum(count * shared_bytes(context) for context, count in counts.items())
        if shared > MAX_SHARED_BYTES:
            raise too_much_shared()
        self.shared_bytes += shared
        self._rows += rows
        self._origins += [(seq, idx, received_us) for idx in range(len(rows))]
        return len(rows)

    def check(self, signal: int, body: bytes) -> int:
        self.clear()
        try:
            return self.add(signal, body, 0, 0)
        finally:
            self.clear()

    def take(self) -> Batch:
        rows, origins = self._rows, self._origins
        contexts: dict[Context, int] = {}
        values = [_finite(row.value_double) for row in rows]
        totals = [_finite(row.cumulative_value) for row in rows]
        context = [contexts.setdefault(row.context, len(contexts)) for row in rows]
        batch = Batch(
            contexts=list(contexts),
            context=np.array(context, np.int32),
            not_finite=sum(
                (row.value_double is not None and value is None)
                + (row.cumulative_value is not None and total is None)
                for row, value, total in zip(rows, values, totals, strict=True)
            ),
            seq=np.array([seq for seq, _, _ in origins], np.int64),
            idx=np.array([idx for _, idx, _ in origins], np.int32),
            received_us=np.array([received for _, _, received in origins], np.int64),
            ts=_numbers([row.ts for row in rows], np.int64),
            start_ts=_numbers([row.start_ts for row in rows], np.int64),
            value_double=_numbers(values, np.float64),
            value_int=_numbers([row.value_int for row in rows], np.int64),
            cumulative_value=_numbers(totals, np.float64),
            causal_chain_id=_texts([row.causal_chain_id for row in rows]),
            attrs=_texts([row.attrs for row in rows]),
            detail=_texts([row.detail for row in rows]),
        )
        self.clear()
        return batch


def new_columns() -> Columns:
    """Return the fastest builder of this installation."""
    if CompiledColumns is None:
        return PureColumns()
    columns: Columns = CompiledColumns(_PURE_FUNCTIONS)
    return columns


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _numbers(values: Sequence[float | None], dtype: type) -> Numbers:
    return Numbers(
        np.array([0 if value is None else value for value in values], dtype),
        np.array([value is not None for value in values], np.uint8),
    )


def _texts(values: Sequence[str | None]) -> Texts:
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return Texts(
        offsets,
        np.frombuffer(b"".join(encoded), np.uint8),
        np.array([value is not None for value in values], np.uint8),
    )


# What the compiled builder calls once per resource, metric or unusual request, never per point.
_PURE_FUNCTIONS: Final = (
    decode_rows,
    decode_resource,
    check_limits,
    Context,
    metric_kind,
    too_many_rows,
    MAX_ROWS,
    shared_bytes,
    too_much_shared,
    MAX_SHARED_BYTES,
    Batch,
    Numbers,
    Texts,
)
