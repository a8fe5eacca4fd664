"""What DuckDB is pointed to lives as long as the table."""

import ctypes as ct

from ingero.storage.events import arrow_stream
from ingero.storage.events.arrow_stream import ArrowTable, int_column

_pointer = ct.pythonapi.PyCapsule_GetPointer
_pointer.restype = ct.c_void_p
_pointer.argtypes = (ct.py_object, ct.c_char_p)


def test_the_texts_of_a_schema_outlive_the_call_that_returns_it() -> None:
    """A reader gets a copy of the outermost structure; its format was freed behind it."""
    table = ArrowTable({"seq": int_column([1, 2])})
    for _ in range(200):
        capsule = table.__arrow_c_stream__()
        address = _pointer(capsule, b"arrow_array_stream")
        stream = arrow_stream._Stream.from_address(address)
        schema = arrow_stream._Schema()
        assert stream.get_schema(ct.byref(stream), ct.byref(schema)) == 0
        others = [bytes([65 + number % 26, 66]) + b"" for number in range(500)]
        assert (schema.format, schema.children[0][0].format) == (b"+s", b"l"), len(others)
