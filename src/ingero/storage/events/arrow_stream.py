"""Columns handed to DuckDB through the Arrow C stream interface, without a package for Arrow.

DuckDB asks an `ArrowTable` for a stream whenever a statement reads it. The structures describe
buffers that stay where they are: nothing is copied on the way. They live until `release`, which
comes after the last statement that reads the table, so DuckDB's own release has nothing to free.
"""

import ctypes as ct
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Buffer: TypeAlias = NDArray[Any] | bytes | None

NANOSECONDS: Final = "tsn:"  # formats of the Arrow C data interface
MICROSECONDS: Final = "tsu:"
INT32: Final = "i"
INT64: Final = "l"
FLOAT64: Final = "g"
TEXT: Final = "u"
BINARY: Final = "z"
# Text that is JSON for certain: DuckDB would parse every value to find that out.
JSON_TEXT: Final = "u:json"
_STRUCT: Final = "+s"
_NULLABLE: Final = 2


def _metadata(pairs: dict[str, str]) -> bytes:
    """Return keys and values as the C data interface encodes them."""
    encoded = [text.encode() for pair in pairs.items() for text in pair]
    return struct.pack("=i", len(pairs)) + b"".join(
        struct.pack("=i", len(text)) + text for text in encoded
    )


_JSON_METADATA: Final = _metadata(
    {"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""}
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its format, its length and its buffers; codes have their values beside them."""

    format: str
    length: int
    buffers: Sequence[Buffer]  # which rows are valid, then what they hold
    dictionary: "Column | None" = None


class _Schema(ct.Structure):
    pass


class _Array(ct.Structure):
    pass


class _Stream(ct.Structure):
    pass


_ReleaseSchema = ct.CFUNCTYPE(None, ct.POINTER(_Schema))
_ReleaseArray = ct.CFUNCTYPE(None, ct.POINTER(_Array))
_ReleaseStream = ct.CFUNCTYPE(None, ct.POINTER(_Stream))
_GetSchema = ct.CFUNCTYPE(ct.c_int, ct.POINTER(_Stream), ct.POINTER(_Schema))
_GetNext = ct.CFUNCTYPE(ct.c_int, ct.POINTER(_Stream), ct.POINTER(_Array))
_GetError = ct.CFUNCTYPE(ct.c_char_p, ct.POINTER(_Stream))

_Schema._fields_ = (
    ("format", ct.c_char_p),
    ("name", ct.c_char_p),
    ("metadata", ct.c_char_p),
    ("flags", ct.c_int64),
    ("n_children", ct.c_int64),
    ("children", ct.POINTER(ct.POINTER(_Schema))),
    ("dictionary", ct.POINTER(_Schema)),
    ("release", _ReleaseSchema),
    ("private_data", ct.c_void_p),
)
_Array._fields_ = (
    ("length", ct.c_int64),
    ("null_count", ct.c_int64),
    ("offset", ct.c_int64),
    ("n_buffers", ct.c_int64),
    ("n_children", ct.c_int64),
    ("buffers", ct.POINTER(ct.c_void_p)),
    ("children", ct.POINTER(ct.POINTER(_Array))),
    ("dictionary", ct.POINTER(_Array)),
    ("release", _ReleaseArray),
    ("private_data", ct.c_void_p),
)
_Stream._fields_ = (
    ("get_schema", _GetSchema),
    ("get_next", _GetNext),
    ("get_last_error", _GetError),
    ("release", _ReleaseStream),
    ("private_data", ct.c_void_p),
)


def _forget(structure: Any) -> None:
    """Mark a structure as released; its memory belongs to the table."""
    structure[0].release = type(structure[0].release)()


_forget_schema = _ReleaseSchema(_forget)
_forget_array = _ReleaseArray(_forget)
_forget_stream = _ReleaseStream(_forget)
_no_error = _GetError(lambda _: None)
_new_capsule = ct.pythonapi.PyCapsule_New
_new_capsule.restype = ct.py_object
_new_capsule.argtypes = (ct.c_void_p, ct.c_char_p, ct.c_void_p)


class ArrowTable:
    """Columns of one length that DuckDB can read as a table, any number of times."""

    def __init__(self, columns: dict[str, Column]) -> None:
        self.columns = columns
        self.length = next(iter(columns.values())).length
        self._kept: list[object] = []  # what the structures point to

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        is_sent = False

        def get_schema(_: Any, out: Any) -> int:
            parts = [self._schema(name, column) for name, column in self.columns.items()]
            out[0] = self._schema("", Column(_STRUCT, self.length, ()), parts)
            return 0

        def get_next(_: Any, out: Any) -> int:
            nonlocal is_sent
            if is_sent:
                out[0] = _Array()  # one that is released already: the end
                return 0
            is_sent = True
            parts = [self._array(column) for column in self.columns.values()]
            out[0] = self._array(Column(_STRUCT, self.length, (None,)), parts)
            return 0

        stream = _Stream(_GetSchema(get_schema), _GetNext(get_next), _no_error, _forget_stream)
        self._kept.append(stream)
        return _new_capsule(ct.addressof(stream), b"arrow_array_stream", None)

    def release(self) -> None:
        """Free what DuckDB was shown; its columns and a stream would keep each other otherwise."""
        self._kept.clear()

    def _schema(self, name: str, column: Column, parts: Sequence[_Schema] = ()) -> _Schema:
        values = None if column.dictionary is None else self._schema("", column.dictionary)
        is_json = column.format == JSON_TEXT
        schema = _Schema(
            (TEXT if is_json else column.format).encode(),
            name.encode(),
            _JSON_METADATA if is_json else None,
            _NULLABLE,
            len(parts),
            None,
            None,
        )
        schema.release = _forget_schema
        self._kept.append(schema)  # its texts: a reader gets a copy, which points to them
        self._link(schema, _Schema, parts, values)
        return schema

    def _array(self, column: Column, parts: Sequence[_Array] = ()) -> _Array:
        addresses = (ct.c_void_p * max(1, len(column.buffers)))(*map(_address, column.buffers))
        nulls = 0 if not column.buffers or column.buffers[0] is None else -1  # -1: not counted
        array = _Array(column.length, nulls, 0, len(column.buffers), len(parts))
        array.buffers = ct.cast(addresses, ct.POINTER(ct.c_void_p))
        array.release = _forget_array
        values = None if column.dictionary is None else self._array(column.dictionary)
        self._kept += [addresses, column.buffers]
        self._link(array, _Array, parts, values)
        return array

    def _link(self, owner: Any, kind: Any, parts: Sequence[Any], values: Any) -> None:
        """Point a structure to those of its parts and of its dictionary, and keep them."""
        if parts:
            pointers = (ct.POINTER(kind) * len(parts))(*(ct.pointer(part) for part in parts))
            owner.children = ct.cast(pointers, ct.POINTER(ct.POINTER(kind)))
            self._kept += [pointers, parts]
        if values is not None:
            owner.dictionary = ct.pointer(values)
            self._kept.append(values)


def bitmap(valid: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Return one bit per row, or None where every row is valid."""
    return None if valid.all() else np.packbits(valid, bitorder="little")


def text_column(values: Sequence[str | None]) -> Column:
    """Return a column of texts."""
    return _pieces(TEXT, [None if value is None else value.encode() for value in values])


def binary_column(values: Sequence[bytes]) -> Column:
    """Return a column of bytes."""
    return _pieces(BINARY, values)


def int_column(values: Sequence[int | None], format: str = INT64) -> Column:
    """Return a column of whole numbers or of times."""
    valid = np.array([value is not None for value in values], np.uint8)
    numbers = np.array([value or 0 for value in values], np.int32 if format == INT32 else np.int64)
    return Column(format, len(values), [bitmap(valid), numbers])


def _pieces(format: str, values: Sequence[bytes | None]) -> Column:
    valid = np.array([value is not None for value in values], np.uint8)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value or b"") for value in values], out=offsets[1:])
    data = b"".join(value or b"" for value in values)
    return Column(format, len(values), [bitmap(valid), offsets, data])


def _address(buffer: Buffer) -> int | None:
    if buffer is None:
        return None
    if isinstance(buffer, bytes):
        return ct.cast(ct.c_char_p(buffer), ct.c_void_p).value
    return int(buffer.ctypes.data)
