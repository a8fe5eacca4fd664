"""What DuckDB is pointed to lives as long as the table."""

import ctypes as ct

import duckdb

from ingero.contract.otlp.columns import new_columns
from ingero.storage.events import arrow_stream
from ingero.storage.events.arrow import batch_table
from ingero.storage.events.arrow_stream import ArrowTable, int_column
from ingero.storage.events.sound import sound_requests

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


def test_attributes_arrive_as_json_without_being_parsed() -> None:
    """DuckDB parsed every value of a column of text that it was to store as JSON."""
    columns = new_columns()
    for signal, body in sound_requests():
        columns.add(signal, body, 1, 1)
    table = batch_table(columns.take())
    with duckdb.connect() as connection:
        connection.register("batch", table)
        (types,) = connection.execute(
            "SELECT DISTINCT typeof(attrs), typeof(detail), typeof(causal_chain_id) FROM batch"
        ).fetchall()
        assert types == ("JSON", "JSON", "VARCHAR")
        kept = connection.execute(
            "SELECT count(*) FROM batch WHERE attrs::VARCHAR::JSON IS NOT DISTINCT FROM attrs"
        ).fetchone()
        assert kept == (table.length,)
    table.release()
