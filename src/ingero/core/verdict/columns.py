"""Tables of numpy columns that grow together, each column declared once as a class attribute.

    class MemberRows(Rows):
        bias = floats()
        history = floats32(np.nan, width=HISTORY)

A declaration names the column, its type and the value of a new row. Every instance holds one
plain array per column under that name, so reading `rows.bias` costs an attribute access.
"""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ingero.core.robust import Column, Index


@dataclass(frozen=True, slots=True)
class _Declaration:
    dtype: DTypeLike
    initial: float
    width: int  # values per row; 0 means one value, not an array of values

    def allocate(self, capacity: int) -> NDArray[np.generic]:
        shape = (capacity, self.width) if self.width else (capacity,)
        if self.initial == 0:  # the system hands out zeroed pages only when they are used
            return np.zeros(shape, self.dtype)
        return np.full(shape, self.initial, self.dtype)


# Each function returns a declaration, but is typed as the array an instance will hold, in the way
# `dataclasses.field` is typed as its field.


def floats(initial: float = 0.0, *, width: int = 0) -> Column:
    """Declare a column of doubles."""
    return cast(Column, _Declaration(np.float64, initial, width))


def floats32(initial: float, *, width: int) -> NDArray[np.float32]:
    """Declare a column of single-precision floats, for long histories."""
    return cast("NDArray[np.float32]", _Declaration(np.float32, initial, width))


def integers(*, width: int = 0) -> NDArray[np.int64]:
    """Declare a column of counters or step numbers, initially 0."""
    return cast("NDArray[np.int64]", _Declaration(np.int64, 0, width))


def indexes() -> Index:
    """Declare a column of row indexes into another table, initially 0."""
    return cast(Index, _Declaration(np.intp, 0, 0))


def codes() -> NDArray[np.int8]:
    """Declare a column of small enumerations, initially 0."""
    return cast("NDArray[np.int8]", _Declaration(np.int8, 0, 0))


def flags() -> NDArray[np.bool_]:
    """Declare a column of booleans, initially False."""
    return cast("NDArray[np.bool_]", _Declaration(np.bool_, 0, 0))


def bitsets() -> NDArray[np.uint32]:
    """Declare a column of 32 bits each, initially clear."""
    return cast("NDArray[np.uint32]", _Declaration(np.uint32, 0, 0))


class Rows:
    """A table whose columns a subclass declares; `size` rows are in use."""

    _declared: ClassVar[dict[str, _Declaration]]

    def __init_subclass__(cls) -> None:
        cls._declared = {
            name: value for name, value in vars(cls).items() if isinstance(value, _Declaration)
        }

    def __init__(self) -> None:
        self.size = 0
        self._capacity = 0
        self._grow(64)

    @property
    def size_bytes(self) -> int:
        """The memory of all columns."""
        return sum(getattr(self, name).nbytes for name in self._declared)

    def append(self) -> int:
        """Add a row of initial values and return its index."""
        if self.size == self._capacity:
            self._grow(2 * self._capacity)
        self.size += 1
        return self.size - 1

    def reset(self, rows: Index | NDArray[np.bool_], keep: tuple[str, ...] = ()) -> None:
        """Set rows back to their initial values, except in the columns named in `keep`."""
        for name, declared in self._declared.items():
            if name not in keep:
                getattr(self, name)[rows] = declared.initial

    def _grow(self, capacity: int) -> None:
        for name, declared in self._declared.items():
            grown = declared.allocate(capacity)
            if self._capacity:
                grown[: self._capacity] = getattr(self, name)
            setattr(self, name, grown)
        self._capacity = capacity
